"""The sequences that broke the protocol, continued: what lands late, and what jobs leave behind."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

import compactor.merging.merger
import compactor.publishing.publish
import logstore.clock
import logstore.reader
import logstore.records
import logstore.view
import logstore.walk
from compactor.folding.channels import ChannelTable
from compactor.folding.snapshots import SnapshotMaker
from compactor.job import Job, PartitionJob
from compactor.merging.merge import merge_streams
from compactor.plan import FAN_OUT, Tier
from compactor.publishing.publish import LostJob
from logstore import CommitUnknownError
from logstore.clock import COUNTER_BITS, Clock
from logstore.errors import UnavailableError
from logstore.keys import SegmentName, snapshot_manifest_key
from logstore.manifest import SnapshotManifest
from logstore.objects.base import ObjectStore
from logstore.records import Kind
from logstore.testing.wrappers import Fault, FaultyStore, PausingStore, SkewedClockStore
from tests.protocol.stores import retrying
from tests.protocol.world import (
    COMMITTED,
    LOST,
    THREAD,
    Call,
    Delete,
    Put,
    World,
    Writes,
    channel,
    config_of,
    conversation,
    default_serde,
    head_value,
    id_of,
    is_partition_swap,
    is_segment_put,
    is_snapshot_swap,
    model_of,
    plan,
    play,
    running,
    table,
    told,
    value_at,
    written,
)

YEAR_S = 365 * 86_400.0


# -- 10: a try that lands after all is over --------------------------------------------


def hanging(world: World, call: Call) -> FaultyStore:
    """Carry out a call whose first PUT hangs, and is repeated; `land` lets it through."""
    faulty = FaultyStore(world.objects)
    saver = world.saver(objects=retrying(faulty))
    saver.store.create()
    faulty.fail_when(is_segment_put, Fault.LATE, times=1)
    call.apply(saver)
    assert faulty.failed == 1
    return faulty


def test_a_put_that_lands_after_its_thread_was_deleted_and_compacted_changes_nothing(
    world: World,
) -> None:
    faulty = hanging(world, conversation(0)[0])
    written(world, [Delete(THREAD)])
    for _ in range(3):
        world.compact()
    assert not world.segments()
    faulty.land()
    assert len(world.segments()) == 1
    with world.saver() as reader:
        assert told(reader) == {"head": None, "all": []}
    for _ in range(3):
        world.compact()
        with world.saver() as reader:
            assert told(reader) == {"head": None, "all": []}


def test_if_graves_were_cleared_a_late_put_would_bring_its_thread_back(world: World) -> None:
    faulty = hanging(world, conversation(0)[0])
    written(world, [Delete(THREAD)])
    for _ in range(3):
        world.compact()
    world.objects.delete([snapshot_manifest_key(0, THREAD)])  # a dead thread's last trace
    faulty.land()
    with world.saver() as reader:
        assert reader.get_tuple(config_of(THREAD)) is not None


def test_a_copy_of_an_old_segment_that_lands_late_does_not_bring_old_values_back(
    world: World,
) -> None:
    # A special write is replaced by the last one. The copy of an earlier one is no later one.
    calls = conversation(2)
    written(world, calls)
    old = Writes(THREAD, id_of(2), ("old answer",), channel="__resume__")
    new = Writes(THREAD, id_of(2), ("new answer",), channel="__resume__")
    faulty = FaultyStore(world.objects)
    saver = world.saver(objects=retrying(faulty))
    saver.store.create()
    faulty.fail_when(is_segment_put, Fault.LATE, times=1)
    play([old, new], saver)
    for _ in range(3):
        world.compact()
    model = model_of(*calls, old, new)
    world.agree(model)
    time.sleep(0.002)
    faulty.land()
    world.agree(model)
    world.compact()
    world.agree(model)


# -- 11: two writers of one write ------------------------------------------------------


def clash(world: World) -> list[Call]:
    """A slow clock writes second what a good clock wrote first."""
    calls = conversation(2)
    written(world, calls)
    first = Writes(THREAD, id_of(2), ("first",))
    second = Writes(THREAD, id_of(2), ("second",))
    behind = world.saver(lambda objects: SkewedClockStore(objects, -YEAR_S))
    Put("another", id_of(0), None, 0).apply(behind)
    first.apply(world.saver())
    time.sleep(0.005)
    second.apply(behind)
    return [*calls, first, second, *conversation(1, begin=2)[1:]]


def test_of_two_clashing_writes_the_first_to_arrive_stays_whatever_the_clocks_say(
    world: World,
) -> None:
    calls = clash(world)
    written(world, calls[-1:])
    for _ in range(3):
        world.agree(model_of(*calls))
        world.compact()
    world.agree(model_of(*calls))


def test_if_stamps_decided_a_write_would_change_under_its_children(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logstore.records, "arrival_of", lambda r: (r.stamp, r.writer))
    calls = clash(world)
    written(world, calls[-1:])
    with world.saver() as reader:
        assert "second" in (head_value(reader) or [])


# -- 12: hiding and voiding reach into runs that are not merged ------------------------


def late_write_in_a_run_of_its_own(world: World, k: int = 3) -> list[Call]:
    calls: list[Call] = conversation(8)
    written(world, calls)
    world.compact()
    late = Writes(THREAD, id_of(1), ("late",), task="zz late")
    written(world, [late])
    world.compact(k)
    assert len(world.keys("runs/")) == 2
    return [*calls, late]


def test_a_late_write_voids_snapshots_that_lie_in_runs_of_other_tiers(world: World) -> None:
    calls = late_write_in_a_run_of_its_own(world)
    for _ in range(2):
        world.agree(model_of(*calls))
        world.compact()


def test_a_late_write_voids_snapshots_even_where_no_reducer_is_known(world: World) -> None:
    calls: list[Call] = conversation(8)
    written(world, calls)
    world.compact()
    late = Writes(THREAD, id_of(1), ("late",), task="zz late")
    written(world, [late])
    store = world.store()
    job = Job(store, ChannelTable([]), default_serde())
    assert job.run([0]).total("voided")
    world.agree(model_of(*calls, late))
    world.compact()
    world.agree(model_of(*calls, late))


def test_without_voiding_a_snapshot_in_an_older_run_hides_a_late_write(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SnapshotMaker, "_void_at", lambda self, checkpoint: None)
    calls = late_write_in_a_run_of_its_own(world)
    wrong = value_at_in_runs(world, id_of(5))
    below = config_of(THREAD, id_of(5))
    model = model_of(*calls)
    found = model.get_tuple(below)
    assert found is not None
    assert "late" in value_at(model, found, below)
    assert "late" not in wrong


def value_at_in_runs(world: World, checkpoint_id: str) -> list[Any]:
    """The delta channel's value at a checkpoint, by the partition manifest alone."""
    with world.saver() as reader:
        read = reader.store.read_history(THREAD)
        checkpoint = read.view.checkpoint("", checkpoint_id)
        assert checkpoint is not None
        found = reader._builder(read).history("", checkpoint_id, ["messages"])["messages"]
        rebuilt = channel().from_checkpoint(found.get("seed"))
        rebuilt.replay_writes(found["writes"])
        return list(rebuilt.get())


