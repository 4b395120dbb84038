"""How many requests, one upon the other, a call may cost; and that length costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from logstore.store import CHECKPOINT_HOLD_S, LONG_GRACE_S, SHORT_GRACE_S
from logstore.testing.wrappers import CountingStore
from tests.protocol.stores import SlowStore
from tests.protocol.world import (
    CHANNEL,
    THREAD,
    World,
    config_of,
    conversation,
    head_value,
    id_of,
    model_of,
    play,
)

LATENCY_S = 0.03
WRITES = ("put_if_absent", "compare_and_swap", "delete")


@pytest.fixture
def usual() -> Iterator[World]:
    """A store with the usual graces, so that a read need not look twice."""
    world = World(partitions=1, short_grace_s=SHORT_GRACE_S, long_grace_s=LONG_GRACE_S)
    yield world
    world.close()


def counting(world: World, **options: Any) -> tuple[CountingStore, Any]:
    """A saver of its own, and what counts its requests."""
    counted = CountingStore(SlowStore(world.objects, LATENCY_S))
    return counted, world.saver(objects=counted, io_threads=16, **options)


def cost(counted: CountingStore, call: Callable[[], object]) -> tuple[int, CountingStore]:
    counted.reset()
    call()
    return counted.rounds(), counted


def grown(world: World, turns: int, size: int = 0) -> None:
    """A conversation that is compacted every ten turns."""
    with world.saver() as saver:
        for begin in range(0, turns, 10):
            play(conversation(min(10, turns - begin), begin=begin, size=size), saver)
            world.compact()


def warm_rounds(counted: CountingStore, call: Callable[[], object]) -> int:
    """The rounds of a read that was made before; the least of some, as machines are busy."""
    return min(cost(counted, call)[0] for _ in range(4))


def cold_rounds(world: World, call: Any, *, settled: bool = False) -> int:
    """The rounds of a fresh reader's first read; the least of some, as machines are busy.

    Args:
        world: the world.
        call: the read.
        settled: whether the reader knows the store's settings already.
    """
    readers = [counting(world) for _ in range(4)]
    for _, reader in readers:
        reader.store.settings() if settled else None
    return min(cost(counted, call(reader))[0] for counted, reader in readers)


def get_tuple(saver: Any) -> Callable[[], object]:
    return lambda: saver.get_tuple(config_of(THREAD))


def get_history(saver: Any) -> Callable[[], object]:
    return lambda: saver.get_delta_channel_history(config=config_of(THREAD), channels=[CHANNEL])


CALLS = pytest.mark.parametrize("call", [get_tuple, get_history])


@CALLS
@pytest.mark.parametrize("size", [0, 20_000], ids=["inline", "object"])
@pytest.mark.parametrize("tail", [0, 3])
def test_a_cold_head_read_takes_at_most_two_rounds(
    usual: World, call: Any, size: int, tail: int
) -> None:
    grown(usual, 20, size)
    objects = [key for key in usual.keys("snapshots/") if not key.endswith("manifest")]
    assert bool(objects) == bool(size)
    with usual.saver() as saver:
        play(conversation(tail, begin=20, size=size), saver)
    rounds = cold_rounds(usual, call)
    assert rounds <= 2
    assert rounds == 1 or tail or size
    with usual.saver() as reader:
        assert head_value(reader) == head_value(model_of(*conversation(20 + tail, size=size)))


@CALLS
def test_a_cold_head_read_of_a_log_that_was_never_compacted_takes_two_rounds(
    usual: World, call: Any
) -> None:
    with usual.saver() as saver:
        play(conversation(6), saver)
    assert cold_rounds(usual, call) <= 2


@CALLS
def test_a_cold_head_read_takes_two_rounds_even_when_it_must_look_at_the_manifest_twice(
    call: Any,
) -> None:
    world = World(short_grace_s=0.0)
    grown(world, 20)
    with world.saver() as saver:
        play(conversation(2, begin=20), saver)
    assert cold_rounds(world, call, settled=True) <= 2
    world.close()


@CALLS
def test_a_read_of_a_thread_that_does_not_exist_takes_one_round(usual: World, call: Any) -> None:
    grown(usual, 1)
    counted, reader = counting(usual)
    reader_call = {
        get_tuple: lambda: reader.get_tuple(config_of("nobody")),
        get_history: lambda: reader.get_delta_channel_history(
            config=config_of("nobody"), channels=[CHANNEL]
        ),
    }[call]
    reader_call()
    assert warm_rounds(counted, reader_call) == 1


@CALLS
@pytest.mark.parametrize("size", [0, 20_000], ids=["inline", "object"])
def test_a_warm_read_takes_one_round_and_fetches_nothing(
    usual: World, call: Any, size: int
) -> None:
    grown(usual, 20, size)
    with usual.saver() as saver:
        play(conversation(3, begin=20, size=size), saver)
    counted, reader = counting(usual)
    call(reader)()
    assert warm_rounds(counted, call(reader)) == 1
    assert sorted(counted.counts) == ["get_if_changed", "list"]
    assert counted.counts.total() == 2


def test_a_writer_reads_back_what_it_wrote_in_one_round(usual: World) -> None:
    counted, saver = counting(usual)
    play(conversation(3), saver)
    saver.get_tuple(config_of(THREAD))
    for begin in range(3, 6):
        play(conversation(1, begin=begin), saver)
        assert warm_rounds(counted, get_tuple(saver)) == 1
        assert not [r for r in counted.requests if r.key.startswith("log/") and r.method == "get"]


@pytest.mark.parametrize(
    ("durability", "hold_s", "puts"),
    [("strict", 0.0, 2), ("checkpoint", CHECKPOINT_HOLD_S, 1)],
)
@pytest.mark.parametrize("turns", [10, 300])
def test_a_superstep_costs_the_same_puts_and_reads_the_same_rounds_however_long_the_thread(
    usual: World, durability: str, hold_s: float, puts: int, turns: int
) -> None:
    grown(usual, turns)
    counted, saver = counting(usual, durability=durability, hold_s=hold_s)
    saver.store.create()
    cost(counted, get_tuple(saver))
    assert counted.counts.total() <= 4
    for begin in range(turns, turns + 4):
        cost(counted, lambda b=begin: play(conversation(1, begin=b), saver))
        assert counted.counts == {"put_if_absent": puts}
    for call in (get_tuple, get_history):
        assert warm_rounds(counted, call(saver)) == 1
        assert counted.counts.total() == 2
        assert cold_rounds(usual, call) <= 2
    counted, reader = counting(usual)
    cost(counted, get_tuple(reader))
    # Settings, manifest, LIST, and the segments since the last job.
    assert counted.counts.total() <= 3 + 4 * puts


def test_after_a_compaction_a_head_read_fetches_no_segment(usual: World) -> None:
    with usual.saver() as saver:
        play(conversation(12), saver)
    usual.compact()
    assert len(usual.segments()) == 25
    counted, reader = counting(usual)
    assert head_value(reader) == head_value(model_of(*conversation(12)))
    assert not [r for r in counted.requests if r.key.startswith("log/") and r.method != "list"]


def test_a_thousand_reads_write_nothing(usual: World) -> None:
    grown(usual, 20)
    with usual.saver() as saver:
        play(conversation(2, begin=20), saver)
    counted = CountingStore(usual.objects)
    reader = usual.saver(objects=counted)
    before = usual.keys()
    for number in range(50):
        for _ in range(17):
            reader.get_tuple(config_of(THREAD))
        reader.get_tuple(config_of(THREAD, id_of(number % 20)))
        reader.get_delta_channel_history(config=config_of(THREAD), channels=[CHANNEL])
        next(iter(reader.list(config_of(THREAD), limit=1)))
    assert not [method for method in counted.counts if method in WRITES]
    assert usual.keys() == before


def test_listing_many_checkpoints_costs_hardly_more_than_listing_one(usual: World) -> None:
    grown(usual, 200)
    counted, reader = counting(usual)
    counted.reset()
    assert len(list(reader.list(config_of(THREAD), limit=1))) == 1
    one = counted.counts.total()
    counted, reader = counting(usual)
    counted.reset()
    assert len(list(reader.list(config_of(THREAD), limit=200))) == 200
    assert counted.counts.total() <= 3 * one + 12
