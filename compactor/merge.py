"""Merging segments and runs into one sorted run, vectorised in Arrow.

The rules are those of `logstore.records`, written for columns: rows of which one may stay
become neighbours by sorting, that one first, and every later neighbour is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from logstore.records import SCHEMA, Kind, Tombstone
from logstore.segment import parquet_metadata

ROW_GROUP_BYTES = 8 << 20
ROW_GROUP_ROWS = 50_000
_COMPRESSION_LEVEL = 9
_PAGE_BYTES = 1 << 20
_DICTIONARY_COLUMNS = [
    "thread_id",
    "checkpoint_ns",
    "checkpoint_id",
    "parent_checkpoint_id",
    "kind",
    "channel",
    "task_path",
    "type",
    "encoding",
    "metadata_type",
    "run_id",
    "source",
    "writer",
]
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


def merge_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Merge tables of records: the union, sorted, without repetitions and what was deleted.

    Args:
        tables: with the columns of `SCHEMA`, `arrived` filled in.
    """
    table = pa.concat_tables(tables)
    return _without_repetitions(_drop_deleted(table))


def whole_tombstones(table: pa.Table) -> pa.Table:
    """The rows of a table that delete a thread."""
    found = table.filter(pc.equal(table["kind"], Kind.TOMBSTONE))
    whole = [Tombstone.from_json(cover).is_whole for cover in found["cover"].to_pylist()]
    return found.filter(pa.array(whole, pa.bool_()))


def _drop_deleted(table: pa.Table) -> pa.Table:
    """Drop the rows that tombstones in the same table delete.

    Rows elsewhere stay deleted by the tombstone's row, which readers apply to all.
    """
    tombstones = whole_tombstones(table)
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


def _without_repetitions(table: pa.Table) -> pa.Table:
    """Sort, and keep of equal keys the first."""
    work = table.append_column("k_rank", _ranks(table))
    for name, column in _key_columns(table).items():
        work = work.append_column(name, column)
    order = pc.sort_indices(work, [(key, "ascending") for key in [*_KEYS, "k_rank"]])
    work = work.select([*_KEYS]).take(order).combine_chunks()
    kept = order.filter(_first_of_each(work))
    return table.take(kept)


def _key_columns(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    """The columns of which only one row may stay, empty where a kind does not use them.

    They are finer than `key_of`: a record stays although it lost a clash, because readers may
    need it. A late copy of a dropped one would win over its successor; a patch may have been
    made against it; a delete may hide the winner and not it. Only of snapshots one a key stays.
    """
    is_write = pc.equal(table["kind"], Kind.WRITE)
    is_snapshot = pc.equal(table["kind"], Kind.SNAPSHOT)
    version = pc.binary_join_element_wise("v", table["version"], "")
    return {
        "k_channel": pc.if_else(is_write, "", pc.fill_null(table["channel"], "")),
        # A value without a version is told from one whose version is empty.
        "k_version": pc.if_else(pc.is_null(table["version"]), "-", version),
        "k_task": pc.fill_null(table["task_id"], ""),
        "k_idx": pc.fill_null(table["idx"], -(2**31)),
        "k_stamp": pc.if_else(is_snapshot, 0, table["stamp"]),
        "k_writer": pc.if_else(is_snapshot, "", table["writer"]),
    }


def _ranks(table: pa.Table) -> pa.Array:
    """A number a row that is least for the row that stays."""
    arrival = _places(table, ["arrived", "stamp", "writer"])
    generation = _places(table, ["seq", "stamp", "writer"])
    is_snapshot = pc.equal(table["kind"], Kind.SNAPSHOT)
    return pc.if_else(is_snapshot, pc.negate(generation), arrival)


def _places(table: pa.Table, columns: list[str]) -> pa.Array:
    order = pc.sort_indices(table, [(name, "ascending") for name in columns])
    return pc.inverse_permutation(order.cast(pa.int64())).cast(pa.int64())


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


def write_run(table: pa.Table, meta: dict[str, str | int]) -> bytes:
    """Write a merged table as the body of a run.

    Args:
        table: what `merge_tables` gave.
        meta: what to note in the file besides the format.
    """
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        SCHEMA,
        compression="zstd",
        compression_level=_COMPRESSION_LEVEL,
        use_dictionary=_DICTIONARY_COLUMNS,
        data_page_size=_PAGE_BYTES,
        write_batch_size=128,
        write_page_checksum=True,
        sorting_columns=pq.SortingColumn.from_ordering(
            SCHEMA, [("thread_id", "ascending"), ("checkpoint_ns", "ascending")]
        ),
    ) as writer:
        for start, length in _row_groups(table):
            writer.write_table(table.slice(start, length), row_group_size=length)
        writer.add_key_value_metadata(parquet_metadata(meta))
    body: bytes = sink.getvalue().to_pybytes()
    return body


def _row_groups(table: pa.Table) -> Iterator[tuple[int, int]]:
    """Offsets and lengths of row groups, capped by bytes and by rows."""
    sizes = pc.add(
        pc.fill_null(pc.binary_length(table["value"]), 0),
        pc.fill_null(pc.binary_length(table["metadata_value"]), 0).cast(pa.int64()),
    )
    by_bytes = pc.divide(pc.cumulative_sum(sizes), ROW_GROUP_BYTES)
    by_rows = pc.divide(pa.array(range(table.num_rows), pa.int64()), ROW_GROUP_ROWS)
    group = pc.add(pc.multiply(by_bytes, 1 << 32), by_rows)
    runs = pc.run_end_encode(group.combine_chunks() if table.num_rows else group)
    start = 0
    ends = runs.run_ends if isinstance(runs, pa.RunEndEncodedArray) else []
    for end in (int(e.as_py()) for e in ends):
        yield start, end - start
        start = end
