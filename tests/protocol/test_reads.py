"""Reads beside writes and jobs: what was acknowledged is seen, whatever moves meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from compactor.folding.channels import default_serde
from compactor.job import Job
from logstore import LogStoreSaver
from logstore.keys import SegmentName
from logstore.testing.wrappers import Held, PausingStore
from tests.protocol.stores import TornListStore
from tests.protocol.world import (
    CHANNEL,
    COMMITTED,
    THREAD,
    World,
    Writes,
    config_of,
    conversation,
    head_value,
    id_of,
    is_log_list,
    is_segment_put,
    is_snapshot_swap,
    model_of,
    play,
    running,
    table,
    value_at,
)


@pytest.fixture
def pausing(world: World) -> PausingStore:
    return PausingStore(world.objects)


def test_a_process_reads_its_own_buffered_write_by_id_while_it_becomes_durable(
    world: World, pausing: PausingStore
) -> None:
    # The LIST was answered before the segment landed; the read goes on in the runs after it.
    with world.saver() as saver:
        play(conversation(8), saver)
    world.compact()
    buffered = world.saver(objects=pausing, durability="buffered")
    assert head_value(buffered)
    old = config_of(THREAD, id_of(2))
    with (
        pausing.hold(is_segment_put) as put,
        pausing.hold(is_log_list, after=True) as listing,
    ):
        Writes(THREAD, id_of(2), ("mine",), task="zz mine").apply(buffered)
        put.wait_until_blocked()
        with running(lambda: buffered.get_tuple(old)) as read:
            listing.wait_until_blocked()
            put.release()
            buffered.flush()
            listing.release()
            found = read.result()
    assert found is not None
    assert ("zz mine", CHANNEL, "mine") in found.pending_writes


def test_a_process_lists_its_own_buffered_checkpoint_while_it_becomes_durable(
    world: World, pausing: PausingStore
) -> None:
    with world.saver() as saver:
        play(conversation(2), saver)
    buffered = world.saver(objects=pausing, durability="buffered")
    assert len(list(buffered.list(None))) == 3
    with (
        pausing.hold(is_segment_put) as put,
        pausing.hold(is_log_list, after=True) as listing,
    ):
        conversation(1, thread="mine")[0].apply(buffered)
        put.wait_until_blocked()
        with running(lambda: list(buffered.list(None))) as read:
            listing.wait_until_blocked()
            put.release()
            buffered.flush()
            listing.release()
            found = read.result()
    assert len(found) == 4


def test_listing_all_threads_goes_on_when_segments_are_merged_and_deleted_meanwhile(
    world: World, pausing: PausingStore
) -> None:
    with world.saver() as saver:
        play(conversation(4), saver)
    reader = world.saver(objects=pausing)
    with (
        pausing.hold(is_log_list, after=True) as listing,
        running(lambda: list(reader.list(None))) as read,
    ):
        listing.wait_until_blocked()
        assert world.compact().outcome == COMMITTED
        assert world.compact().segments_deleted
        listing.release()
        assert len(read.result()) == 5


def test_a_head_read_goes_on_when_segments_are_merged_and_deleted_after_its_list(
    world: World, pausing: PausingStore
) -> None:
    calls = conversation(4)
    with world.saver() as saver:
        play(calls, saver)
    reader = world.saver(objects=pausing)
    reader.store.settings()
    with (
        pausing.hold(lambda method, key: method == "get" and key.startswith("log/")) as fetch,
        running(lambda: head_value(reader)) as read,
    ):
        fetch.wait_until_blocked()
        assert world.compact().outcome == COMMITTED
        assert world.compact().segments_deleted
        fetch.release()
        assert read.result() == head_value(model_of(*calls))


def test_a_named_segment_that_two_jobs_take_away_in_turn_is_not_missed(world: World) -> None:
    # The first page misses a write, the second shows the child that builds on it. Before the
    # write is fetched, and again before it is looked for in the next manifest, a job runs.
    begin, (writes, child) = conversation(2), conversation(1, begin=2)
    with world.saver() as saver:
        play(begin, saver)
    one, other = world.saver(), world.saver()
    one_id = one.store._process()._lane_context.writer

    def between() -> None:
        writes.apply(one)
        assert other.get_tuple(config_of(THREAD)) is not None
        child.apply(other)

    def is_mine(key: str) -> bool:
        return key.startswith("log/") and SegmentName.parse(key).writer == one_id

    pausing = PausingStore(TornListStore(world.objects, is_mine, between))
    reader = world.saver(objects=pausing)
    reader.store.settings()
    with (
        pausing.hold(lambda method, key: method == "get" and is_mine(key)) as fetch,
        running(lambda: head_value(reader)) as read,
    ):
        fetch.wait_until_blocked()
        world.compact()
        world.compact()
        fetch.release()
        assert read.result() == head_value(model_of(*begin, writes, child))


def test_a_delete_hides_nothing_that_it_did_not_see(world: World, pausing: PausingStore) -> None:
    # A delete reads twice, because a job takes away what it lists. At its second read an
    # acknowledged write is in flight. What is put after that shares the tombstone's segment.
    with world.saver() as writer:
        play(conversation(1), writer)
    saver = world.saver(objects=pausing, durability="buffered")
    saver.store.create()
    again = conversation(0, prefix="again")
    with (
        pausing.hold(is_log_list, after=True) as first,
        pausing.hold(is_log_list) as second,
        pausing.hold(is_segment_put) as put,
        running(lambda: saver.delete_thread(THREAD)) as gone,
    ):
        first.wait_until_blocked()
        world.compact()
        world.compact()
        Writes(THREAD, id_of(1), ("in flight",), task="beside").apply(saver)
        put.wait_until_blocked()
        first.release()
        second.wait_until_blocked()
        again[0].apply(saver)
        second.release()
        time.sleep(0.1)  # the tombstone is queued beside it
        put.release()
        gone.result()
    saver.flush()
    with world.saver() as reader:
        found = reader.get_tuple(config_of(THREAD))
        assert found is not None
        assert found.checkpoint["id"] == id_of(0, "again")


@pytest.mark.parametrize("compacted", [0, 8])
def test_a_delete_hides_what_this_process_has_acknowledged_and_not_stored_yet(
    world: World, pausing: PausingStore, compacted: int
) -> None:
    saver = world.saver(objects=pausing, durability="buffered")
    play(conversation(compacted or 1), saver)
    saver.flush()
    world.compact() if compacted else None
    more = conversation(3, begin=compacted or 1)
    with pausing.hold(is_segment_put) as put:
        more[0].apply(saver)
        put.wait_until_blocked()
        play(more[1:], saver)
        with running(lambda: saver.delete_thread(THREAD)) as gone:
            put.release()
            gone.result()
    saver.flush()
    with world.saver() as reader:
        assert reader.get_tuple(config_of(THREAD)) is None


@pytest.mark.parametrize("reading", ["by id", "list", "job"])
def test_a_process_that_still_holds_a_deleted_segment_is_not_stopped_by_it(
    world: World, reading: str
) -> None:
    # A step takes longer than a grace: its next segment names one that was merged, deleted
    # and struck off meanwhile, and that this process still has in its cache.
    saver = world.saver()
    root, writes, child = conversation(1)
    play([root, writes], saver)
    world.compact()
    world.compact()
    assert not world.segments()
    child.apply(saver)
    if reading == "by id":
        assert saver.get_tuple(config_of(THREAD, id_of(0))) is not None
    elif reading == "list":
        assert len(list(saver.list(config_of(THREAD)))) == 2
    else:
        report = Job(saver.store, table(), default_serde()).run([0])
        assert report.partitions[0].outcome == COMMITTED
    world.agree(model_of(root, writes, child))


def test_what_a_list_has_read_is_named_by_the_next_segment(world: World) -> None:
    one, other = world.saver(), world.saver()
    root, writes, child = conversation(1)
    play([root, writes], one)
    assert list(other.list(config_of(THREAD)))
    before = world.segments()
    child.apply(other)
    (mine,) = world.segments() - before
    assert set(other.store.log.fetch(mine).builds_on.get(THREAD, ())) & before


def test_named_segments_that_go_one_after_the_other_are_not_missed(world: World) -> None:
    # A torn LIST shows two children and neither of the writes that they build on. A slow job
    # takes the first write away, another one the second, just as the read looks again.
    begin, turns = conversation(2), conversation(2, begin=2)
    with world.saver() as saver:
        play(begin, saver)
    one, other = world.saver(), world.saver()
    one_id = one.store._process()._lane_context.writer
    jobs = []

    def between() -> None:
        for writes, child in (turns[:2], turns[2:]):
            writes.apply(one)
            assert other.get_tuple(config_of(THREAD)) is not None
            child.apply(other)
            if not jobs:
                jobs.append(world.planned())  # it knows the first turn only

    def is_mine(key: str) -> bool:
        return key.startswith("log/") and SegmentName.parse(key).writer == one_id

    def fetches(seq: int) -> Callable[[str, str], bool]:
        return lambda m, k: m == "get" and is_mine(k) and SegmentName.parse(k).seq == seq

    pausing = PausingStore(TornListStore(world.objects, is_mine, between))
    reader = world.saver(objects=pausing)
    reader.store.settings()
    slow = PausingStore(world.objects)
    with (
        pausing.hold(fetches(0)) as first,
        running(lambda: one_head_read(reader)) as read,
        slow.hold(is_snapshot_swap()) as swap,
    ):
        first.wait_until_blocked()
        assert jobs[0].run().outcome == COMMITTED
        with running(world.planned(objects=slow).run) as collecting:
            swap.wait_until_blocked()  # it has deleted the first turn's segments
            with pausing.hold(fetches(1)) as second:
                first.release()
                if came(second):
                    swap.release()
                    collecting.result()
                    world.compact()
                    second.release()
                swap.release()
                shown, value = read.result()
    model = model_of(*begin, *turns)
    config = config_of(THREAD, shown)
    right = model.get_tuple(config)
    assert right is not None
    assert value == value_at(model, right, config)


def one_head_read(reader: LogStoreSaver) -> tuple[str, list[Any]]:
    """The head's id and the delta channel's value there, both from one read."""
    read = reader.store.read_head(THREAD)
    head = read.view.head("")
    assert head is not None
    found = reader._builder(read).history("", head.checkpoint_id, [CHANNEL])[CHANNEL]
    seed = getattr(found.get("seed"), "value", [])
    return head.checkpoint_id, [*seed, *(value for _, _, value in found["writes"])]


def came(held: Held) -> bool:
    try:
        held.wait_until_blocked(2.0)
    except TimeoutError:
        return False
    return True
