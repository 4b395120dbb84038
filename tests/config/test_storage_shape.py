"""What is stored of the messages, at several cadences, before, between and after compactions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from compactor import compact
from logstore.channels import delta_messages
from logstore.config import ChannelMode
from tests.config.apps import agent_graph, contents, operator_graph, process, say
from tests.helpers import Place, memory_place, thread

CADENCES = (1, 2, 10, 1000)
TURNS = 12
"""Of two updates and one superstep without any."""
COUNTERS = "counters_since_delta_snapshot"


@pytest.fixture
def place() -> Iterator[Place]:
    with memory_place() as place:
        yield place


def turns(
    place: Place, mode: ChannelMode, k: int | None, compact_every: int = 0, made_at: int = 10
) -> None:
    """Write the thread in one mode and cadence, with compactions between."""
    graph = process(place.saver(), mode, k)
    for number in range(TURNS):
        say(graph, f"q{number}")
        if compact_every and number % compact_every == 0:
            place.compact(graph=operator_graph(1000), frequency=made_at)


def chain(place: Place) -> list[CheckpointTuple]:
    """The thread's checkpoints as they are stored, oldest first."""
    with place.fresh() as saver:
        return list(saver.list(thread()))[::-1]


def states(place: Place, mode: ChannelMode, k: int | None) -> list[tuple[int, list[Any]]]:
    """Step and messages of each checkpoint, as a process of that mode reads them."""
    with place.fresh() as saver:
        found = list(process(saver, mode, k).get_state_history(thread()))
    return [(s.metadata["step"], contents(s.values.get("messages", []))) for s in reversed(found)]


class Step(NamedTuple):
    """A checkpoint as the contract has it."""

    inline: bool
    """The channel's version came with a snapshot of the graph's."""
    counters: tuple[int, int] | None
    due: bool
    """The compactor's cadence passes a multiple here."""


def contract(found: list[CheckpointTuple], k: int, made_at: int) -> list[Step]:
    """What the checkpoints should be, worked out from the versions alone."""
    steps: list[Step] = []
    updates = supersteps = 0
    version = snapshot_version = None
    for one in found:
        before = updates
        now = one.checkpoint["channel_versions"].get("messages")
        updates, supersteps = updates + (now != version), supersteps + 1
        version = now
        if updates >= k:
            updates = supersteps = 0
            snapshot_version = version
        inline = version is not None and version == snapshot_version
        counted = (updates, supersteps) if supersteps else None
        due = not inline and updates // made_at > before // made_at
        steps.append(Step(inline, counted, due))
    return steps


@pytest.mark.parametrize("k", CADENCES)
def test_before_a_compaction_only_every_kth_update_has_a_snapshot(place: Place, k: int) -> None:
    turns(place, "delta", k)
    found = chain(place)
    steps = contract(found, k, 10)
    for one, step in zip(found, steps, strict=True):
        values = one.checkpoint["channel_values"]
        assert ("messages" in values) == step.inline
        assert not step.inline or isinstance(values["messages"], _DeltaSnapshot)
        counters = one.metadata.get(COUNTERS, {}).get("messages")
        assert (tuple(counters) if counters else None) == step.counters
    expected = 2 * TURNS // k
    assert len(set(_inline_versions(found, steps))) == expected


def _inline_versions(found: list[CheckpointTuple], steps: list[Step]) -> Iterator[Any]:
    for one, step in zip(found, steps, strict=True):
        if step.inline:
            yield one.checkpoint["channel_versions"]["messages"]


@pytest.mark.parametrize("made_at", [1, 2, 10])
@pytest.mark.parametrize("k", CADENCES)
def test_the_compactor_fills_its_cadence_and_changes_nothing_else(
    place: Place, k: int, made_at: int
) -> None:
    turns(place, "delta", k)
    before = chain(place)
    place.compact(graph=operator_graph(k), frequency=made_at)
    after = chain(place)
    steps = contract(before, k, made_at)
    for old, new, step in zip(before, after, steps, strict=True):
        values = new.checkpoint["channel_values"]
        assert ("messages" in values) == (step.inline or step.due)
        if step.due:
            assert isinstance(values["messages"], _DeltaSnapshot)
        elif step.inline:
            assert values["messages"] == old.checkpoint["channel_values"]["messages"]
        assert values.get("asked") == old.checkpoint["channel_values"].get("asked")
        assert new.metadata == old.metadata, "the counters included"
        assert new.checkpoint["channel_versions"] == old.checkpoint["channel_versions"]


def test_a_compactors_snapshot_shows_at_its_own_checkpoint_only(place: Place) -> None:
    turns(place, "delta", 1000)
    place.compact(graph=operator_graph(1000), frequency=2)
    with_snapshot, without = [], []
    for one in chain(place):
        version = one.checkpoint["channel_versions"].get("messages")
        shown = "messages" in one.checkpoint["channel_values"]
        (with_snapshot if shown else without).append(version)
    assert len(with_snapshot) == TURNS == len(set(with_snapshot))
    # The superstep after it has the same version, and shows nothing.
    assert set(with_snapshot) <= set(without)


@pytest.mark.parametrize("made_at", CADENCES)
@pytest.mark.parametrize("compact_every", [1, 3])
def test_any_schedule_of_jobs_gives_the_same_shape(
    place: Place, compact_every: int, made_at: int
) -> None:
    turns(place, "delta", 1000, compact_every, made_at)
    place.compact(graph=operator_graph(1000), frequency=made_at)
    found = chain(place)
    for one, step in zip(found, contract(found, 1000, made_at), strict=True):
        assert ("messages" in one.checkpoint["channel_values"]) == step.due
        assert tuple(one.metadata[COUNTERS]["messages"]) == step.counters


