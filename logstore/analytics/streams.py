"""Tables that are made by reading threads: streamed once, then kept on disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from logstore.errors import LogStoreError

BATCH_ROWS = 4096
BATCH_BYTES = 4 << 20

Rows = Iterable[dict[str, Any]]


def batches_of(rows: Rows, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows as record batches, small ones where the rows are large."""
    batch: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(len(value) for value in row.values() if isinstance(value, str))
        if len(batch) == BATCH_ROWS or size >= BATCH_BYTES:
            yield pa.RecordBatch.from_pylist(batch, schema)
            batch, size = [], 0
    if batch:
        yield pa.RecordBatch.from_pylist(batch, schema)


class SpooledTable:
    """A table whose rows are made at the first scan; later scans read them from a file.

    Decoding is what costs: a query that joins the table with itself, and the next query on the
    same snapshot, do not repeat it.
    """

    def __init__(
        self, schema: pa.Schema, make: Callable[[], Iterator[pa.RecordBatch]], path: Path
    ) -> None:
        """Make nothing yet.

        Args:
            schema: the columns.
            make: begins a stream of all rows.
            path: the file to keep them in.
        """
        self._schema = schema
        self._make = make
        self._path = path
        self._lock = threading.Lock()
        self.failure: LogStoreError | None = None
        """Why the rows could not be made."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """A new stream of all rows (the Arrow PyCapsule interface)."""
        reader = pa.RecordBatchReader.from_batches(self._schema, self.batches())
        capsule: object = reader.__arrow_c_stream__(requested_schema)
        return capsule

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows."""
        with self._lock:
            if not self._path.exists():
                try:
                    self._fill()
                except LogStoreError as error:
                    self.failure = error
                    raise
        file = pq.ParquetFile(self._path)
        for group in range(file.num_row_groups):  # each is a batch that was small enough
            yield from file.iter_batches(BATCH_ROWS, [group], use_threads=False)

    def _fill(self) -> None:
        partial = self._path.with_suffix(".partial")
        with pq.ParquetWriter(partial, self._schema, compression="zstd") as writer:
            for batch in self._make():
                writer.write_batch(batch)
        partial.rename(self._path)
