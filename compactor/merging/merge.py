"""Merging sorted streams of rows into one, vectorised in Arrow and in bounded memory.

Segments and runs are read a piece at a time. What lies before the last row of every piece
can have no repetition in what was not read yet, so it is joined, sorted and passed on as a
*window*, and the pieces that are used up are followed by the next.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from compactor.merging.deleted import drop_deleted, whole_tombstones
from logstore.records import SCHEMA, Encoding, Kind

_KEYS = [
    "thread_id",
    "checkpoint_ns",
    "checkpoint_id",
    "kind",
    "k_channel",
    "k_version",
    "k_task",
    "k_idx",
    "k_stamp",
    "k_writer",
]
"""What rows are sorted by, and what of two rows only one stays with.

They are finer than `key_of`: a record stays although it lost a clash, because readers may
need it. A late copy of a dropped one would win over its successor; a patch may have been
made against it; a delete may hide the winner and not it. Only of snapshots one a key stays.
"""
_ORDER = [(name, "ascending") for name in [*_KEYS, "k_age", "k_younger", "arrived", "k_plain"]]
RowKey = tuple[Any, ...]


def merge_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """The union of tables in memory, sorted and without repetitions.

    A record that is met twice counts once, with its first arrival. Of two copies of one
    arrival the one stays that was re-based.

    Args:
        tables: with the columns of `SCHEMA`, `arrived` filled in.
    """
    return _joined([_with_keys(table) for table in tables]).select(SCHEMA.names)


def merge_streams(
    streams: Iterable[Iterator[pa.Table]], tombstones: pa.Table | None = None
) -> Iterator[pa.Table]:
    """Merge sorted streams: the union, sorted, without repetitions and what was deleted.

    Args:
        streams: each gives tables of `SCHEMA`, in the order of one sorted table.
        tombstones: those that delete rows besides the ones in the streams.
    """
    graves = _Graves(tombstones)
    cursors = [cursor for cursor in map(_Cursor, streams) if cursor.rows.num_rows]
    while cursors:
        ends = {id(cursor): cursor.last for cursor in cursors if not cursor.ended}
        limit = min(ends.values(), default=None)
        parts = [cursor.take_before(limit) for cursor in cursors]
        for cursor in cursors:
            if ends.get(id(cursor)) == limit:
                cursor.load()
        cursors = [cursor for cursor in cursors if cursor.rows.num_rows]
        filled = [part for part in parts if part.num_rows]
        if filled:
            window = filled[0] if len(filled) == 1 else _joined(filled)
            window = window.select(SCHEMA.names)
            window = drop_deleted(window, graves.over(window))
            if window.num_rows:
                yield window


class _Cursor:
    """A place in a sorted stream: the rows that were read and not passed on yet."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables = tables
        self.rows = _with_keys(SCHEMA.empty_table())
        self.ended = False
        self.load()

    @property
    def last(self) -> RowKey:
        return _key_at(self.rows, self.rows.num_rows - 1)

    def load(self) -> None:
        """Read the next piece."""
        for table in self._tables:
            if table.num_rows:
                self.rows = pa.concat_tables([self.rows, _with_keys(table)])
                return
        self.ended = True

    def take_before(self, limit: RowKey | None) -> pa.Table:
        """Pass on the rows before a key; all for None."""
        number = self.rows.num_rows
        if limit is not None:
            number = bisect_left(range(number), limit, key=lambda row: _key_at(self.rows, row))
        taken, self.rows = self.rows.slice(0, number), self.rows.slice(number)
        return taken


class _Graves:
    """The tombstones that delete rows of a window.

    A thread's tombstones come before its other rows; the last thread of a window may go on.
    """

    def __init__(self, given: pa.Table | None) -> None:
        self._given = SCHEMA.empty_table() if given is None else given
        self._carried = SCHEMA.empty_table()

    def over(self, window: pa.Table) -> pa.Table:
        """All that are known of the window's threads."""
        threads = window["thread_id"]
        met = whole_tombstones(window)
        known = pa.concat_tables([self._given, self._carried, met])
        self._carried = pa.concat_tables([self._carried, met]).filter(
            pc.equal(pc.field("thread_id"), threads[-1])
        )
        return known.filter(pc.is_in(known["thread_id"], pc.unique(threads)))


def _key_at(table: pa.Table, row: int) -> RowKey:
    return tuple(table[name][row].as_py() for name in _KEYS)


def _with_keys(table: pa.Table) -> pa.Table:
    """The table with the columns that only sorting needs, empty where a kind has none."""
    is_write = pc.equal(table["kind"], Kind.WRITE)
    is_snapshot = pc.equal(table["kind"], Kind.SNAPSHOT)
    version = pc.binary_join_element_wise("v", table["version"], "")
    keys = {
        "k_channel": pc.if_else(is_write, "", pc.fill_null(table["channel"], "")),
        # A value without a version is told from one whose version is empty.
        "k_version": pc.if_else(pc.is_null(table["version"]), "-", version),
        "k_task": pc.fill_null(table["task_id"], ""),
        "k_idx": pc.fill_null(table["idx"], -(2**31)),
        "k_stamp": pc.if_else(is_snapshot, 0, table["stamp"]),
        "k_writer": pc.if_else(is_snapshot, "", table["writer"]),
        "k_age": pc.if_else(is_snapshot, pc.negate(table["seq"]), 0),
        "k_younger": pc.if_else(is_snapshot, pc.negate(table["stamp"]), 0),
        "k_plain": _is_plain(table),
    }
    for name, column in keys.items():
        table = table.append_column(name, column)
    return table


def _is_plain(table: pa.Table) -> pa.ChunkedArray:
    """Which rows re-basing has not changed: values without a number, writes stored whole."""
    is_write = pc.equal(table["kind"], Kind.WRITE)
    is_whole = pc.equal(table["encoding"], Encoding.RAW)
    return pc.if_else(is_write, is_whole, pc.is_null(table["ordinal"]))


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Sort, and keep of equal keys the first."""
    table = pa.concat_tables(tables)
    work = table.select([name for name, _ in _ORDER]).combine_chunks()
    order = pc.sort_indices(work, _ORDER)
    return table.take(order.filter(_first_of_each(work.select(_KEYS).take(order))))


def _first_of_each(keys: pa.Table) -> pa.Array:
    """Which rows differ from the one before them."""
    if keys.num_rows == 0:
        return pa.array([], pa.bool_())
    changes = [
        pc.not_equal(column.slice(1), column.slice(0, keys.num_rows - 1))
        for column in (keys[name].combine_chunks() for name in _KEYS)
    ]
    changed = reduce(pc.or_, changes)
    return pa.concat_arrays([pa.array([True]), changed])
