"""The process's mode: frozen at the first graph, marked in checkpoints, guarded in full mode."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph.message import add_messages

from logstore.channels import merge_message_writes, messages_channel
from logstore.errors import (
    CheckpointModeMismatchError,
    CheckpointModeReconfigurationError,
    InvalidOptionError,
    LogStoreError,
)
from logstore.guard import with_mode
from logstore.modes import (
    MODE_KEY,
    freeze,
    frozen_mode,
    resolve_snapshot_frequency,
    unfreeze_for_tests,
)
from tests.config.apps import agent_graph, contents, process, say
from tests.helpers import Place, memory_place, thread

CADENCE = (
    "checkpoint_delta.snapshot_frequency is restart-required and cannot change in a running process"
)
MODE = "checkpoint_channel_mode is restart-required and cannot change in a running process"
MISMATCH = (
    "Thread requires delta mode; materialize and convert its checkpoints before using full mode."
)


@pytest.fixture
def place() -> Iterator[Place]:
    with memory_place() as place:
        yield place


# -- freezing ----------------------------------------------------------------------------


def test_the_first_graph_freezes_the_cadence() -> None:
    messages_channel("delta", 5)
    with pytest.raises(CheckpointModeReconfigurationError) as caught:
        messages_channel("delta", 6)
    assert str(caught.value) == CADENCE
    assert messages_channel("delta", 5).snapshot_frequency == 5


@pytest.mark.parametrize(("first", "second"), [("delta", "full"), ("full", "delta")])
def test_the_first_graph_freezes_the_mode(first: Any, second: Any) -> None:
    messages_channel(first)
    with pytest.raises(CheckpointModeReconfigurationError) as caught:
        messages_channel(second)
    assert str(caught.value) == MODE
    with pytest.raises(CheckpointModeReconfigurationError) as caught:
        with_mode(InMemorySaver(), second)
    assert str(caught.value) == MODE


@pytest.mark.parametrize("frequency", [0, -1])
def test_a_cadence_is_positive(frequency: int) -> None:
    for refused in (
        lambda: messages_channel("delta", frequency),
        lambda: resolve_snapshot_frequency(frequency),
    ):
        with pytest.raises(ValueError, match=r"^snapshot frequency must be positive$"):
            refused()
    assert frozen_mode() is None, "what was refused must not freeze anything"


def test_the_cadence_is_the_argument_or_what_is_frozen_or_ten() -> None:
    assert resolve_snapshot_frequency() == 10
    assert resolve_snapshot_frequency(3) == 3
    messages_channel("delta", 4)
    assert resolve_snapshot_frequency() == 4
    assert resolve_snapshot_frequency(3) == 3
    assert messages_channel("delta").snapshot_frequency == 4
    assert messages_channel().snapshot_frequency == 4


def test_without_an_argument_the_mode_is_what_is_frozen_or_full() -> None:
    assert messages_channel() is add_messages
    unfreeze_for_tests()
    freeze("delta")
    assert messages_channel().snapshot_frequency == 10
    assert with_mode(InMemorySaver()).mode == "delta"


def test_the_cadence_is_ignored_in_full_mode() -> None:
    assert messages_channel("full", 0) is add_messages
    assert messages_channel("full", 7) is add_messages
    assert freeze("full", 8) == ("full", None)


def test_no_other_mode_is_known() -> None:
    with pytest.raises(InvalidOptionError, match="'full' or 'delta'"):
        messages_channel("deltas")  # type: ignore[arg-type]


def test_the_errors_are_logstores() -> None:
    assert issubclass(CheckpointModeReconfigurationError, LogStoreError)
    assert issubclass(CheckpointModeMismatchError, LogStoreError)


# -- the graph --------------------------------------------------------------------------


def test_the_cadence_is_in_the_compiled_graphs_channel_table() -> None:
    channel = agent_graph(messages_channel("delta", 6), None).channels["messages"]
    assert isinstance(channel, DeltaChannel)
    assert channel.snapshot_frequency == 6
    assert channel.reducer is merge_message_writes
    unfreeze_for_tests()
    ordinary = agent_graph(messages_channel("full", 6), None).channels["messages"]
    assert isinstance(ordinary, BinaryOperatorAggregate)


@pytest.mark.parametrize("part", ["configurable", "metadata"])
def test_a_requests_config_changes_neither_mode_nor_cadence(place: Place, part: str) -> None:
    graph = process(place.saver(), "delta", 2)
    forged = {
        MODE_KEY: "full",
        "checkpoint_channel_mode": "full",
        "snapshot_frequency": 1000,
        "checkpoint_delta": {"snapshot_frequency": 1000},
    }
    for number in range(4):
        config: Any = thread()
        config[part] = {**config.get(part, {}), **forged}
        graph.invoke({"messages": [HumanMessage(f"{number}", id=f"h{number}")]}, config)
    found = list(place.saver().list(thread()))
    assert {t.metadata.get(MODE_KEY) for t in found} == {"delta"}
    snapshots = {
        t.checkpoint["channel_versions"]["messages"]
        for t in found
        if isinstance(t.checkpoint["channel_values"].get("messages"), _DeltaSnapshot)
    }
    assert len(snapshots) == 4, "eight updates at K = 2"
    assert graph.channels["messages"].snapshot_frequency == 2


# -- the mark ----------------------------------------------------------------------------


def test_every_delta_checkpoint_bears_the_mark_and_no_cadence(place: Place) -> None:
    graph = process(place.saver(), "delta", 3)
    say(graph, "a", "b")
    graph.update_state(thread(), {"messages": [HumanMessage("c", id="c")]})
    graph.update_state(thread(), None, as_node="__copy__")
    found = list(place.saver().list(thread()))
    assert {t.metadata["source"] for t in found} == {"input", "loop", "update", "fork"}
    for one in found:
        assert one.metadata[MODE_KEY] == "delta"  # type: ignore[typeddict-item]
        assert "frequency" not in repr(sorted(one.metadata)), "the cadence is stamped nowhere"


@pytest.mark.parametrize("part", ["configurable", "metadata"])
def test_a_full_checkpoint_bears_no_mark_whatever_a_request_says(place: Place, part: str) -> None:
    graph = process(place.saver(), "full")
    config: Any = thread()
    config[part] = {**config.get(part, {}), MODE_KEY: "delta", "user": "x"}
    graph.invoke({"messages": [HumanMessage("a", id="a")]}, config)
    graph.update_state(config, {"messages": [HumanMessage("b", id="b")]})
    for one in place.saver().list(thread()):
        assert MODE_KEY not in one.metadata
        assert one.metadata["user"] == "x"  # type: ignore[typeddict-item]
    assert contents(say(graph, "c")["messages"])[-2:] == ["c", "answer to c"]


# -- the guard ---------------------------------------------------------------------------


def delta_thread(place: Place, *texts: str, k: int = 3) -> None:
    say(process(place.saver(), "delta", k), *(texts or ("a", "b")))


REFUSED = {
    "invoke": lambda graph: say(graph, "x"),
    "get_state": lambda graph: graph.get_state(thread()),
    "get_state_history": lambda graph: list(graph.get_state_history(thread())),
    "update_state": lambda graph: graph.update_state(thread(), {"asked": "x"}),
    "resume": lambda graph: graph.invoke(None, thread()),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("k", [1, 3, 1000])
def test_a_full_process_refuses_a_delta_thread_and_writes_nothing(
    place: Place, call: Any, k: int
) -> None:
    delta_thread(place, k=k)
    before = place.keys("log/")
    graph = process(place.saver(), "full")
    with pytest.raises(CheckpointModeMismatchError) as caught:
        call(graph)
    assert str(caught.value) == MISMATCH
    assert place.keys("log/") == before


async def test_a_full_process_refuses_from_async_code_too(place: Place) -> None:
    delta_thread(place)
    before = place.keys("log/")
    graph = process(place.saver(), "full")
    with pytest.raises(CheckpointModeMismatchError):
        await graph.ainvoke({"messages": ["x"]}, thread())
    with pytest.raises(CheckpointModeMismatchError):
        await graph.aget_state(thread())
    with pytest.raises(CheckpointModeMismatchError):
        [_ async for _ in graph.aget_state_history(thread())]
    with pytest.raises(CheckpointModeMismatchError):
        await graph.aupdate_state(thread(), {"asked": "x"})
    assert place.keys("log/") == before


def test_the_guard_is_on_every_call_of_the_saver(place: Place) -> None:
    delta_thread(place)
    found = place.saver().get_tuple(thread())
    assert found is not None
    unfreeze_for_tests()
    guarded = with_mode(place.saver(), "full")
    before = place.keys("log/")
    for config in (thread(), found.config):
        for call in (
            lambda c: guarded.get_tuple(c),
            lambda c: guarded.put(c, {**found.checkpoint, "id": "9"}, {}, {}),
            lambda c: guarded.get_delta_channel_history(config=c, channels=["messages"]),
        ):
            with pytest.raises(CheckpointModeMismatchError):
                call(config)
    with pytest.raises(CheckpointModeMismatchError):
        guarded.put_writes(found.config, [("messages", [])], "task")
    with pytest.raises(CheckpointModeMismatchError):
        list(guarded.list(None))
    assert place.keys("log/") == before


async def test_the_guard_is_on_every_async_call_of_the_saver(place: Place) -> None:
    delta_thread(place)
    found = place.saver().get_tuple(thread())
    assert found is not None
    unfreeze_for_tests()
    guarded = with_mode(place.saver(), "full")
    before = place.keys("log/")
    for call in (
        lambda c: guarded.aget_tuple(c),
        lambda c: guarded.aput(c, {**found.checkpoint, "id": "9"}, {}, {}),
        lambda c: guarded.aput_writes(c, [("messages", [])], "task"),
        lambda c: guarded.aget_delta_channel_history(config=c, channels=["messages"]),
    ):
        with pytest.raises(CheckpointModeMismatchError):
            await call(found.config)
    with pytest.raises(CheckpointModeMismatchError):
        [_ async for _ in guarded.alist(None)]
    assert place.keys("log/") == before


@pytest.mark.parametrize("k", [1, 2, 1000])
def test_a_delta_thread_without_the_mark_is_refused_too(place: Place, k: int) -> None:
    """A graph that bypassed the guard left its counters or its snapshots."""
    say(agent_graph(messages_channel("delta", k), place.saver()), "a")
    graph = process(place.saver(), "full")
    with pytest.raises(CheckpointModeMismatchError):
        graph.get_state(thread())


def test_a_thread_that_turns_delta_under_a_full_process_is_refused(place: Place) -> None:
    full = process(place.saver(), "full")
    say(full, "a")
    assert full.get_state(thread("later")).values == {}
    delta = process(place.saver(), "delta", 3)
    say(delta, "b")
    say(delta, "c", thread_id="later")
    for thread_id in ("t", "later"):
        with pytest.raises(CheckpointModeMismatchError):
            say(full, "d", thread_id=thread_id)


def test_full_mode_costs_no_read_beside_langgraphs_own(place: Place) -> None:
    class Counted(InMemorySaver):
        reads = 0

        def get_tuple(self, config: Any) -> Any:
            self.reads += 1
            return super().get_tuple(config)

    plain, guarded = Counted(), Counted()
    say(agent_graph(messages_channel("full"), plain), "a", "b")
    say(process(guarded, "full"), "a", "b")
    assert guarded.reads == plain.reads


# -- from full to delta ------------------------------------------------------------------


def test_a_delta_process_reads_a_full_thread_and_carries_it_on(place: Place) -> None:
    say(process(place.saver(), "full"), "a", "b")
    delta = process(place.saver(), "delta", 3)
    assert contents(delta.get_state(thread()).values["messages"]) == [
        "a", "answer to a", "b", "answer to b",
    ]  # fmt: skip
    for text in ("c", "d", "e"):
        live = say(delta, text)
        read = process(place.saver(), "delta", 3).get_state(thread()).values
        assert read["messages"] == live["messages"]
    assert contents(live["messages"])[::2] == ["a", "b", "c", "d", "e"]
    history = list(delta.get_state_history(thread()))
    assert [len(s.values.get("messages", [])) for s in history] == sorted(
        (len(s.values.get("messages", [])) for s in history), reverse=True
    )


def test_the_wrapper_passes_everything_else_on(place: Place) -> None:
    saver = place.saver()
    guarded = with_mode(saver, "delta")
    assert guarded.uri == saver.uri
    assert guarded.config_specs == saver.config_specs
    say(agent_graph(messages_channel(), guarded), "a")
    guarded.flush()
    guarded.delete_thread("t")
    assert place.saver().get_tuple(thread()) is None
    with pytest.raises(AttributeError):
        _ = guarded.no_such_thing


def test_a_copy_has_a_serde_of_its_own(place: Place) -> None:
    """LangGraph copies a saver to give it the graph's allowlist."""
    guarded = with_mode(place.saver(), "delta")
    before, clone = guarded.serde, copy.copy(guarded)
    clone.serde = JsonPlusSerializer()
    assert clone.serde is clone.saver.serde is not before
    assert guarded.serde is guarded.saver.serde is before
    assert clone.get_next_version(None, None).startswith("0")
