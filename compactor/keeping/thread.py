"""The rows of one thread, until it is known that all of them can be made."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from logstore.analytics.decoded import Row

_SPILLED_BYTES = 4 << 20
_ROW_BYTES = 400


class ThreadRows:
    """Collects a thread's rows of a table; what is more than a few megabytes waits on disk."""

    def __init__(self, schema: pa.Schema, folder: Path) -> None:
        """Begin; `folder` is for a temporary file."""
        self._schema = schema
        self._path = folder / f"rows-{secrets.token_hex(8)}.arrow"
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None
        self.rows: list[Row] = []
        """Those in memory, the last ones."""
        self.bytes = 0
        """Their size, about."""

    def add(self, row: Row) -> None:
        """Take one more."""
        self.rows.append(row)
        self.bytes += _weight(row)
        if self.bytes >= _SPILLED_BYTES:
            self._spill()

    def spilled(self) -> Iterator[pa.Table]:
        """Those on disk, the first ones, some megabytes at a time. They are there once."""
        if self._writer is None:
            return
        self._writer.close()
        with pa.OSFile(f"{self._path}") as file, pa.ipc.open_stream(file) as reader:
            for batch in reader:
                yield pa.Table.from_batches([batch])
        self.discard()

    def discard(self) -> None:
        """Let go of all."""
        if self._writer is not None:
            self._writer.close()
            self._path.unlink(missing_ok=True)
        self._writer = None

    def _spill(self) -> None:
        if self._writer is None:
            self._writer = pa.ipc.new_stream(f"{self._path}", self._schema)
        self._writer.write_table(pa.Table.from_pylist(self.rows, self._schema))
        self.rows, self.bytes = [], 0


def _weight(row: Row) -> int:
    texts = (row.get("text"), row.get("arguments"), row.get("result"))
    return _ROW_BYTES + sum(len(text) for text in texts if text)
