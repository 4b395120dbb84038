"""Time travel in a long thread: the right value, in a number of requests that length hardly moves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from logstore.store import LONG_GRACE_S, SHORT_GRACE_S
from tests.helpers import thread
from tests.protocol.test_budget import counting
from tests.protocol.world import THREAD, World, config_of, conversation, id_of, play, value_at

LENGTHS = (300, 3_000)
JOBS = 12


@pytest.fixture(scope="module", params=LENGTHS)
def long(request: pytest.FixtureRequest) -> Iterator[tuple[World, int]]:
    """A thread of so many checkpoints, compacted now and then, with a tail."""
    world = World(partitions=1, short_grace_s=SHORT_GRACE_S, long_grace_s=LONG_GRACE_S)
    length = request.param
    step = length // JOBS
    # Held until the flush: how many segments the tail has must not follow from the machine's load.
    with world.saver(durability="buffered", hold_s=600.0) as saver:
        for begin in range(0, length, step):
            play(conversation(step, begin=begin), saver)
            saver.flush()
            if begin + step < length:
                world.compact()
    yield world, length
    world.close()


def expected(step: int) -> list[Any]:
    """What the channel's history at a checkpoint consists of."""
    calls = conversation(step)
    return [item for call in calls if hasattr(call, "values") for item in call.values]


BOUND = 24
"""Requests of a fresh process for any checkpoint, its value included."""


def places(length: int) -> list[int]:
    return [1, length // 2, length - 1]


def test_any_checkpoint_has_its_value_in_a_bounded_number_of_requests(
    long: tuple[World, int],
) -> None:
    world, length = long
    for step in places(length):
        counted, saver = counting(world)
        counted.reset()
        config = config_of(THREAD, id_of(step))
        found = saver.get_tuple(config)
        assert found is not None
        assert value_at(saver, found, config) == expected(step)
        assert counted.counts.total() <= BOUND, (step, counted.counts)


def test_a_page_before_any_checkpoint_is_read_in_a_bounded_number_of_requests(
    long: tuple[World, int],
) -> None:
    world, length = long
    for step in places(length):
        counted, saver = counting(world)
        counted.reset()
        page = list(saver.list(thread(THREAD), before=config_of(THREAD, id_of(step)), limit=20))
        ids = [c.config["configurable"]["checkpoint_id"] for c in page]
        assert ids == [id_of(n) for n in range(step - 1, max(step - 21, -1), -1)]
        assert counted.counts.total() <= BOUND, (step, counted.counts)


def test_a_filter_finds_one_checkpoint_of_many_in_a_bounded_number_of_requests(
    long: tuple[World, int],
) -> None:
    world, length = long
    counted, saver = counting(world)
    counted.reset()
    [found] = saver.list(thread(THREAD), filter={"step": length // 3}, limit=1)
    assert found.metadata["step"] == length // 3
    assert counted.counts.total() <= BOUND
