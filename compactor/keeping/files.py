"""Writing the files of kept tables: rows in the order of their threads, in bounded memory."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from compactor.sorted_file import SortedFile
from logstore.analytics.kept import schema_of_file
from logstore.keys import table_key
from logstore.lanes import store_once
from logstore.manifest import RunEntry
from logstore.objects.base import ObjectStore

ROW_GROUP_BYTES = 8 << 20
ROW_GROUP_ROWS = 65_536
_PAGE_BYTES = 1 << 20
_COMPRESSION_LEVEL = 3


@dataclass(frozen=True, slots=True)
class TableTarget:
    """Where the files of a commit go."""

    objects: ObjectStore
    folder: Path
    """For temporary files."""
    partition: int
    generation: int
    job: str
    max_bytes: int
    """A file is ended by the row group with which it reaches this size."""

    def writer(self, name: str) -> TableWriter:
        """A writer for rows of a table, or of the index."""
        return TableWriter(self, name)


class TableWriter:
    """Writes one sorted sequence of rows as files of a table."""

    def __init__(self, target: TableTarget, name: str) -> None:
        """Begin."""
        self._target = target
        self._name = name
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._file: SortedFile | None = None
        self._files: list[RunEntry] = []

    def add(self, table: pa.Table) -> None:
        """Write rows whose threads follow those written before."""
        if not table.num_rows:
            return
        self._pending.append(table)
        self._pending_rows += table.num_rows
        self._pending_bytes += table.nbytes
        if self._pending_rows >= ROW_GROUP_ROWS or self._pending_bytes >= ROW_GROUP_BYTES:
            self._end_row_group()

    def close(self) -> tuple[RunEntry, ...]:
        """Store what is left; the files in the order of their rows."""
        self._end_row_group()
        self._end_file()
        return tuple(self._files)

    def _end_row_group(self) -> None:
        if not self._pending:
            return
        group = pa.concat_tables(self._pending)
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        if self._file is None:
            self._file = SortedFile(
                self._target.folder,
                schema_of_file(self._name),
                "thread_id",
                compression_level=_COMPRESSION_LEVEL,
                data_page_size=_PAGE_BYTES,
            )
        self._file.write(group)
        if self._file.size >= self._target.max_bytes:
            self._end_file()

    def _end_file(self) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        target = self._target
        body = file.close({"job": target.job, "generation": target.generation})
        key = table_key(target.partition, self._name, secrets.token_hex(12))
        store_once(target.objects, key, body)
        self._files.append(
            RunEntry(
                key=key,
                level=0,
                rows=file.rows,
                size=len(body),
                first_thread=file.first_thread,
                last_thread=file.last_thread,
                generation=target.generation,
                part=len(self._files),
            )
        )
