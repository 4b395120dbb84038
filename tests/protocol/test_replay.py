"""After a compaction a head read replays at most K updates, and what came since."""

from __future__ import annotations

import random

import pytest

from tests.protocol.world import (
    CHANNEL,
    THREAD,
    Put,
    World,
    Writes,
    config_of,
    conversation,
    id_of,
    model_of,
    play,
)

WRITES_A_TURN = 2


def replayed(world: World, checkpoint_id: str | None = None, thread: str = THREAD) -> int:
    """How many updates a fresh reader replays."""
    with world.saver() as reader:
        found = reader.get_delta_channel_history(
            config=config_of(thread, checkpoint_id), channels=[CHANNEL]
        )
        writes = len(found[CHANNEL]["writes"])
    return -(-writes // WRITES_A_TURN)


@pytest.mark.parametrize("k", [1, 2, 3, 7])
@pytest.mark.parametrize("seed", range(4))
def test_a_head_read_replays_at_most_k_updates_and_what_came_since_at_any_schedule(
    world: World, k: int, seed: int
) -> None:
    rng = random.Random(f"{k}/{seed}")
    begun = since = 0
    while begun < 30:
        turns = rng.choice([1, 1, 2, 5, 9])
        with world.saver() as saver:
            play(conversation(turns, begin=begun), saver)
        begun, since = begun + turns, since + turns
        for _ in range(rng.choice([0, 1, 1, 2])):
            world.compact(k)
            since = 0
        assert replayed(world) <= k + since
    world.compact(k)
    assert replayed(world) <= k
    world.agree(model_of(*conversation(begun)))


def test_every_old_checkpoint_replays_at_most_k_updates_once_it_is_compacted(
    world: World,
) -> None:
    for begin in range(0, 20, 4):
        with world.saver() as saver:
            play(conversation(4, begin=begin), saver)
        world.compact()
    for step in range(1, 20):
        assert replayed(world, id_of(step)) <= 3


def test_both_branches_of_a_fork_replay_at_most_k_updates(world: World) -> None:
    calls = conversation(10)
    with world.saver() as saver:
        play(calls, saver)
    world.compact()
    # The write at the fork's parent is one of the conversation's own; the branch goes on.
    fork = [Put(THREAD, id_of(1, "fork"), id_of(4), 5)]
    for step in range(2, 9):
        parent = id_of(step - 1, "fork")
        fork.append(Writes(THREAD, parent, (f"fork {step}", f"fork {step} too")))
        fork.append(Put(THREAD, id_of(step, "fork"), parent, step + 4))
    with world.saver() as saver:
        play(fork, saver)
    world.compact()
    assert replayed(world) <= 3
    assert replayed(world, id_of(10)) <= 3
    world.agree(model_of(*calls, *fork))


def test_a_late_write_below_a_snapshot_does_not_lengthen_the_replay_for_good(
    world: World,
) -> None:
    calls = [*conversation(11), Writes(THREAD, id_of(1), ("late",), task="zz late")]
    with world.saver() as saver:
        play(calls[:-1], saver)
    world.compact()
    with world.saver() as saver:
        play(calls[-1:], saver)
    world.compact()
    for step in range(3, 12):
        assert replayed(world, id_of(step)) <= 3 + (step <= 3)
    world.agree(model_of(*calls))
