"""Immutable sorted tables of records, read a row group at a time and joined by thread.

A run is one, a sorted part of a partition's tail another. Whatever has to see all records of a
thread together goes through `aligned`, which reads each row group once and holds no more than a
few thousand rows of each source, or one thread, whose values it leaves in the files if they are
large.
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
LEFT = "value_left"
"""The column in which it tells whether a row's value was left where it is."""
_HELD_BYTES = 16 << 20
"""Of the rows of one thread, over all sources."""
_LARGE_GROUP = 16 << 20
"""Bytes of a row group's values from which they are left in the file: a value of many megabytes is
a row group of its own."""
_BATCH_ROWS = 4_096
_UNUSED = {"metadata_type", "metadata_value", "ordinal"}
"""What neither a view nor a value needs."""
_INDEX = [name for name in INDEX_COLUMNS if name not in _UNUSED]
_WITH_VALUES = [*_INDEX, "value"]
_TIME = SCHEMA.field("ts").type
_VALUE = SCHEMA.get_field_index("value")


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
    def batches(self, group: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The same a few rows at a time."""

    def has_large_values(self, group: int) -> bool:
        """Whether the values of a row group are better read one by one."""
        return False


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

    @property
    def largest(self) -> int:
        """Bytes of the largest value, by the statistics."""
        metadata = self.reader.metadata(self.run)
        column = SCHEMA.get_field_index("size")
        groups = (metadata.row_group(group) for group in range(metadata.num_row_groups))
        statistics = (group.column(column).statistics for group in groups)
        return max((found.max for found in statistics if found and found.has_min_max), default=0)

    def position(self, group: int) -> int:
        """How many rows come before a row group."""
        metadata = self.reader.metadata(self.run)
        before: int = sum(metadata.row_group(earlier).num_rows for earlier in range(group))
        return before

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """Some columns of a row group. See `Source.read`."""
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        return cast_table(self.reader.group(self.run, group, columns), schema)

    def batches(self, group: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The same a few rows at a time. See `Source.batches`."""
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        for table in self.reader.group_batches(self.run, group, columns, _BATCH_ROWS):
            yield cast_table(table, schema)

    def has_large_values(self, group: int) -> bool:
        """Whether the values take many megabytes."""
        column = self.reader.metadata(self.run).row_group(group).column(_VALUE)
        return bool(column.total_uncompressed_size >= _LARGE_GROUP)


def aligned(
    sources: Sequence[Source], columns: Sequence[str], threads: pa.Array | None = None
) -> Iterator[pa.Table]:
    """Rows of whole threads: no thread is in two of the tables, and they come in its order.

    Args:
        sources: where the rows come from.
        columns: which columns; the thread is one of them.
        threads: only these; row groups that hold none of them are not read.

    Yields:
        Tables of the columns, and of `SOURCE`, `GROUP`, `ROW` and `LEFT`; in each the sources
        follow each other.
    """
    held_bytes = _HELD_BYTES // max(1, len(sources))
    cursors = [
        _Cursor(number, source, columns, threads, held_bytes)
        for number, source in enumerate(sources)
    ]
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
        self,
        number: int,
        source: Source,
        columns: Sequence[str],
        threads: pa.Array | None,
        held_bytes: int,
    ) -> None:
        self._number = number
        self._source = source
        self._columns = columns
        self._threads = threads
        self._held_bytes = held_bytes
        self._batches = self._all_batches()
        self._ahead = next(self._batches, None)
        self._table: pa.Table | None = None

    @property
    def more(self) -> bool:
        """Whether there are rows that were not read yet."""
        return self._ahead is not None

    @property
    def last_thread(self) -> str:
        """The thread of the last row that was read."""
        assert self._table is not None
        thread_id: str = self._table["thread_id"][-1].as_py()
        return thread_id

    def fill(self) -> bool:
        """Make sure that there are rows at hand; whether there are any."""
        if not (self._table and self._table.num_rows) and self.more:
            self._table = self._next()
        return bool(self._table and self._table.num_rows)

    def extend(self) -> None:
        """Read a few rows more."""
        assert self._table is not None
        held, more = self._table, self._next()
        if held.nbytes + more.nbytes > self._held_bytes:
            held, more = (_without_values(table, self._columns) for table in (held, more))
        self._table = pa.concat_tables([held, more])

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
        table, self._ahead = self._ahead, next(self._batches, None)
        return table

    def _all_batches(self) -> Iterator[pa.Table]:
        for group in filter(self._may_hold, range(self._source.groups)):
            row = 0
            large = "value" in self._columns and self._source.has_large_values(group)
            columns = [name for name in self._columns if not (large and name == "value")]
            for table in self._source.batches(group, columns):
                addressed = self._addressed(table, group, row)
                addressed = _without_values(addressed, self._columns) if large else addressed
                row += table.num_rows
                if self._threads is not None:
                    addressed = addressed.filter(pc.is_in(addressed["thread_id"], self._threads))
                if addressed.num_rows:
                    yield addressed

    def _addressed(self, table: pa.Table, group: int, first: int) -> pa.Table:
        rows = table.num_rows
        for name, type_, values in (
            (SOURCE, pa.int32(), pa.repeat(self._number, rows)),
            (GROUP, pa.int32(), pa.repeat(group, rows)),
            (ROW, pa.int64(), pa.array(range(first, first + rows), pa.int64())),
            (LEFT, pa.bool_(), pa.repeat(False, rows)),
        ):
            table = table.append_column(name, values.cast(type_))
        return table

    def _may_hold(self, group: int) -> bool:
        if self._threads is None:
            return True
        bounds = self._source.bounds(group)
        if bounds is None:
            return True
        first, last = bounds
        within = pc.and_(pc.greater_equal(self._threads, first), pc.less_equal(self._threads, last))
        return bool(pc.any(within).as_py())


