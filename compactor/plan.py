"""Planning a partition's job: what there is, what to merge, what may be deleted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from compactor.backlog import BatchLimit, take_segments
from compactor.lost import lost_manifest
from compactor.memory import MemoryBudget
from compactor.merging.deleted import whole_tombstones
from compactor.merging.merge import merge_tables
from logstore.errors import CorruptObjectError, ObjectNotFoundError
from logstore.keys import partition_manifest_key, run_prefix, tables_prefix
from logstore.manifest import PartitionManifest, RunEntry
from logstore.objects.base import ObjectInfo
from logstore.records import SCHEMA
from logstore.runs import RunReader
from logstore.segment import SEGMENT_SCHEMA, with_arrival
from logstore.store import LogStore, Settings
from logstore.tail import Listing, StartAgain, Tail

FAN_OUT = 8
"""So many runs of a level are merged into one of the next."""


@dataclass(frozen=True)
class Plan:
    """What a job knows of its partition before it changes anything."""

    partition: int
    settings: Settings
    manifest: PartitionManifest
    etag: str | None
    """Names the version of the partition manifest that the job began from."""
    listing: Listing
    tail: Tail
    """The segments to merge, without their rows."""
    fresh: pa.Table
    """Their rows, sorted and without repetitions."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Segments that stay where they are, and why."""

    @property
    def generation(self) -> int:
        """The generation that this job will commit."""
        return self.manifest.generation + 1

    def expired(self, run_grace_s: float) -> PartitionManifest:
        """The part of the manifest that lists what may be deleted now.

        Args:
            run_grace_s: how long runs that were replaced are kept.
        """
        now = self.listing.date
        return replace(
            self.manifest,
            merged=_older(self.manifest.merged, now - self.settings.short_grace_s),
            retired=_older(self.manifest.retired, now - run_grace_s),
        )

    @property
    def left(self) -> int:
        """How many of the log's segments it leaves to the next commit."""
        done = {*self.manifest.merged, *self.tail.segments, *self.unreadable}
        return len(self.listing.arrived.keys() - done)


def make_plan(
    store: LogStore, settings: Settings, partition: int, limit: BatchLimit | None = None
) -> Plan:
    """Read the partition manifest, then list the log, and take a closed set of segments.

    Raises:
        StartAgain: another job deleted a segment meanwhile.
    """
    manifest, etag = store.reader.partition_manifest(partition)
    return plan_from(store, settings, manifest, etag, limit)


def plan_without_segments(store: LogStore, settings: Settings, partition: int) -> Plan:
    """Plan a commit that leaves all segments where they are."""
    manifest, etag = store.reader.partition_manifest(partition)
    listing = store.log.list(partition)
    return Plan(
        partition, settings, manifest, etag, listing, Tail({}, {}, False), SCHEMA.empty_table()
    )


def plan_from(
    store: LogStore,
    settings: Settings,
    manifest: PartitionManifest,
    etag: str | None,
    limit: BatchLimit | None = None,
) -> Plan:
    """Plan a job that begins from a partition manifest.

    Raises:
        StartAgain: another job deleted a segment meanwhile.
    """
    partition = manifest.partition
    listing = store.log.list(partition)
    unreadable: dict[str, str] = {}

    def skip(key: str, error: CorruptObjectError) -> None:
        unreadable[key] = str(error)

    limit = limit or BatchLimit(MemoryBudget().batch)
    tail = take_segments(store.log, listing, manifest.merged, limit, skip)
    if tail.gone and manifest_etag(store, partition) != etag:
        raise StartAgain
    fresh = merge_tables(
        [
            SCHEMA.empty_table(),
            *(with_arrival(s.table, tail.arrived[key]) for key, s in tail.segments.items()),
        ]
    )
    bare = {
        key: replace(segment, table=SEGMENT_SCHEMA.empty_table())
        for key, segment in tail.segments.items()
    }
    tail = replace(tail, segments=bare)
    return Plan(partition, settings, manifest, etag, listing, tail, fresh, unreadable)


def last_commit(store: LogStore, partition: int) -> float | None:
    """When a partition's manifest was last replaced, by the store's clock; None for never."""
    try:
        return store.objects.get(partition_manifest_key(partition)).modified
    except ObjectNotFoundError:
        return None


def manifest_etag(store: LogStore, partition: int) -> str | None:
    """Which version of the partition manifest there is, readable or not; None for none."""
    try:
        return store.objects.get(partition_manifest_key(partition)).etag
    except ObjectNotFoundError:
        return None


