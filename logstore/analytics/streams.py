"""Tables that are made by reading threads: streamed once, then kept on disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from logstore.analytics.scan import scanner
from logstore.analytics.tables import LARGE
from logstore.errors import LogStoreError

BATCH_ROWS = 4096
BATCH_BYTES = 4 << 20
_FORMAT = ds.ParquetFileFormat()

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


Make = Callable[[pa.Schema, pc.Expression | None], Iterator[pa.RecordBatch]]
"""Begins a stream of the rows with some columns, of the threads that a filter does not rule out."""


class SpooledTable:
    """A table whose rows are made at the first scan; later scans read them from a file.

    Decoding is what costs: a query that joins the table with itself, and the next query on the
    same snapshot, do not repeat it. What a filter leaves of few threads is not kept. Nor are the
    large columns, until a scan needs one.
    """

    def __init__(
        self,
        schema: pa.Schema,
        make: Make,
        is_narrow: Callable[[pc.Expression], bool],
        path: Path,
    ) -> None:
        """Make nothing yet.

        Args:
            schema: the columns.
            make: makes rows.
            is_narrow: whether a filter rules most threads out.
            path: the file to keep all rows in.
        """
        self.schema = schema
        self._make = make
        self._is_narrow = is_narrow
        self._whole = path
        self._small = path.with_suffix(".small.parquet")
        self._small_schema = pa.schema([field for field in schema if field.name not in LARGE])
        self._lock = threading.Lock()
        self.failure: LogStoreError | None = None
        """Why the rows could not be made."""

    def batches(
        self, columns: Sequence[str], filter: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        """Some columns of the rows that a filter selects."""
        with self._lock:
            path = self._file_for(columns, filter)
        if path is None:
            yield from self._made(columns, filter)
            return
        fragment = _FORMAT.make_fragment(str(path), pafs.LocalFileSystem())
        schema = pq.read_schema(path)
        for group in fragment.row_groups:  # each is a batch that was small enough
            piece = fragment.subset(row_group_ids=[group.id])
            yield from scanner(piece, schema, columns, filter).to_batches()

    def _file_for(self, columns: Sequence[str], filter: pc.Expression | None) -> Path | None:
        """A file with what a scan needs; None if the scan is better made for itself."""
        small = LARGE.isdisjoint(columns) and _is_on(self._small_schema, filter)
        found = [path for path in (self._small, self._whole) if path.exists()]
        if found and (small or self._whole.exists()):
            return found[0] if small else self._whole
        if filter is not None and self._is_narrow(filter):
            return None
        return self._fill(
            *(self._small, self._small_schema) if small else (self._whole, self.schema)
        )

    def _made(
        self, columns: Sequence[str], filter: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        for batch in self._watched(self.schema, filter):
            yield from pa.Table.from_batches([batch]).filter(filter).select(columns).to_batches()

    def _fill(self, path: Path, schema: pa.Schema) -> Path:
        partial = path.with_suffix(".partial")
        with pq.ParquetWriter(partial, schema, compression="zstd") as writer:
            for batch in self._watched(schema, None):
                writer.write_batch(batch)
        partial.rename(path)
        return path

    def _watched(self, schema: pa.Schema, filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._make(schema, filter)
        except LogStoreError as error:
            self.failure = error
            raise


def _is_on(schema: pa.Schema, filter: pc.Expression | None) -> bool:
    """Whether a filter is on columns of a schema."""
    try:
        schema.empty_table().filter(filter if filter is not None else pc.scalar(True))
    except pa.ArrowInvalid:
        return False
    return True


class PushedDown(ds.Dataset):  # type: ignore[misc] # pyarrow has no types
    """A spooled table for an engine that hands columns and filters to Arrow's datasets.

    Of a dataset it has what the protocol for such engines asks for, the schema and scanners.
    """

    def __init__(self, table: SpooledTable) -> None:
        """Give scanners of a table."""
        self._table = table

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._table.schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        **_: Any,
    ) -> PushedDownScanner:
        """What reads some columns of the rows that a filter selects."""
        names = self.schema.names if columns is None else list(columns)
        return PushedDownScanner(self._table, names, filter)


class PushedDownScanner:
    """Reads a spooled table, a batch when it is asked for one: Arrow's own reads ahead."""

    def __init__(
        self, table: SpooledTable, columns: Sequence[str], filter: pc.Expression | None
    ) -> None:
        """Read nothing yet."""
        self._table = table
        self._columns = columns
        self._filter = filter

    @property
    def projected_schema(self) -> pa.Schema:
        """The columns that are read."""
        return pa.schema([self._table.schema.field(name) for name in self._columns])

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows."""
        batches = self._table.batches(self._columns, self._filter)
        return pa.RecordBatchReader.from_batches(self.projected_schema, batches)