def _without_values(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The rows with their values left where they are."""
    if "value" not in columns:
        return table
    left = {
        "value": pa.nulls(table.num_rows, SCHEMA.field("value").type),
        LEFT: pa.repeat(True, table.num_rows),
    }
    names = [*columns, SOURCE, GROUP, ROW, LEFT]
    return pa.table([left[name] if name in left else table[name] for name in names], names)


def threads_of(
    sources: Sequence[RunSource], threads: pa.Array | None = None, *, values: bool = True
) -> Iterator[tuple[str, pa.Table, list[Record]]]:
    """The records of one thread after the other.

    Args:
        sources: where they come from.
        threads: only these.
        values: with their values, or where they lie if the thread is large, and without the
            records that only say that there is none.

    Yields:
        The thread, its rows (of which the addresses matter), and a record for each of them.
    """
    columns = _WITH_VALUES if values else _INDEX
    for table in aligned(sources, columns, threads):
        if values:
            table = table.filter(pc.not_equal(table["encoding"], Encoding.EMPTY.value))
        order = pc.sort_indices(table, [("thread_id", "ascending"), (SOURCE, "ascending")])
        rows = table.take(order).combine_chunks()
        addresses = rows.select([SOURCE, GROUP, ROW])
        fields = [_field(rows, name) for name in Record._fields]
        start = 0
        for thread_id, count in _run_lengths(rows["thread_id"]):
            mine = slice(start, start + count)
            records = list(map(Record, *(field[mine] for field in fields)))
            if values and pc.any(rows[LEFT].slice(start, count)).as_py():
                records = _referring(records, rows.slice(start, count), sources)
            yield thread_id, addresses.slice(start, count), records
            start += count


def _referring(
    records: Sequence[Record], rows: pa.Table, sources: Sequence[RunSource]
) -> list[Record]:
    """The records, with references to the values that were left in the files."""
    places = zip(*(rows[name].to_pylist() for name in (LEFT, SOURCE, GROUP, ROW)), strict=True)
    return [
        record._replace(value=ValueRef(sources[source].run.key, group, row)) if left else record
        for record, (left, source, group, row) in zip(records, places, strict=True)
    ]


def _field(rows: pa.Table, name: str) -> list[Any]:
    return _listed(rows[name]) if name in rows.column_names else [None] * rows.num_rows


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