def _older(entries: Mapping[str, float | None], limit: float) -> dict[str, float | None]:
    return {key: since for key, since in entries.items() if since is not None and since <= limit}


@dataclass(frozen=True, slots=True)
class Tier:
    """Which runs a job merges, and at which level its own are."""

    sequences: tuple[tuple[RunEntry, ...], ...]
    """Sorted sequences, each of one or more runs."""
    level: int
    rewritten: tuple[RunEntry, ...] = ()
    """Others that hold threads with a new tombstone: each is written anew without them."""

    @property
    def inputs(self) -> tuple[RunEntry, ...]:
        """The runs of all sequences."""
        return tuple(run for runs in self.sequences for run in runs)


def choose_tier(manifest: PartitionManifest, runs: RunReader, deleted: Sequence[str]) -> Tier:
    """Size tiers: a level that is full is merged upwards, so that each byte is rewritten
    O(log N) times. A run that holds a thread that was deleted is rewritten at once, alone.

    Args:
        manifest: the live runs.
        runs: tells which runs hold a thread.
        deleted: the threads with a new tombstone.
    """
    level = 0
    sequences: list[tuple[RunEntry, ...]] = []
    while len(same := _sequences(manifest, level)) + 1 >= FAN_OUT:
        sequences += same
        level += 1
    rest = (run for run in manifest.runs if run.level >= level)
    rewritten = tuple(run for run in rest if holds_any(run, runs, deleted))
    return Tier(tuple(sequences), level, rewritten)


def _sequences(manifest: PartitionManifest, level: int) -> list[tuple[RunEntry, ...]]:
    """A level's runs, those that were cut from one sorted sequence together and in its order."""
    found: dict[str, list[RunEntry]] = defaultdict(list)
    for run in manifest.runs:
        if run.level == level:
            found[run.sequence or run.key].append(run)
    return [tuple(sorted(runs, key=lambda run: run.part)) for runs in found.values()]


def holds_any(run: RunEntry, runs: RunReader, threads: Sequence[str]) -> bool:
    """Whether a run has rows of one of the threads."""
    candidates = [thread for thread in threads if run.may_hold(thread)]
    if not candidates:
        return False
    wanted = pa.array(candidates, pa.string())
    return any(
        pc.any(pc.is_in(table["thread_id"], wanted)).as_py()
        for table in runs.columns(run, ["thread_id"])
    )


def deleted_threads(table: pa.Table) -> list[str]:
    """The threads that new records delete."""
    threads: list[str] = pc.unique(whole_tombstones(table)["thread_id"]).to_pylist()
    return threads


def orphans(store: LogStore, plan: Plan, *, tables: bool = False) -> list[str]:
    """Runs, and files of kept tables, that nothing names and that are older than the long grace.

    They were left by jobs that lost or were killed. A younger one may belong to a job that
    is about to commit.

    Args:
        store: the store.
        plan: of the partition.
        tables: whether to look for files of kept tables although none are named.

    Raises:
        CorruptObjectError: a run was made when a newer manifest existed: that one was lost, and
            the run may be its.
        StartAgain: another job committed meanwhile.
    """
    named = {run.key for run in plan.manifest.runs} | plan.manifest.retired.keys()
    unnamed = _unnamed(store, run_prefix(plan.partition), named)
    for info in unnamed:
        _refuse_if_newer(store, plan, info)
    kept = plan.manifest.kept.files
    if kept or tables:
        unnamed += _unnamed(store, tables_prefix(plan.partition), named | kept.keys())
    limit = plan.listing.date - plan.settings.long_grace_s
    return [info.key for info in unnamed if info.modified < limit]


def _unnamed(store: LogStore, prefix: str, named: Collection[str]) -> list[ObjectInfo]:
    return [i for page in store.objects.list(prefix) for i in page.objects if i.key not in named]


def _refuse_if_newer(store: LogStore, plan: Plan, run: ObjectInfo) -> None:
    """Make sure that a run does not come from a newer partition manifest than there is."""
    try:
        reason = lost_manifest(store, plan.manifest, plan.listing, run)
    except CorruptObjectError:
        return  # nothing names it, so nobody misses it
    if reason is None:
        return
    if manifest_etag(store, plan.partition) != plan.etag:
        raise StartAgain
    raise CorruptObjectError(
        f"the manifest {partition_manifest_key(plan.partition)} is not as it was: {reason}. "
        "Restore it from a version or copy of the bucket, or run `compactor rebuild`"
    )