def delete_in_a_run_of_its_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    written(world, conversation(8))
    world.compact()
    written(world, [Delete(THREAD), *conversation(2, prefix="again")])
    monkeypatch.setattr(
        compactor.merging.merger, "choose_tier", lambda manifest, runs, deleted: Tier((), 0)
    )
    world.compact()
    assert len(world.keys("runs/")) == 2


def test_a_tombstone_hides_rows_that_lie_in_runs_of_other_tiers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete_in_a_run_of_its_own(world, monkeypatch)
    world.agree(model_of(*conversation(2, prefix="again")))


def test_a_tombstone_that_a_merge_dropped_would_show_older_runs_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(streams: list[Any]) -> Any:
        for merged in merge_streams(streams):
            yield merged.filter([kind != Kind.TOMBSTONE for kind in merged["kind"].to_pylist()])

    monkeypatch.setattr(compactor.merging.merger, "merge_streams", careless)
    delete_in_a_run_of_its_own(world, monkeypatch)
    with world.saver() as reader:
        assert len(told(reader)["all"]) > 3


# -- 13: a fork from below the manifest ------------------------------------------------


def fork_from_below(world: World) -> list[Call]:
    calls = conversation(12)
    written(world, calls)
    world.compact()
    world.compact()
    fork: list[Call] = [
        Writes(THREAD, id_of(2), ("forked",), task="zz fork"),
        Put(THREAD, id_of(1, "fork"), id_of(2), 3),
    ]
    written(world, fork)
    return [*calls, *fork]


def test_a_fork_from_below_the_manifest_is_read_from_the_runs(world: World) -> None:
    model = model_of(*fork_from_below(world))
    with world.saver() as reader:
        assert head_value(reader) == head_value(model)
    for _ in range(2):
        world.agree(model)
        world.compact()
    world.agree(model)


def test_if_an_unknown_parent_counted_as_none_a_fork_would_lose_its_past(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logstore.walk, "_check_may_end", lambda *args: None)
    calls = fork_from_below(world)
    with world.saver() as reader:
        assert head_value(reader) != head_value(model_of(*calls))


