"""Dropping what tombstones delete, vectorised in Arrow."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from logstore.records import Kind, Tombstone


def whole_tombstones(table: pa.Table) -> pa.Table:
    """The rows of a table that delete a thread."""
    found = table.filter(pc.equal(table["kind"], Kind.TOMBSTONE))
    whole = [Tombstone.from_json(cover).is_whole for cover in found["cover"].to_pylist()]
    return found.filter(pa.array(whole, pa.bool_()))


def drop_deleted(table: pa.Table, tombstones: pa.Table) -> pa.Table:
    """Drop the rows that tombstones delete.

    Rows elsewhere stay deleted by the tombstone's row, which readers apply to all.

    Args:
        table: rows of a run.
        tombstones: all that are known to delete the same threads.
    """
    if not tombstones.num_rows:
        return table
    deleted = _deleted_positions(tombstones)
    keys = table.select(["thread_id", "writer", "seq", "kind"]).append_column(
        "row", pa.array(range(table.num_rows), pa.int64())
    )
    joined = keys.join(deleted, ["thread_id", "writer"], join_type="inner")
    mask = pc.and_(
        pc.less_equal(joined["seq"], joined["position"]),
        pc.invert(pc.is_in(joined["kind"], pa.array([Kind.TOMBSTONE, Kind.SNAPSHOT]))),
    )
    rows = joined.filter(mask)["row"]
    # A snapshot that was folded before the delete is of no use to anyone.
    buried = pc.and_(
        pc.equal(table["kind"], Kind.SNAPSHOT),
        pc.is_in(table["thread_id"], pc.unique(tombstones["thread_id"])),
    )
    gone = pc.or_(pc.is_in(keys["row"], rows), pc.and_(buried, _folded_before(table, tombstones)))
    return table.filter(pc.invert(gone))


def _deleted_positions(tombstones: pa.Table) -> pa.Table:
    """For each thread and writer the greatest position that a tombstone deletes."""
    threads: list[str] = []
    writers: list[str] = []
    positions: list[int] = []
    for thread_id, cover in zip(
        tombstones["thread_id"].to_pylist(), tombstones["cover"].to_pylist(), strict=True
    ):
        for writer, position in Tombstone.from_json(cover).positions.items():
            threads.append(thread_id)
            writers.append(writer)
            positions.append(position)
    table = pa.table(
        {
            "thread_id": pa.array(threads, pa.string()),
            "writer": pa.array(writers, pa.string()),
            "position": pa.array(positions, pa.int64()),
        }
    )
    grouped = table.group_by(["thread_id", "writer"]).aggregate([("position", "max")])
    return grouped.rename_columns({"position_max": "position"})


def _folded_before(table: pa.Table, tombstones: pa.Table) -> pa.ChunkedArray:
    """Which snapshots had not seen all of their thread's tombstones."""
    counted = tombstones.group_by("thread_id").aggregate([("stamp", "count_distinct")])
    wanted = pc.index_in(table["thread_id"], counted["thread_id"])
    graves = pc.take(counted["stamp_count_distinct"], wanted)
    seen = pc.extract_regex(table["cover"], r'"graves":(?P<graves>\d+)')
    number = pc.cast(pc.struct_field(seen, "graves"), pa.int64())
    return pc.fill_null(pc.less(pc.fill_null(number, 0), graves), False)
