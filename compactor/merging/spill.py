"""Rows that are collected in any order, in bounded memory, and come back sorted."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from compactor.merging.merge import merge_tables
from logstore.records import SCHEMA


class SortedChunks:
    """Collects rows; whenever they exceed the budget, they are sorted into a temporary file."""

    def __init__(self, folder: Path, budget: int) -> None:
        """Collect at most `budget` bytes in memory, and files in `folder`."""
        self._folder = folder
        self._budget = budget
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self._files: list[Path] = []

    @property
    def is_empty(self) -> bool:
        """Whether it has no rows."""
        return not self._tables and not self._files

    def add(self, table: pa.Table) -> None:
        """Take rows."""
        if table.num_rows:
            self._tables.append(table)
            self._bytes += table.nbytes
        if self._bytes > self._budget:
            self._spill()

    def streams(self, max_bytes: int) -> list[Iterator[pa.Table]]:
        """All rows, as sorted streams of tables of about `max_bytes`; may be asked for again."""
        if self._tables:
            self._tables = [merge_tables(self._tables)]
        return [
            *(_read(path) for path in self._files),
            *(pieces(table, max_bytes) for table in self._tables),
        ]

    def _spill(self) -> None:
        table = merge_tables(self._tables)
        path = self._folder / f"{secrets.token_hex(8)}.arrow"
        with pa.OSFile(f"{path}", "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            for piece in pieces(table, self._budget // 16):
                writer.write_table(piece.combine_chunks())
        self._files.append(path)
        self._tables, self._bytes = [], 0


def pieces(table: pa.Table, max_bytes: int) -> Iterator[pa.Table]:
    """A table as slices of about `max_bytes`."""
    rows = max(1, table.num_rows * max_bytes // max(1, table.nbytes))
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)


def _read(path: Path) -> Iterator[pa.Table]:
    with pa.OSFile(f"{path}", "rb") as source:
        reader = pa.ipc.open_file(source)
        for number in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(number)])


class ThreadRows:
    """The rows of single threads out of a sorted stream, asked for in ascending order."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        """Read `tables` as far as they are asked for."""
        self._tables = tables
        self._table: pa.Table | None = next(tables, None)

    def of(self, thread_id: str) -> pa.Table:
        """A thread's rows; every later call must name a later thread."""
        found = [SCHEMA.empty_table()]
        while self._table is not None:
            threads = self._table["thread_id"]
            start = bisect_threads(threads, thread_id)
            end = bisect_threads(threads, f"{thread_id}\0")
            found.append(self._table.slice(start, end - start))
            if end < self._table.num_rows:
                self._table = self._table.slice(end)
                break
            self._table = next(self._tables, None)
        return pa.concat_tables(found)


def bisect_threads(threads: pa.ChunkedArray, thread_id: str) -> int:
    """Where a thread begins in a sorted column, or would."""
    low, high = 0, len(threads)
    while low < high:
        middle = (low + high) // 2
        if threads[middle].as_py() < thread_id:
            low = middle + 1
        else:
            high = middle
    return low