# -- 15: one machine a year ahead ------------------------------------------------------


def ahead_of_the_store(clock: Clock) -> float:
    return (clock.stamp() >> COUNTER_BITS) / 1000 - time.time()


def test_a_stamp_from_a_machine_a_year_ahead_does_not_move_this_clock() -> None:
    clock = Clock()
    clock.observe_stamp(int((time.time() + YEAR_S) * 1000) << COUNTER_BITS)
    assert ahead_of_the_store(clock) < 60
    clock.observe_stamp(int((time.time() + 30) * 1000) << COUNTER_BITS)
    assert 25 < ahead_of_the_store(clock) < 60


def test_without_the_bound_one_stamp_would_push_this_clock_a_year_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logstore.clock, "_MAX_AHEAD_MS", 2**60)
    clock = Clock()
    clock.observe_stamp(int((time.time() + YEAR_S) * 1000) << COUNTER_BITS)
    assert ahead_of_the_store(clock) > YEAR_S / 2


def test_who_reads_a_thread_written_a_year_ahead_goes_on_by_the_stores_clock(
    world: World,
) -> None:
    calls = conversation(3)
    ahead = world.saver(lambda objects: SkewedClockStore(objects, YEAR_S))
    play(calls, ahead)
    more = conversation(3, begin=3)
    with world.saver() as good:
        assert good.get_tuple(config_of(THREAD)) is not None
        play(more, good)
        mine = good.store._process()._lane_context.writer
    stamps = [
        SegmentName.parse(k).stamp for k in world.segments() if SegmentName.parse(k).writer == mine
    ]
    assert max(stamps) >> COUNTER_BITS < (time.time() + 60) * 1000
    world.agree(model_of(*calls, *more))
    world.compact()
    world.agree(model_of(*calls, *more))


# -- 17: the list of merged segments in a snapshot manifest ----------------------------


def test_merged_names_that_were_pruned_too_early_cost_a_read_and_nothing_else() -> None:
    world = World(short_grace_s=300.0)
    try:
        calls = conversation(7)
        written(world, calls)
        world.compact()
        store, key = world.store(), snapshot_manifest_key(0, THREAD)
        found = store.objects.get(key)
        manifest = SnapshotManifest.decode(key, found.data)
        assert manifest.merged
        pruned = replace(manifest, merged={}, generation=manifest.generation + 1, job="pruner")
        store.objects.compare_and_swap(key, pruned.encode(), found.etag)
        world.agree(model_of(*calls))
        more = conversation(4, begin=7)
        written(world, more)
        world.agree(model_of(*calls, *more))
        world.compact()
        world.agree(model_of(*calls, *more))
    finally:
        world.close()


def names_after_hours_of_jobs(world: World) -> int:
    clock = SkewedClockStore(world.objects, 0.0)
    calls: list[Call] = []
    for number in range(6):
        turn = conversation(2, begin=len(calls) // 2 if calls else 0)
        calls += turn
        written(world, turn)
        clock.offset = number * 4000.0
        world.compact(objects=clock)
        world.compact(objects=clock)
    world.agree(model_of(*calls))
    return len(world.snapshot_manifest().merged)


def test_merged_names_leave_a_manifest_when_they_are_an_hour_old_and_in_no_list(
    world: World,
) -> None:
    assert names_after_hours_of_jobs(world) <= 8


def test_if_names_never_aged_a_manifest_would_grow_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compactor.publishing.publish, "NAME_AGE_S", float("inf"))
    assert names_after_hours_of_jobs(world) >= 24


def copy_after_hours(world: World, call: Call, calls: list[Call], more: list[Call]) -> FaultyStore:
    """A call's first PUT hangs, its repetition lands; hours later its name is forgotten."""
    faulty = FaultyStore(world.objects)
    saver = world.saver(objects=retrying(faulty))
    saver.store.create()
    for one in calls:
        if one == call:
            faulty.fail_when(is_segment_put, Fault.LATE, times=1)
        one.apply(saver)
    clock = SkewedClockStore(world.objects, 0.0)
    for hours in range(3):
        clock.offset = hours * 4000.0
        written(world, more[2 * hours : 2 * hours + 2])
        for _ in range(2):
            world.compact(objects=clock)
    return faulty


def test_a_copy_of_an_old_checkpoint_that_lands_when_its_name_is_forgotten_changes_nothing(
    world: World,
) -> None:
    calls, more = conversation(7), conversation(3, begin=7)
    faulty = copy_after_hours(world, calls[6], calls, more)
    world.agree(model_of(*calls, *more))
    faulty.land()
    assert len(world.segments()) == 1
    world.agree(model_of(*calls, *more))
    world.compact()
    world.agree(model_of(*calls, *more))


