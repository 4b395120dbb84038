"""Immutable sorted tables of records, read a row group at a time and joined by thread.

A run is one; the tail of a partition, sorted and spooled once, is another. Whatever has to
see all records of a thread together goes through `aligned`, which reads each row group once
and holds no more than a row group or a thread of each source.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from logstore.manifest import RunEntry
from logstore.records import SCHEMA, Encoding, Record, ValueRef
from logstore.runs import INDEX_COLUMNS, RunReader
from logstore.segment import cast_table

SOURCE, GROUP, ROW = "at_source", "at_group", "at_row"
"""The columns in which `aligned` tells where a row lies; rows count within their group."""
_TAIL_GROUP_ROWS = 20_000
_MAX_TOGETHER_BYTES = 8 << 20
"""A thread with more is read value by value, as they are needed."""
_TIME = SCHEMA.field("ts").type


class Source(ABC):
    """Records sorted by thread, in row groups."""

    @property
    @abstractmethod
    def groups(self) -> int:
        """How many row groups it has."""

    @abstractmethod
    def bounds(self, group: int) -> tuple[str, str] | None:
        """The first and the last thread of a row group; None if that is not known."""

    @abstractmethod
    def position(self, group: int) -> int:
        """How many rows come before a row group."""

    @abstractmethod
    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """Some columns of a row group.

        Raises:
            StartAgain: the object is gone.
            CorruptObjectError: it cannot be read.
        """

    @abstractmethod
    def values(
        self, groups: Sequence[int], rows: Sequence[int], size: int
    ) -> list[bytes | ValueRef | None]:
        """What records have for their values.

        Args:
            groups: the records' row groups.
            rows: their places in these.
            size: about how many bytes the decoded values have together.
        """


@dataclass(frozen=True)
class RunSource(Source):
    """A run that a partition manifest lists; values are left where they are."""

    run: RunEntry
    reader: RunReader

    @property
    def groups(self) -> int:
        """How many row groups it has."""
        count: int = self.reader.metadata(self.run).num_row_groups
        return count

    def bounds(self, group: int) -> tuple[str, str] | None:
        """The first and the last thread, by the statistics."""
        return self.reader.bounds(self.run, group)

    def position(self, group: int) -> int:
        """How many rows come before a row group."""
        metadata = self.reader.metadata(self.run)
        before: int = sum(metadata.row_group(earlier).num_rows for earlier in range(group))
        return before

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """Some columns of a row group. See `Source.read`."""
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        return cast_table(self.reader.group(self.run, group, columns), schema)

    def values(
        self, groups: Sequence[int], rows: Sequence[int], size: int
    ) -> list[bytes | ValueRef | None]:
        """The values themselves, or references to them where they are many bytes."""
        key = self.run.key
        refs = [ValueRef(key, group, row) for group, row in zip(groups, rows, strict=True)]
        if size > _MAX_TOGETHER_BYTES:
            return [*refs]
        return [*self.reader.values_together(self.run, refs)]


@dataclass(frozen=True)
class TailSource(Source):
    """What no manifest had merged, sorted; memory-mapped, so that it takes no memory for good."""

    table: pa.Table

    @property
    def groups(self) -> int:
        """How many slices it is read in."""
        rows: int = self.table.num_rows
        return -(-rows // _TAIL_GROUP_ROWS)

    def bounds(self, group: int) -> tuple[str, str] | None:
        """The first and the last thread of a slice."""
        column = self._slice(group)["thread_id"]
        return column[0].as_py(), column[-1].as_py()

    def position(self, group: int) -> int:
        """How many rows come before a slice."""
        return group * _TAIL_GROUP_ROWS

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """Some columns of a slice. See `Source.read`."""
        return self._slice(group).select(list(columns))

    def values(
        self, groups: Sequence[int], rows: Sequence[int], size: int
    ) -> list[bytes | ValueRef | None]:
        """The values themselves."""
        places = [self.position(g) + r for g, r in zip(groups, rows, strict=True)]
        found: list[bytes | ValueRef | None] = self.table["value"].take(places).to_pylist()
        return found

    def _slice(self, group: int) -> pa.Table:
        return self.table.slice(self.position(group), _TAIL_GROUP_ROWS)


def aligned(
    sources: Sequence[Source], columns: Sequence[str], threads: pa.Array | None = None
) -> Iterator[pa.Table]:
    """Rows of whole threads: no thread is in two of the tables, and they come in its order.

    Args:
        sources: where the rows come from.
        columns: which columns; the thread is one of them.
        threads: only these; row groups that hold none of them are not read.

    Yields:
        Tables of the columns, and of `SOURCE`, `GROUP` and `ROW`; in each the sources follow
        each other.
    """
    cursors = [_Cursor(number, source, columns, threads) for number, source in enumerate(sources)]
    while True:
        live = [cursor for cursor in cursors if cursor.fill()]
        if not live:
            return
        # A thread may go on in the next row group of the source that it comes last in.
        open_ends = [cursor.last_thread for cursor in live if cursor.more]
        if not open_ends:
            yield pa.concat_tables(cursor.take_all() for cursor in live)
            continue
        bound = min(open_ends)
        parts = [part for cursor in live if (part := cursor.take_below(bound)).num_rows]
        if parts:
            yield pa.concat_tables(parts)
        for cursor in live:
            if cursor.more and cursor.last_thread == bound:
                cursor.extend()


class _Cursor:
    """Reads one source forward."""

    def __init__(
        self, number: int, source: Source, columns: Sequence[str], threads: pa.Array | None
    ) -> None:
        self._number = number
        self._source = source
        self._columns = columns
        self._threads = threads
        self._groups = [g for g in range(source.groups) if self._may_hold(g)]
        self._table: pa.Table | None = None

    def _may_hold(self, group: int) -> bool:
        if self._threads is None:
            return True
        bounds = self._source.bounds(group)
        if bounds is None:
            return True
        first, last = bounds
        within = pc.and_(pc.greater_equal(self._threads, first), pc.less_equal(self._threads, last))
        return bool(pc.any(within).as_py())

    @property
    def more(self) -> bool:
        """Whether there are row groups that were not read yet."""
        return bool(self._groups)

    @property
    def last_thread(self) -> str:
        """The thread of the last row that was read."""
        assert self._table is not None
        thread_id: str = self._table["thread_id"][-1].as_py()
        return thread_id

    def fill(self) -> bool:
        """Make sure that there are rows at hand; whether there are any."""
        while self._groups and not (self._table and self._table.num_rows):
            self._table = self._next()
        return bool(self._table and self._table.num_rows)

    def extend(self) -> None:
        """Read one row group more."""
        assert self._table is not None
        self._table = pa.concat_tables([self._table, self._next()])

    def take_all(self) -> pa.Table:
        """The rows at hand."""
        table, self._table = self._table, None
        return table

    def take_below(self, thread_id: str) -> pa.Table:
        """The rows at hand of lesser threads."""
        assert self._table is not None
        count = pc.sum(pc.less(self._table["thread_id"], thread_id)).as_py() or 0
        taken = self._table.slice(0, count)
        self._table = self._table.slice(count)
        return taken

    def _next(self) -> pa.Table:
        group = self._groups.pop(0)
        table = self._source.read(group, self._columns)
        rows = table.num_rows
        for name, type_, values in (
            (SOURCE, pa.int32(), pa.repeat(self._number, rows)),
            (GROUP, pa.int32(), pa.repeat(group, rows)),
            (ROW, pa.int64(), pa.array(range(rows), pa.int64())),
        ):
            table = table.append_column(name, values.cast(type_))
        if self._threads is None:
            return table
        return table.filter(pc.is_in(table["thread_id"], self._threads))


def threads_of(
    sources: Sequence[Source], threads: pa.Array | None = None, *, empty: bool = True
) -> Iterator[tuple[str, pa.Table, list[Record]]]:
    """The records of one thread after the other.

    Args:
        sources: where they come from.
        threads: only these.
        empty: also the records that say that a channel has no value, which no value needs.

    Yields:
        The thread, its rows (of which the addresses matter), and a record for each of them.
    """
    for table in aligned(sources, INDEX_COLUMNS, threads):
        if not empty:
            table = table.filter(pc.not_equal(table["encoding"], Encoding.EMPTY.value))
        order = pc.sort_indices(table, [("thread_id", "ascending"), (SOURCE, "ascending")])
        rows = table.take(order).combine_chunks()
        columns = [_listed(rows[name]) for name in INDEX_COLUMNS]
        start = 0
        for thread_id, count in _run_lengths(rows["thread_id"]):
            end = start + count
            mine = rows.slice(start, count)
            fields = (column[start:end] for column in columns)
            values = _values(mine, sources)
            yield thread_id, mine, list(map(Record, *fields, values))
            start = end


def _values(rows: pa.Table, sources: Sequence[Source]) -> list[bytes | ValueRef | None]:
    """What a thread's records have for their values, read together unless they are many bytes."""
    numbers, groups, places = (_listed(rows[name]) for name in (SOURCE, GROUP, ROW))
    size: int = pc.sum(rows["size"]).as_py() or 0
    found: list[bytes | ValueRef | None] = [None] * len(numbers)
    for number in set(numbers):
        mine = [i for i, n in enumerate(numbers) if n == number]
        values = sources[number].values([groups[i] for i in mine], [places[i] for i in mine], size)
        for i, value in zip(mine, values, strict=True):
            found[i] = value
    return found


def _listed(column: pa.ChunkedArray) -> list[Any]:
    """A column as Python values; equal strings become one."""
    if column.null_count == len(column):
        return [None] * len(column)
    if column.type == _TIME:
        column = column.cast(pa.int64())
    if pa.types.is_string(column.type):
        encoded = column.combine_chunks().dictionary_encode()
        words = [*encoded.dictionary.to_pylist(), None]
        return [words[i] for i in _numbers(encoded.indices.fill_null(len(words) - 1))]
    if column.null_count == 0 and column.type in (pa.int32(), pa.int64()):
        return _numbers(column.combine_chunks())
    values: list[Any] = column.to_pylist()
    return values


def _numbers(array: pa.Array) -> list[int]:
    """The values of an array of integers without nulls, several times faster than `to_pylist`."""
    buffer = memoryview(array.buffers()[1])
    values = buffer.cast("i") if array.type == pa.int32() else buffer.cast("q")
    return values[array.offset : array.offset + len(array)].tolist()


def _run_lengths(column: pa.ChunkedArray) -> Iterator[tuple[str, int]]:
    """The values of a sorted column, each with how often it stands there."""
    encoded = pc.run_end_encode(column.combine_chunks())
    start = 0
    for value, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
        yield value, end - start
        start = end
