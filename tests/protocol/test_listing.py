"""Nothing rests on the order of a LIST, nor on its being a snapshot."""

from __future__ import annotations

import random

import pytest

from logstore.keys import SegmentName
from logstore.objects.base import ObjectStore
from logstore.testing.wrappers import ShufflingStore
from tests.protocol.stores import TornListStore
from tests.protocol.world import (
    COMMITTED,
    THREAD,
    Call,
    Delete,
    World,
    config_of,
    conversation,
    head_value,
    id_of,
    model_of,
    play,
    told,
)


@pytest.mark.parametrize("seed", range(6))
def test_shuffled_pages_of_seven_change_nothing(world: World, seed: int) -> None:
    rng = random.Random(seed)
    shuffled = ShufflingStore(world.objects, seed=seed, page_size=7)
    saver, reader = world.saver(objects=shuffled), world.saver(objects=shuffled)
    threads = [THREAD, "other", "third"]
    done: dict[str, int] = dict.fromkeys(threads, 0)
    calls: list[Call] = []
    for _ in range(14):
        thread = rng.choice(threads)
        turn = conversation(rng.randint(1, 4), thread, begin=done[thread])
        done[thread] += len(turn) // 2
        if rng.random() < 0.12:
            turn.append(Delete(thread))
            done[thread] = 0
        play(turn, saver)
        calls += turn
        if rng.random() < 0.4:
            world.compact(objects=shuffled)
    model = model_of(*calls)
    for thread in threads:
        assert told(reader, thread) == told(model, thread)
    world.compact(objects=shuffled)
    world.compact(objects=shuffled)
    for thread in threads:
        assert told(reader, thread) == told(model, thread)
    shown = sorted(t.config["configurable"]["thread_id"] for t in reader.list(None))
    assert shown == sorted(t.config["configurable"]["thread_id"] for t in model.list(None))


def torn_by(world: World, seed: int, begin: int) -> tuple[ObjectStore, list[Call]]:
    """Two writers go on with a thread between the two pages of a LIST, cut at random.

    Each of them reads before it writes, as LangGraph does.
    """
    writers = [world.saver(), world.saver()]
    turns = conversation(2, begin=begin)
    rng = random.Random(seed)

    def between() -> None:
        for call in turns:
            writer = rng.choice(writers)
            assert writer.get_tuple(config_of(THREAD)) is not None
            call.apply(writer)

    def on_first_page(key: str) -> bool:
        name = SegmentName.parse(key)
        return bool(random.Random(f"{seed}/{name.seq}/{name.writer}").getrandbits(1))

    return TornListStore(world.objects, on_first_page, between), turns


def prefixes(calls: list[Call], last: int) -> list[object]:
    """The head's values after the calls without the last ones, one fewer at a time."""
    return [head_value(model_of(*calls[: len(calls) - cut])) for cut in range(last + 1)]


@pytest.mark.parametrize("seed", range(12))
def test_a_torn_list_shows_a_state_that_once_was_the_threads(world: World, seed: int) -> None:
    calls = conversation(3)
    with world.saver() as saver:
        play(calls, saver)
    for _ in range(3):
        objects, turns = torn_by(world, seed, begin=len(calls) // 2)
        reader = world.saver(objects=objects)
        reader.store.settings()
        calls += turns
        found = reader.get_tuple(config_of(THREAD))
        assert found is not None
        history = reader.get_tuple(config_of(THREAD, found.checkpoint["id"]))
        assert history is not None
        assert head_value(reader) in prefixes(calls, len(turns))
        world.agree(model_of(*calls))


@pytest.mark.parametrize("seed", range(12))
def test_the_first_delta_history_over_a_torn_list_is_one_that_once_was(
    world: World, seed: int
) -> None:
    calls = conversation(3)
    with world.saver() as saver:
        play(calls, saver)
    objects, turns = torn_by(world, seed, begin=3)
    reader = world.saver(objects=objects)
    reader.store.settings()
    found = reader.get_delta_channel_history(config=config_of(THREAD), channels=["messages"])
    assert [v for _, _, v in found["messages"]["writes"]] in prefixes([*calls, *turns], len(turns))


@pytest.mark.parametrize("seed", range(12))
def test_a_job_over_a_torn_list_freezes_no_wrong_value(world: World, seed: int) -> None:
    calls = conversation(3)
    with world.saver() as saver:
        play(calls, saver)
    for _ in range(3):
        objects, turns = torn_by(world, seed, begin=len(calls) // 2)
        calls += turns
        assert world.compact(objects=objects).outcome == COMMITTED
        world.agree(model_of(*calls))
    world.compact()
    world.compact()
    world.agree(model_of(*calls))
    assert not world.segments()
    assert id_of(9) == calls[-1].checkpoint_id  # type: ignore[union-attr]