def test_a_put_that_was_given_up_and_lands_after_its_repetition_was_compacted_changes_nothing(
    world: World,
) -> None:
    calls = conversation(5)
    faulty = FaultyStore(world.objects)
    first = world.saver(objects=faulty)
    play(calls[:4], first)
    faulty.fail_when(is_segment_put, Fault.LATE, times=1)
    with pytest.raises(CommitUnknownError):
        calls[4].apply(first)
    written(world, calls[4:])
    world.compact()
    faulty.land()
    world.agree(model_of(*calls))
    world.compact()
    world.agree(model_of(*calls))


def test_a_fork_from_an_old_checkpoint_whose_copy_has_landed_late_has_all_of_its_past(
    world: World,
) -> None:
    calls, more = conversation(7), conversation(3, begin=7)
    faulty = copy_after_hours(world, calls[6], calls, more)
    faulty.land()
    fork = Put(THREAD, id_of(1, "fork"), id_of(3), 4)
    written(world, [fork])
    model = model_of(*calls, *more, fork)
    with world.saver() as reader:
        assert head_value(reader) == head_value(model)
    world.agree(model)


# -- what belongs to the same rules: jobs and deletes that do not see each other -------


def test_a_job_object_that_runs_twice_does_not_take_its_first_commit_for_its_second(
    world: World,
) -> None:
    calls = conversation(3)
    written(world, calls)
    faulty = FaultyStore(world.objects)
    job = Job(world.store(objects=faulty), table(), default_serde())
    assert job.run([0]).partitions[0].outcome == COMMITTED
    more = conversation(3, begin=3)
    written(world, more)
    faulty.fail_when(is_partition_swap, Fault.ERROR, times=1)
    assert job.run([0]).partitions[0].outcome == LOST
    world.agree(model_of(*calls, *more))


def lost_beside(world: World, seen: list[Call], k: int | None) -> None:
    """Of two jobs of one generation the one that saw `seen` publishes it, and loses.

    Args:
        world: the world.
        seen: what only the loser sees.
        k: the cadence of both jobs; None if they know no channel.
    """
    written(world, [Put("another", id_of(1), None, 0)])
    known = ChannelTable([]) if k is None else table(k)

    def job(objects: ObjectStore, name: str) -> PartitionJob:
        store = world.store(objects=objects)
        return PartitionJob(store, plan(store), known, default_serde(), name)

    blind = job(world.objects, "blind")
    written(world, seen)
    pausing = PausingStore(world.objects)
    seeing = job(pausing, "seeing")
    with pausing.hold(is_partition_swap) as commit, running(seeing.run) as loser:
        commit.wait_until_blocked()
        assert blind.run().outcome == COMMITTED
        commit.release()
        with pytest.raises(LostJob):
            loser.result()


def test_a_snapshot_that_only_a_lost_job_made_is_made_again_by_the_next_one(
    world: World,
) -> None:
    calls, more = conversation(8), conversation(3, begin=8)
    written(world, calls)
    world.compact()
    lost_beside(world, more, 3)
    world.compact()
    world.agree(model_of(*calls, *more))
    with world.saver() as reader:
        found = reader.get_tuple(config_of(THREAD, id_of(9)))
        assert found is not None
        assert "messages" in found.checkpoint["channel_values"]


def test_a_snapshot_that_only_a_lost_job_voided_is_voided_again_by_the_next_one(
    world: World,
) -> None:
    calls = conversation(8)
    written(world, calls)
    world.compact()
    late = Writes(THREAD, id_of(1), ("late",), task="zz late")
    lost_beside(world, [late], None)
    model = model_of(*calls, late)
    world.agree(model)
    store = world.store()
    Job(store, ChannelTable([]), default_serde()).run([0])
    world.agree(model)
    world.compact()
    world.agree(model)


@pytest.mark.parametrize("jobs_before", [0, 2])
@pytest.mark.parametrize("jobs_after", [0, 2])
def test_a_late_put_onto_a_deleted_checkpoint_does_not_bring_the_thread_back(
    world: World, jobs_before: int, jobs_after: int
) -> None:
    agent = world.saver()
    play(conversation(4), agent)
    for _ in range(jobs_before):
        world.compact()
    written(world, [Delete(THREAD)])
    for _ in range(jobs_after):
        world.compact()
    play(conversation(2, begin=4), agent)  # it has not heard of the delete
    for _ in range(3):
        with world.saver() as reader:
            assert told(reader) == {"head": None, "all": []}
        world.compact()


