"""Which rows do not show: a deletion vector for each source of a partition.

There is one set of rules, `logstore.view.ThreadView`. Most threads need none of them: no
tombstone, no two records of one key, nothing without its checkpoint, nothing taken back. Such
threads are told from the others by columns, and all of their rows show. The others, the
*contested* ones, are read as views, and what their views do not show goes into the vectors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from logstore.analytics.sources import GROUP, ROW, SOURCE, RunSource, aligned, threads_of
from logstore.records import Encoding, Kind
from logstore.view import ThreadView

DeletionVectors = Mapping[tuple[int, int], pa.Array]
"""For each source and row group with rows that do not show: their places in it, ascending."""

_PLACE = ["thread_id", "checkpoint_ns", "checkpoint_id"]
_KEYS: Mapping[Kind, list[str]] = {
    Kind.WRITE: [*_PLACE, "task_id", "idx"],
    Kind.SNAPSHOT: [*_PLACE, "channel"],
    Kind.BLOB: ["thread_id", "checkpoint_ns", "channel", "version", "unversioned_at"],
}
"""`logstore.records.key_of`, in columns."""
PLAIN_COLUMNS = [*_PLACE, "kind", "channel", "version", "task_id", "idx", "encoding"]
"""The columns by which `contested_threads` judges."""


@dataclass(frozen=True)
class Visibility:
    """What of some sources does not show as it is stored."""

    hidden: DeletionVectors
    """Rows that do not show, and boundaries."""
    boundaries: DeletionVectors
    """Checkpoints whose parent is hidden: they show as roots."""


def visibility(sources: Sequence[RunSource], doubtful: pa.Array | None = None) -> Visibility:
    """Find the rows of the sources that do not show as they are stored.

    Args:
        sources: all records of the threads.
        doubtful: the threads that may have such rows; all by default.

    Raises:
        StartAgain: a run is gone.
        CorruptObjectError: one cannot be read.
    """
    hidden: dict[tuple[int, int], list[int]] = defaultdict(list)
    boundaries: dict[tuple[int, int], list[int]] = defaultdict(list)
    if doubtful is not None and not len(doubtful):
        return Visibility({}, {})
    contested = [
        name
        for table in aligned(sources, PLAIN_COLUMNS, doubtful)
        for name in contested_threads(table)
    ]
    if not contested:
        return Visibility({}, {})
    for thread_id, rows, records in threads_of(
        sources, pa.array(contested, pa.string()), values=False
    ):
        view = ThreadView(thread_id, records)
        shown = {id(record) for record in view.visible()}
        addresses = zip(*(rows[name].to_pylist() for name in (SOURCE, GROUP, ROW)), strict=True)
        for record, (source, group, row) in zip(records, addresses, strict=True):
            shows = id(record) in shown
            as_root = shows and record.kind == Kind.CHECKPOINT and view.is_boundary(record)
            if as_root:
                boundaries[(source, group)].append(row)
            if as_root or not shows:
                hidden[(source, group)].append(row)
    return Visibility(_vectors(hidden), _vectors(boundaries))


def _vectors(found: Mapping[tuple[int, int], list[int]]) -> DeletionVectors:
    return {place: pa.array(sorted(rows), pa.int64()) for place, rows in found.items()}


def contested_threads(rows: pa.Table) -> Iterator[str]:
    """The threads that only a view can judge, of a table of whole threads."""
    marked = pc.or_(
        pc.equal(rows["kind"], Kind.TOMBSTONE.value),
        pc.equal(rows["encoding"], Encoding.VOID.value),
    )
    doubtful = [rows["thread_id"].filter(marked), _misplaced(rows)]
    doubtful += [_repeated(rows.filter(pc.equal(rows["kind"], k.value)), k) for k in _KEYS]
    yield from pc.unique(
        pa.chunked_array([c for part in doubtful for c in part.chunks], pa.string())
    ).to_pylist()


def _misplaced(rows: pa.Table) -> pa.ChunkedArray:
    """Threads with two checkpoints of one id, or with records at none."""
    is_checkpoint = pc.equal(rows["kind"], Kind.CHECKPOINT.value).cast(pa.int64())
    places = rows.select(_PLACE).append_column("checkpoints", is_checkpoint).group_by(_PLACE)
    counted = places.aggregate([("checkpoints", "sum")])
    return counted.filter(pc.not_equal(counted["checkpoints_sum"], 1))["thread_id"]


def _repeated(rows: pa.Table, kind: Kind) -> pa.ChunkedArray:
    """Threads with two records of one key."""
    if kind == Kind.BLOB:
        at = pc.if_else(pc.is_null(rows["version"]), rows["checkpoint_id"], "")
        rows = rows.append_column("unversioned_at", at)
    counted = rows.group_by(_KEYS[kind]).aggregate([([], "count_all")])
    return counted.filter(pc.greater(counted["count_all"], 1))["thread_id"]