def test_full_mode_has_the_whole_list_in_every_checkpoint(place: Place) -> None:
    turns(place, "full", None)
    place.compact(graph=operator_graph(10))
    lists = [one.checkpoint["channel_values"].get("messages") for one in chain(place)]
    assert lists[0] is None, "the input is not applied yet"
    lengths = [len(found) for found in lists[1:]]
    assert lengths == sorted(lengths)
    assert lengths[-1] == 2 * TURNS
    assert all(isinstance(found, list) for found in lists[1:])


def spoken() -> list[tuple[int, list[str]]]:
    """Step and messages of each checkpoint, as the turns say them."""
    said: list[str] = []
    found: list[tuple[int, list[str]]] = []
    for number in range(TURNS):
        for new in ([], [f"q{number}"], [f"answer to q{number}"], []):
            said = [*said, *new]
            found.append((len(found) - 1, said))
    return found


def test_full_mode_has_the_state_that_was_spoken(place: Place) -> None:
    turns(place, "full", None)
    assert states(place, "full", None) == spoken()


@pytest.mark.parametrize("compact_every", [0, 1, 4])
@pytest.mark.parametrize("k", CADENCES)
def test_the_state_is_the_same_at_every_cadence(place: Place, k: int, compact_every: int) -> None:
    turns(place, "delta", k, compact_every)
    assert states(place, "delta", k) == spoken(), "before the last compaction"
    for made_at in (10, 3):
        place.compact(graph=operator_graph(k), frequency=made_at)
        assert states(place, "delta", k) == spoken(), f"after a compaction at K = {made_at}"


def test_processes_of_several_cadences_read_each_others_threads(place: Place) -> None:
    for number, k in enumerate((1, 1000, 2, 10, 1000)):
        graph = process(place.saver(), "delta", k)
        live = say(graph, f"q{number}")
        for reader in CADENCES:
            with place.fresh() as saver:
                read = process(saver, "delta", reader).get_state(thread()).values
            assert read["messages"] == live["messages"]
        compact(place.uri, graph=operator_graph(k), frequency=3)


# -- the two counters ---------------------------------------------------------------------

QUIET = """
import json
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from logstore.channels import delta_messages
from tests.config.apps import agent_graph
from tests.helpers import memory_place, thread

with memory_place() as place:
    graph = agent_graph(delta_messages({k}), place.saver())
    graph.invoke({{"messages": [HumanMessage("once", id="h")]}}, thread())
    for _ in range(4):
        graph.update_state(thread(), {{"asked": "x"}}, as_node="rest")
    if {made_at}:
        place.compact(graph=agent_graph(delta_messages({k}), None), frequency={made_at})
    found = list(place.saver().list(thread()))[::-1]
    print(json.dumps([
        (
            one.metadata.get("counters_since_delta_snapshot", {{}}).get("messages"),
            isinstance(one.checkpoint["channel_values"].get("messages"), _DeltaSnapshot),
        )
        for one in found
    ]))
"""


def quiet_thread(k: int, made_at: int, supersteps: int) -> list[tuple[Any, bool]]:
    """Two updates, then a channel without any: counters and snapshots, in a process of its own.

    LangGraph reads the bound from the environment when it is imported.
    """
    env = {**os.environ, "LANGGRAPH_DELTA_MAX_SUPERSTEPS_SINCE_SNAPSHOT": f"{supersteps}"}
    script = QUIET.format(k=k, made_at=made_at)
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [
        (tuple(counters) if counters else None, has) for counters, has in json.loads(done.stdout)
    ]


def test_the_updates_trip_first() -> None:
    assert quiet_thread(2, 0, 5) == [
        ((0, 1), False),
        ((1, 2), False),
        (None, True),  # the second update
        ((0, 1), True),  # the same version
        ((0, 2), True),
        ((0, 3), True),
        ((0, 4), True),
        (None, True),  # five supersteps later
    ]


def test_the_supersteps_trip_first_for_a_silent_channel() -> None:
    found = quiet_thread(1000, 0, 5)
    assert [has for _, has in found] == [False] * 4 + [True] * 4
    assert found[4] == (None, True)
    assert found[5] == ((0, 1), True)


def test_the_compactor_counts_both_too() -> None:
    """In line nothing trips: the bound is one that the thread does not reach."""
    by_updates = quiet_thread(1000, 2, 5000)
    assert [has for _, has in by_updates] == [False, False, True, False, False, False, False, False]
    assert [counters for counters, _ in by_updates] == [
        (0, 1), (1, 2), (2, 3), (2, 4), (2, 5), (2, 6), (2, 7), (2, 8),
    ]  # fmt: skip


def test_the_compactor_bounds_a_silent_channel(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = agent_graph(delta_messages(1000), place.saver())
    say(graph, "once")
    for _ in range(6):
        graph.update_state(thread(), {"asked": "x"}, as_node="rest")
    monkeypatch.setenv("LANGGRAPH_DELTA_MAX_SUPERSTEPS_SINCE_SNAPSHOT", "4")
    place.compact(graph=operator_graph(1000), frequency=1000)
    shown = ["messages" in one.checkpoint["channel_values"] for one in chain(place)]
    assert shown == [(number % 4) == 3 for number in range(len(shown))]