def test_a_thread_with_a_late_put_onto_a_deleted_checkpoint_can_be_deleted_and_made_again(
    world: World,
) -> None:
    agent = world.saver()
    play(conversation(4), agent)
    world.compact()
    written(world, [Delete(THREAD)])
    play(conversation(1, begin=4), agent)
    again = conversation(4, prefix="again")
    written(world, [Delete(THREAD), *again])
    for _ in range(3):
        world.agree(model_of(*again))
        world.compact()
    world.agree(model_of(*again))


def test_a_job_that_must_read_a_thread_with_an_old_grave_whole_can_do_so(world: World) -> None:
    calls = conversation(8, prefix="again")
    written(world, [*conversation(2), Delete(THREAD), *calls])
    world.compact()
    fork: list[Call] = [
        Writes(THREAD, id_of(2, "again"), ("forked",), task="zz fork"),
        Put(THREAD, id_of(1, "fork"), id_of(2, "again"), 3),
    ]
    written(world, fork)
    assert world.compact().outcome == COMMITTED
    world.agree(model_of(*calls, *fork))


# -- what a job leaves behind when it stops midway -----------------------------------------


def test_objects_of_a_swap_that_landed_late_stay_when_their_job_then_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first swap of the snapshot manifest is not answered, and lands when the job sends
    # its second, which therefore loses. Before the third the store stops answering.
    monkeypatch.setattr(compactor.publishing.large_values, "LARGE_BYTES", 64)
    calls = conversation(8)
    written(world, calls)
    faulty = FaultyStore(world.objects)
    pausing = PausingStore(faulty)
    job = world.planned(objects=pausing)
    faulty.fail_when(is_snapshot_swap(), Fault.LATE, times=1)
    key = snapshot_manifest_key(0, THREAD)
    reads = 0

    def is_read_after_the_loss(method: str, wanted: str) -> bool:
        nonlocal reads
        is_read = wanted == key and method in ("get", "get_if_changed")
        reads += is_read
        return is_read and reads > 1

    with (
        pausing.hold(is_snapshot_swap()) as first,
        pausing.hold(is_snapshot_swap()) as second,
        running(job.run) as stopped,
    ):
        first.wait_until_blocked()
        first.release()
        second.wait_until_blocked()
        faulty.land()
        faulty.fail_when(is_read_after_the_loss, Fault.REFUSED)
        second.release()
        with pytest.raises(UnavailableError):
            stopped.result()
    faulty.heal()
    world.agree(model_of(*calls))
    world.compact()
    world.agree(model_of(*calls))


def full_level(world: World) -> list[Call]:
    """So many runs that the next job merges them."""
    calls: list[Call] = []
    for begin in range(FAN_OUT - 1):
        turn = conversation(1, begin=begin)
        written(world, turn)
        world.compact()
        calls += turn
    turn = conversation(1, begin=FAN_OUT - 1)
    written(world, turn)
    return [*calls, *turn]


def test_a_job_whose_runs_were_merged_and_deleted_while_it_slept_has_lost_and_says_so(
    world: World,
) -> None:
    calls = full_level(world)
    pausing = PausingStore(world.objects)
    store = world.store(objects=pausing)
    job = Job(store, table(), default_serde())
    with (
        pausing.hold(is_snapshot_swap()) as swap,
        running(lambda: job.run([0])) as sleeping,
    ):
        swap.wait_until_blocked()
        assert world.compact().runs_merged == FAN_OUT - 1
        assert world.compact().runs_deleted == FAN_OUT - 1
        swap.release()
        assert sleeping.result().partitions[0].outcome == LOST
    world.agree(model_of(*calls))


def test_a_job_that_finds_its_snapshot_objects_deleted_has_lost_and_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compactor.publishing.large_values, "LARGE_BYTES", 64)
    calls, more, last = conversation(10), conversation(4, begin=10), conversation(4, begin=14)
    written(world, calls)
    world.compact()
    written(world, more)
    objects = {k for k in world.keys("snapshots/") if not k.endswith("manifest")}
    pausing = PausingStore(world.objects)
    job = Job(world.store(objects=pausing), table(), default_serde())
    with (
        pausing.hold(lambda m, k: m == "get" and k in objects) as fetch,
        running(lambda: job.run([0])) as sleeping,
    ):
        fetch.wait_until_blocked()
        for calls_now in ([], last):
            written(world, calls_now)
            world.compact()
            world.compact()
        fetch.release()
        assert sleeping.result().partitions[0].outcome == LOST
    world.agree(model_of(*calls, *more, *last))
