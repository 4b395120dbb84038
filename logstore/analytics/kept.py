"""Tables that the compactor keeps, so that no reader has to decode the threads anew.

A partition manifest lists them as batches, the newest first. A batch has an index, which names
the threads that it tells of, and files with their rows. Of a thread only what the first batch
says that names it counts; what a batch has no rows of, or what has records in the tail, is
decoded as if nothing were kept. See FORMAT.md, section 9.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from logstore.analytics.sources import Source
from logstore.analytics.tables import READ
from logstore.keys import TABLE_INDEX
from logstore.manifest import KEPT, KeptBatch, KeptTables, RunEntry
from logstore.runs import RunReader

INDEX = TABLE_INDEX
"""The name of the index among a batch's files."""
INDEX_SCHEMA = pa.schema(
    [
        ("thread_id", pa.string()),
        ("records", pa.int64()),
        ("plain", pa.bool_()),
        *((name, pa.bool_()) for name in KEPT),
    ]
)
"""The thread; how many records it had when its rows were last made, 0 if they never were;
whether all of its records are known to show; for each table whether its rows stand."""
BATCH = "batch"
"""The column in which `newest` tells where a row comes from."""
_BATCH_ROWS = 4_096


def schema_of_file(name: str) -> pa.Schema:
    """The columns of a file of a table, or of the index."""
    return INDEX_SCHEMA if name == INDEX else READ[name]


def read_index(runs: RunReader, batch: KeptBatch) -> pa.Table:
    """The index of a batch, sorted by thread.

    Raises:
        StartAgain: a file is gone.
        CorruptObjectError: one cannot be read.
    """
    parts = [
        table.select(INDEX_SCHEMA.names)
        for file in batch.files[INDEX]
        for table in runs.columns(file, INDEX_SCHEMA.names)
    ]
    return pa.concat_tables([INDEX_SCHEMA.empty_table(), *parts])


def newest(indices: Sequence[pa.Table]) -> pa.Table:
    """Of each thread the first row that names it.

    Args:
        indices: of batches, the newest first.

    Returns:
        The rows, with the number of the batch in the column `batch`.
    """
    found = [INDEX_SCHEMA.append(pa.field(BATCH, pa.int32())).empty_table()]
    for number, table in enumerate(indices):
        known = pa.chunked_array([c for t in found for c in t["thread_id"].chunks], pa.string())
        new = table.filter(pc.invert(pc.is_in(table["thread_id"], known)))
        column = pa.repeat(pa.scalar(number, pa.int32()), new.num_rows)
        found.append(new.append_column(BATCH, column))
    return pa.concat_tables(found)


@dataclass(frozen=True)
class KeptRows:
    """A file of a kept table, and the threads in it that another batch or the tail tells of."""

    file: RunEntry
    superseded: pa.Array


class PartitionKept:
    """What is kept of a pinned partition."""

    def __init__(self, kept: KeptTables, runs: RunReader, in_tail: pa.Array) -> None:
        """Look at nothing yet.

        Args:
            kept: what the partition manifest lists.
            runs: reads the files.
            in_tail: the threads with records that the manifest has not merged.
        """
        self._kept = kept
        self._runs = runs
        self._in_tail = in_tail

    @cached_property
    def _indices(self) -> list[pa.Table]:
        return [read_index(self._runs, batch) for batch in self._kept.batches]

    @cached_property
    def index(self) -> pa.Table:
        """What is known of every thread of the runs."""
        return newest(self._indices)

    @property
    def doubtful(self) -> pa.Array | None:
        """The threads of which not all records may show; None for all of them."""
        if not self._kept.batches:
            return None
        known = self.index
        return self._and_tail(known["thread_id"].filter(pc.invert(known["plain"])))

    def unkept(self, name: str) -> pa.Array | None:
        """The threads whose rows of a table have to be decoded; None for all of them."""
        if not self._kept.batches or name not in KEPT:
            return None
        known = self.index
        return self._and_tail(known["thread_id"].filter(pc.invert(known[name])))

    def rows(self, name: str) -> Iterator[KeptRows]:
        """The files of a table in which something counts."""
        if name not in KEPT:
            return
        for number, batch in enumerate(self._kept.batches):
            files = batch.files.get(name, ())
            current, superseded = self._split(name, number) if files else ((), ())
            if len(current):
                yield from (KeptRows(file, superseded) for file in files)

    def records(self, name: str) -> int:
        """How many records the threads had whose rows of a table are kept."""
        if not self._kept.batches or name not in KEPT:
            return 0
        known = self.index
        counted = pc.and_(known[name], pc.invert(pc.is_in(known["thread_id"], self._in_tail)))
        return pc.sum(known["records"].filter(counted)).as_py() or 0

    def current(self, name: str) -> pa.Array:
        """The threads whose rows of a table count."""
        numbers = range(len(self._kept.batches))
        parts = [self._split(name, number)[0] for number in numbers]
        return pa.concat_arrays([pa.array([], pa.string()), *parts])

    def _split(self, name: str, number: int) -> tuple[pa.Array, pa.Array]:
        """Of the threads that a batch has the rows of, those that count, and the others."""
        known = self.index
        mine = known.filter(pc.equal(known[BATCH], number))
        here = self._indices[number]
        threads = here["thread_id"].filter(here[name])
        counts = pc.and_(
            pc.is_in(threads, mine["thread_id"]), pc.invert(pc.is_in(threads, self._in_tail))
        )
        return _array(threads.filter(counts)), _array(threads.filter(pc.invert(counts)))

    def _and_tail(self, threads: pa.ChunkedArray) -> pa.Array:
        return pc.unique(pa.concat_arrays([_array(threads), self._in_tail]))


@dataclass(frozen=True)
class KeptSource(Source):
    """The files of a table in a batch, as one sorted source."""

    files: tuple[RunEntry, ...]
    name: str
    reader: RunReader
    without: pa.Array
    """Threads whose rows are left out."""

    @cached_property
    def _groups(self) -> list[tuple[RunEntry, int]]:
        return [
            (file, group)
            for file in self.files
            for group in range(self.reader.metadata(file).num_row_groups)
        ]

    @property
    def groups(self) -> int:
        """How many row groups it has."""
        return len(self._groups)

    def bounds(self, group: int) -> tuple[str, str] | None:
        """The first and the last thread, by the statistics."""
        file, number = self._groups[group]
        column = schema_of_file(self.name).get_field_index("thread_id")
        statistics = self.reader.metadata(file).row_group(number).column(column).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        return statistics.min, statistics.max

    def position(self, group: int) -> int:
        """How many rows come before a row group."""
        before: int = sum(
            self.reader.metadata(file).row_group(number).num_rows
            for file, number in self._groups[:group]
        )
        return before

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """Some columns of a row group. See `Source.read`."""
        return pa.concat_tables(self.batches(group, columns))

    def batches(self, group: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The same a few rows at a time. See `Source.batches`."""
        file, number = self._groups[group]
        schema = pa.schema([schema_of_file(self.name).field(column) for column in columns])
        for table in self.reader.group_batches(file, number, columns, _BATCH_ROWS):
            rows = table.select(list(columns)).cast(schema)
            counting = rows.filter(pc.invert(pc.is_in(rows["thread_id"], self.without)))
            if counting.num_rows:
                yield counting


def _array(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([pa.array([], pa.string()), *column.chunks])
