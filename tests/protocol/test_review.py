"""The sequences that broke the protocol's first draft, each on the real code.

Each section plays one of them out, request by request: first with the rule that prevents
it, then with that single rule taken out, which must bring the wrong result back; otherwise
the test would have no teeth.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import compactor.job
import compactor.publishing.publish
import logstore.clock
import logstore.reader
import logstore.records
import logstore.view
import logstore.walk
from compactor.plan import orphans
from compactor.publishing.publish import LostJob, Publisher
from logstore import MissingDataError
from logstore.errors import ConditionFailedError
from logstore.keys import SegmentName, partition_manifest_key, snapshot_manifest_key
from logstore.lineage import Lineage
from logstore.manifest import PartitionManifest, SnapshotManifest
from logstore.objects.base import ObjectStore
from logstore.objects.file import FileObjectStore
from logstore.reader import Elapsed
from logstore.records import Kind, Record
from logstore.store import LogStore
from logstore.testing.wrappers import Fault, FaultyStore, PausingStore, SkewedClockStore
from tests.protocol.stores import DeleteWatch, TornListStore, retrying
from tests.protocol.world import (
    COMMITTED,
    LOST,
    THREAD,
    Call,
    Delete,
    World,
    Writes,
    config_of,
    conversation,
    head_value,
    id_of,
    is_log_list,
    is_partition_swap,
    is_segment_put,
    is_snapshot_swap,
    model_of,
    plan,
    play,
    running,
    told,
    written,
)

YEAR_S = 365 * 86_400.0


# -- 1: the commit went through, its answer was lost -----------------------------------


def unanswered(inner: ObjectStore, fault: Fault) -> ObjectStore:
    faulty = FaultyStore(inner)
    faulty.fail_when(is_partition_swap, fault, times=1)
    return faulty


def test_a_commit_whose_answer_was_lost_and_whose_retry_is_refused_counts(world: World) -> None:
    calls = conversation(5)
    written(world, calls)
    objects = retrying(unanswered(world.objects, Fault.DROPPED_ANSWER))
    assert world.compact(objects=objects).outcome == COMMITTED
    world.agree(model_of(*calls))


def test_a_commit_whose_answer_was_lost_counts_when_the_manifest_names_the_job(
    world: World,
) -> None:
    calls = conversation(5)
    written(world, calls)
    objects = unanswered(world.objects, Fault.DROPPED_ANSWER)
    assert world.compact(objects=objects).outcome == COMMITTED
    world.agree(model_of(*calls))


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.LATE])
def test_a_commit_that_never_arrived_is_lost_and_the_next_job_does_it(
    world: World, fault: Fault
) -> None:
    calls = conversation(5)
    written(world, calls)
    assert world.compact(objects=unanswered(world.objects, fault)).outcome == LOST
    world.agree(model_of(*calls))
    assert world.compact().outcome == COMMITTED
    world.agree(model_of(*calls))


def test_a_commit_that_lands_after_its_job_gave_up_loses_nothing(world: World) -> None:
    calls = conversation(5)
    written(world, calls)
    late = FaultyStore(world.objects)
    late.fail_when(is_partition_swap, Fault.LATE, times=1)
    assert world.compact(objects=late).outcome == LOST
    late.land()
    world.agree(model_of(*calls))
    world.compact()
    world.agree(model_of(*calls))


@pytest.mark.usefixtures("impatient")
def test_if_a_loser_discarded_its_runs_a_lost_answer_would_delete_live_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def discard(store: LogStore, manifest: PartitionManifest, etag: str | None) -> int:
        key, body = partition_manifest_key(0), manifest.encode()
        try:
            store.objects.compare_and_swap(key, body, etag)
        except ConditionFailedError:
            mine = [r.key for r in manifest.runs if r.generation == manifest.generation]
            store.objects.delete(mine)
            raise LostJob from None
        return len(body)

    monkeypatch.setattr(compactor.job, "commit", discard)
    written(world, conversation(5))
    objects = retrying(unanswered(world.objects, Fault.DROPPED_ANSWER))
    assert world.compact(objects=objects).outcome == LOST
    with world.saver() as reader, pytest.raises(MissingDataError):
        told(reader)


# -- 2: merged and deleted between the manifest and the LIST ---------------------------


def read_across_a_compaction(world: World) -> Any:
    """Read a head whose LIST comes after its segments were merged and deleted."""
    pausing = PausingStore(world.objects)
    reader = world.saver(lambda objects: pausing)
    reader.store.settings()
    with pausing.hold(is_log_list) as listing, running(lambda: head_value(reader)) as read:
        listing.wait_until_blocked()
        time.sleep(0.05)  # the manifest's GET, which is sent beside the LIST, is answered
        assert world.compact().outcome == COMMITTED
        assert world.compact().segments_deleted
        assert not world.segments()
        listing.release()
        return read.result()


@pytest.mark.parametrize("compacted", [0, 4])
def test_a_segment_merged_and_deleted_between_manifest_and_list_is_read(
    world: World, compacted: int
) -> None:
    calls = conversation(compacted) if compacted else []
    written(world, calls)
    world.compact() if compacted else None
    world.compact() if compacted else None
    more = conversation(4, begin=compacted)
    written(world, more)
    assert read_across_a_compaction(world) == head_value(model_of(*calls, *more))


def test_without_the_second_manifest_read_an_acknowledged_head_is_missed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Elapsed, "seconds", lambda self: -1.0)
    written(world, conversation(4))
    assert read_across_a_compaction(world) is None


# -- 3: a newer snapshot that does not cover a late write ------------------------------


def late_write_between_two_jobs(world: World) -> list[Call]:
    """Two jobs plan, one without and one with a late write below a snapshot; both publish.

    The one without it publishes last, and commits.
    """
    calls: list[Call] = conversation(5)
    written(world, calls)
    without = PausingStore(world.objects)
    second = world.planned(objects=without)
    late = Writes(THREAD, id_of(1), ("late",), task="zz late")
    written(world, [late])
    first_store = PausingStore(world.objects)
    first = world.planned(objects=first_store)
    with (
        without.hold(is_snapshot_swap()) as swap,
        first_store.hold(is_partition_swap) as commit,
        running(second.run) as running_second,
    ):
        swap.wait_until_blocked()
        with running(first.run) as running_first:
            commit.wait_until_blocked()  # its manifest has the late write now
            swap.release()
            assert running_second.result().outcome == COMMITTED
            commit.release()
            with pytest.raises(LostJob):
                running_first.result()
    return [*calls, late]


def test_a_newer_snapshot_never_replaces_one_that_covers_a_late_write(world: World) -> None:
    calls = late_write_between_two_jobs(world)
    with world.saver() as reader:
        assert head_value(reader) == head_value(model_of(*calls))
    world.agree(model_of(*calls))


def test_a_late_write_stays_when_the_job_that_saw_it_lost_and_the_next_one_commits(
    world: World,
) -> None:
    calls = late_write_between_two_jobs(world)
    for _ in range(3):
        world.compact()
        world.agree(model_of(*calls))


def test_a_late_write_stays_when_the_job_that_saw_it_published_last_and_lost(
    world: World,
) -> None:
    # As above, with the two in the other order: the job that did not see the late write
    # publishes first and commits last.
    calls: list[Call] = conversation(5)
    written(world, calls)
    pausing = PausingStore(world.objects)
    blind = world.planned(objects=pausing)
    late = Writes(THREAD, id_of(1), ("late",), task="zz late")
    written(world, [late])
    seeing_store = PausingStore(world.objects)
    seeing = world.planned(objects=seeing_store)
    with (
        pausing.hold(is_partition_swap) as commit,
        seeing_store.hold(is_partition_swap) as lost,
        running(blind.run) as blind_run,
    ):
        commit.wait_until_blocked()
        with running(seeing.run) as seeing_run:
            lost.wait_until_blocked()
            commit.release()
            assert blind_run.result().outcome == COMMITTED
            lost.release()
            with pytest.raises(LostJob):
                seeing_run.result()
    model = model_of(*calls, late)
    for _ in range(3):
        world.agree(model)
        world.compact()
    world.agree(model)


@pytest.mark.usefixtures("impatient")
def test_a_job_that_does_not_decide_anew_takes_a_late_write_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = Publisher._advance
    first: dict[int, SnapshotManifest] = {}

    def stubborn(self: Publisher, old: SnapshotManifest, *rest: Any) -> SnapshotManifest:
        known = first.setdefault(id(self), old)
        return decide(self, replace(known, generation=old.generation), *rest)

    monkeypatch.setattr(Publisher, "_advance", stubborn)
    monkeypatch.setattr(compactor.publishing.large_values, "LARGE_BYTES", 0)
    calls = late_write_between_two_jobs(world)
    # The manifest no longer names the late write's segment, and readers fetch it again;
    # what the other job's manifest vouched for is gone.
    assert "late" in (head_value(model_of(*calls)) or [])
    late_segment = max(world.segments(), key=lambda key: SegmentName.parse(key).stamp)
    assert late_segment not in world.snapshot_manifest().merged


# -- 4: garbage collection beside a job that sleeps ------------------------------------


def test_a_job_whose_run_was_condemned_while_it_slept_loses(world: World) -> None:
    calls = conversation(5)
    written(world, calls)
    pausing = PausingStore(world.objects)
    sleeper = world.planned(objects=pausing)
    with pausing.hold(is_partition_swap) as commit, running(sleeper.run) as sleeping:
        commit.wait_until_blocked()
        (run,) = world.keys("runs/")
        assert world.compact().objects_deleted == 1
        assert run not in world.keys("runs/")
        commit.release()
        with pytest.raises(LostJob):
            sleeping.result()
    world.agree(model_of(*calls))
    world.compact()
    world.agree(model_of(*calls))


@pytest.mark.usefixtures("impatient")
def test_deleting_what_nothing_names_without_condemning_it_breaks_a_sleeping_job(
    world: World,
) -> None:
    written(world, conversation(5))
    pausing = PausingStore(world.objects)
    sleeper = world.planned(objects=pausing)
    with pausing.hold(is_partition_swap) as commit, running(sleeper.run) as sleeping:
        commit.wait_until_blocked()
        collector = world.planned()
        collector._store.objects.delete(orphans(collector._store, collector._plan))
        commit.release()
        assert sleeping.result().outcome == COMMITTED
    with world.saver() as reader, pytest.raises(MissingDataError):
        told(reader)


# -- 5: a manifest that comes back to the bytes it had ---------------------------------


def condemn_and_strike_off(world: World, *, generations: bool) -> str:
    """A collector condemns a sleeping job's run, deletes it, and strikes it off.

    Args:
        generations: whether each version of the manifest has a generation and job of its own.

    Returns:
        How the sleeper's commit ended.
    """
    written(world, conversation(3))
    world.compact()
    written(world, conversation(3, begin=3))
    pausing = PausingStore(world.objects)
    sleeper = world.planned(objects=pausing)
    store = world.store()
    key = partition_manifest_key(0)
    with pausing.hold(is_partition_swap) as commit, running(sleeper.run) as sleeping:
        commit.wait_until_blocked()
        begun = store.objects.get(key)
        before = PartitionManifest.decode(key, begun.data)
        doomed = tuple(orphans(store, plan(store)))
        assert doomed
        etag = begun.etag
        for number, condemned in enumerate([doomed, ()], start=1):
            version = replace(before, condemned=condemned)
            if generations:
                generation = before.generation + number
                version = replace(version, generation=generation, job=f"collector{number}")
            etag = store.objects.compare_and_swap(key, version.encode(), etag).etag
            store.objects.delete(doomed)
        commit.release()
        try:
            return str(sleeping.result().outcome)
        except LostJob:
            return LOST


def test_no_two_versions_of_a_manifest_share_an_etag_even_if_it_hashes_the_content(
    tmp_path: Path,
) -> None:
    world = World(FileObjectStore(tmp_path))
    try:
        assert condemn_and_strike_off(world, generations=True) == LOST
        world.compact()
        world.agree(model_of(*conversation(6)))
    finally:
        world.close()


@pytest.mark.usefixtures("impatient")
def test_without_generations_a_stale_commit_passes_and_names_a_deleted_run(
    tmp_path: Path,
) -> None:
    world = World(FileObjectStore(tmp_path))
    try:
        assert condemn_and_strike_off(world, generations=False) == COMMITTED
        with world.saver() as reader, pytest.raises(MissingDataError):
            told(reader)
    finally:
        world.close()


# -- 6: the manifest of a deleted thread -----------------------------------------------


def test_a_deleted_threads_manifest_stays_as_a_grave_and_no_manifest_is_ever_deleted(
    world: World,
) -> None:
    watch = DeleteWatch(world.objects)
    calls: list[Call] = [*conversation(4), Delete(THREAD)]
    again = conversation(4, prefix="again")
    written(world, calls)
    for _ in range(3):
        world.compact(objects=watch)
    grave = world.snapshot_manifest()
    assert [r.kind for r in grave.records] == [Kind.TOMBSTONE]
    written(world, again)
    for _ in range(3):
        world.compact(objects=watch)
    world.agree(model_of(*again))
    assert watch.deleted
    assert not [key for key in watch.deleted if "manifest" in key]


def test_removing_the_manifest_of_a_deleted_thread_loses_what_came_after(world: World) -> None:
    written(world, [*conversation(4), Delete(THREAD)])
    world.compact()
    # A job that found the thread dead sleeps before its DELETE; the thread comes back.
    written(world, conversation(4, prefix="again"))
    world.compact()
    world.compact()
    world.objects.delete([snapshot_manifest_key(0, THREAD)])
    with world.saver() as reader:
        assert head_value(reader) is None


# -- 7: deleting beside clocks that are wrong ------------------------------------------


def deleted_beside_a_wrong_clock(world: World, offset: float) -> World:
    ahead = world.saver(lambda objects: SkewedClockStore(objects, offset))
    play(conversation(1), ahead)  # its answers teach the writer the wrong clock
    play(conversation(3, begin=1), ahead)
    with world.saver() as deleter:
        deleter.delete_thread(THREAD)
    return world


@pytest.mark.parametrize("offset", [YEAR_S, -YEAR_S])
@pytest.mark.parametrize("jobs", [0, 2])
def test_a_delete_hides_what_it_saw_whatever_the_clocks_say(
    world: World, offset: float, jobs: int
) -> None:
    deleted_beside_a_wrong_clock(world, offset)
    for _ in range(jobs):
        world.compact()
    with world.saver() as reader:
        assert told(reader) == {"head": None, "all": []}
    behind = world.saver(lambda objects: SkewedClockStore(objects, -YEAR_S))
    again = conversation(4, prefix="again")
    play(again, behind)
    world.agree(model_of(*again))
    for _ in range(jobs):
        world.compact()
        world.agree(model_of(*again))


def test_a_tombstone_by_stamp_would_not_hide_what_a_clock_ahead_wrote(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ByStamp:
        is_whole = True

        def __init__(self, stamp: int) -> None:
            self._stamp = stamp

        def deletes(self, record: Record) -> bool:
            return record.kind != Kind.TOMBSTONE and record.stamp <= self._stamp

        @classmethod
        def from_record(cls, record: Record) -> ByStamp:
            return cls(record.stamp)

    monkeypatch.setattr(logstore.view, "Tombstone", ByStamp)
    monkeypatch.setattr(logstore.view.ThreadView, "_drop_rootless", lambda self: None)
    deleted_beside_a_wrong_clock(world, YEAR_S)
    with world.saver() as reader:
        assert reader.get_tuple(config_of(THREAD)) is not None


# -- 9: a LIST is no snapshot ----------------------------------------------------------


def torn(world: World) -> tuple[TornListStore, list[Call]]:
    """A store whose LIST misses a segment and shows the one that builds on it.

    Between the two pages one writer stores a delta write, whose key sorts into the page
    that was answered already, and another, who has read it, the checkpoint that has it.
    """
    begin = conversation(2)
    written(world, begin)
    one, other = world.saver(), world.saver()
    writes, child = conversation(1, begin=2)
    one_id = one.store._process()._lane_context.writer

    def between() -> None:
        writes.apply(one)
        assert other.get_tuple(config_of(THREAD)) is not None
        child.apply(other)

    objects = TornListStore(
        world.objects, lambda key: SegmentName.parse(key).writer == one_id, between
    )
    return objects, [*begin, writes, child]


def first_history(world: World, objects: ObjectStore) -> Any:
    """The delta history of the head, by the first LIST of a reader."""
    reader = world.saver(objects=objects)
    reader.store.settings()
    found = reader.get_delta_channel_history(config=config_of(THREAD), channels=["messages"])
    return [value for _, _, value in found["messages"]["writes"]]


def test_a_reader_fetches_a_segment_that_no_page_showed_and_another_one_builds_on(
    world: World,
) -> None:
    objects, calls = torn(world)
    assert first_history(world, objects) == head_value(model_of(*calls))


def test_without_named_segments_a_torn_list_gives_a_wrong_value(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lineage, "builds_on", lambda self, thread_id: ())
    objects, calls = torn(world)
    assert first_history(world, objects) == head_value(model_of(*calls[:-2]))


def test_a_compactor_closes_the_set_over_a_torn_list(world: World) -> None:
    objects, calls = torn(world)
    before = len(world.segments())
    report = world.compact(objects=objects)
    assert report.outcome == COMMITTED
    assert report.segments_merged == before + 2
    world.agree(model_of(*calls))


def test_without_named_segments_a_compactor_merges_a_child_without_its_parents_writes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lineage, "builds_on", lambda self, thread_id: ())
    objects, _ = torn(world)
    before = len(world.segments())
    assert world.compact(objects=objects).segments_merged == before + 1


def test_what_a_process_reads_while_it_stores_a_segment_is_named_by_its_next_one(
    world: World,
) -> None:
    calls = conversation(2)
    written(world, calls)
    pausing = PausingStore(world.objects)
    busy = world.saver(lambda objects: pausing)
    other = world.saver()
    writes, child = conversation(1, begin=2)
    assert busy.get_tuple(config_of(THREAD)) is not None
    beside = Writes(THREAD, id_of(0), ("beside",), task="beside")
    with pausing.hold(is_segment_put) as put, running(lambda: beside.apply(busy)) as storing:
        put.wait_until_blocked()
        writes.apply(other)
        found = busy.get_tuple(config_of(THREAD))  # reads what `other` has just written
        assert found is not None
        assert found.pending_writes
        put.release()
        storing.result()
    other_id = other.store._process()._lane_context.writer
    theirs = next(k for k in world.segments() if SegmentName.parse(k).writer == other_id)
    child.apply(busy)
    mine = max(
        (k for k in world.segments() if k != theirs),
        key=lambda k: world.objects.get(k).modified,
    )
    log = world.store().log
    reached, missing = set(), {mine}
    while missing:
        reached |= missing
        missing = {k for key in missing for k in log.fetch(key).builds_on.get(THREAD, ())}
        missing -= reached
    assert theirs in reached
