"""Pruning threads of real graphs: subgraphs, interrupts, parallel tasks, a channel that changes."""

# No `from __future__ import annotations`: LangGraph evaluates the annotations of states.

from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from logstore import LogStoreSaver
from tests.helpers import (
    Place,
    Script,
    append,
    assert_twins,
    both,
    concat,
    thread,
    twin_state,
)
from tests.saver.test_prune import ids


class Plain(TypedDict, total=False):
    delta: Annotated[list, concat]
    plain: Annotated[list, concat]


class Delta(TypedDict, total=False):
    delta: Annotated[list, DeltaChannel(append, snapshot_frequency=1000)]
    plain: Annotated[list, concat]


def line(state: type, saver: Any) -> Any:
    """A graph of one node on a state."""
    builder = StateGraph(state)
    builder.add_node("work", lambda values: both(f"answer {len(values['plain'])}"))
    builder.add_edge(START, "work")
    builder.add_edge("work", END)
    return builder.compile(checkpointer=saver)


def pausing_graph(saver: Any) -> Any:
    """Three parallel tasks, of which two ask."""
    builder = StateGraph(twin_state(7))

    def asks(number: int) -> Callable[[Any], Any]:
        return lambda values: both(f"{number}: {interrupt(f'question {number}')}")

    builder.add_node("n0", lambda values: both("done"))
    builder.add_node("n1", asks(1))
    builder.add_node("n2", asks(2))
    for name in ("n0", "n1", "n2"):
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    return builder.compile(checkpointer=saver)


def nested_graph(saver: Any, *, remembers: bool = False, asks: bool = False) -> Any:
    """A graph whose node is a graph with a delta channel of its own."""
    inner = StateGraph(twin_state(5))

    def work(values: Any) -> Any:
        heard = interrupt("inner question") if asks else "nothing"
        return both(f"inner {len(values.get('plain', []))} {heard}")

    inner.add_node("work", work)
    inner.add_edge(START, "work")
    inner.add_edge("work", END)
    outer = StateGraph(twin_state(7))
    outer.add_node("sub", inner.compile(checkpointer=True if remembers else None))
    outer.add_edge(START, "sub")
    outer.add_edge("sub", END)
    return outer.compile(checkpointer=saver)


def namespaces(saver: LogStoreSaver) -> set[str]:
    """The namespaces that `list` shows."""
    return {c.config["configurable"]["checkpoint_ns"] for c in saver.list(thread())}


@pytest.mark.parametrize("compacted", [False, True])
def test_a_pruned_thread_resumes_all_its_interrupts(place: Place, compacted: bool) -> None:
    with place.fresh() as saver:
        graph = pausing_graph(saver)
        for turn in range(3):
            graph.invoke(both(f"turn {turn}"), thread())
            if turn < 2:
                waiting = graph.get_state(thread()).interrupts
                graph.invoke(Command(resume={i.id: "so" for i in waiting}), thread())
        before = graph.get_state(thread())
        saver.prune(["t"])
    if compacted:
        place.compact(graph=pausing_graph(None))
    with place.fresh() as saver:
        graph = pausing_graph(saver)
        state = graph.get_state(thread())
        assert state.interrupts == before.interrupts
        assert len(state.interrupts) == 2
        assert [t.name for t in state.tasks if t.result] == [
            t.name for t in before.tasks if t.result
        ]
        live = graph.invoke(Command(resume={i.id: "yes" for i in state.interrupts}), thread())
    assert live["plain"][-3:] == ["done", "1: yes", "2: yes"]
    assert_twins(place, pausing_graph, thread(), live)


@pytest.mark.parametrize("compacted", [False, True])
def test_a_subgraph_call_goes_with_the_root_checkpoint_it_belongs_to(
    place: Place, compacted: bool
) -> None:
    with place.fresh() as saver:
        graph = nested_graph(saver)
        for turn in range(3):
            live = graph.invoke(both(f"turn {turn}"), thread())
        assert len(namespaces(saver)) == 4
        saver.prune(["t"])
        assert namespaces(saver) == {""}
        assert len(ids(saver)) == 1
    if compacted:
        place.compact(graph=nested_graph(None))
    assert_twins(place, nested_graph, thread(), live)
    with place.fresh() as saver:
        live = nested_graph(saver).invoke(both("on"), thread())
    assert_twins(place, nested_graph, thread(), live)


@pytest.mark.parametrize("compacted", [False, True])
def test_a_call_that_waits_for_an_answer_is_kept_and_resumes(place: Place, compacted: bool) -> None:
    def make(saver: Any) -> Any:
        return nested_graph(saver, asks=True)

    with place.fresh() as saver:
        graph = make(saver)
        graph.invoke(both("first"), thread())
        graph.invoke(Command(resume="one"), thread())
        graph.invoke(both("second"), thread())
        saver.prune(["t"])
        assert len(namespaces(saver)) == 2
    if compacted:
        place.compact(graph=make(None))
    with place.fresh() as saver:
        live = make(saver).invoke(Command(resume="two"), thread())
    assert "two" in live["plain"][-1]
    assert_twins(place, make, thread(), live)


@pytest.mark.parametrize("compacted", [False, True])
def test_a_subgraph_with_a_memory_keeps_its_latest_checkpoint(
    place: Place, compacted: bool
) -> None:
    def make(saver: Any) -> Any:
        return nested_graph(saver, remembers=True)

    with place.fresh() as saver:
        graph = make(saver)
        for turn in range(3):
            graph.invoke(both(f"turn {turn}"), thread())
        saver.copy_thread("t", "alone")
        saver.prune(["t"])
        assert namespaces(saver) == {"", "sub"}
        assert len(ids(saver, ns="sub")) == 1
    if compacted:
        place.compact(graph=make(None))
    with place.fresh() as saver:
        pruned = make(saver).invoke(both("on"), thread())
    with place.fresh() as saver:
        assert pruned == make(saver).invoke(both("on"), thread("alone"))


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize(("first", "then"), [(Plain, Delta), (Delta, Plain)])
def test_a_thread_whose_channel_changed_its_kind_is_pruned_safely(
    place: Place, first: type, then: type, compacted: bool
) -> None:
    with place.fresh() as saver:
        for turn in range(3):
            line(first, saver).invoke(both(f"turn {turn}"), thread())
        for turn in range(3, 5):
            line(then, saver).invoke(both(f"turn {turn}"), thread())
        saver.copy_thread("t", "alone")
        saver.prune(["t"])
    if compacted:
        place.compact(graph=line(Delta, None))
    for state in (then, first):
        with place.fresh() as saver:
            assert (
                line(state, saver).get_state(thread()).values
                == line(state, saver).get_state(thread("alone")).values
            )
    with place.fresh() as saver:
        live = line(then, saver).invoke(both("on"), thread())
        assert live == line(then, saver).invoke(both("on"), thread("alone"))


def test_a_call_whose_root_checkpoint_is_still_on_its_way_is_kept(place: Place) -> None:
    with place.fresh() as saver:
        Script([saver]).chain(3)
        call = Script([saver], ns="sub:1")
        at = call.put(parents={"": "1f099999"})
        old = Script([saver], ns="sub:2")
        old.put(parents={"": "1f000001"})
        saver.prune(["t"])
        assert ids(saver, ns="sub:1") == [at]
        assert ids(saver, ns="sub:2") == []


def test_writes_whose_checkpoint_is_on_its_way_survive_a_prune(place: Place) -> None:
    with place.fresh() as saver:
        script = Script([saver])
        chain = script.chain(3)
        coming = script.next_id()
        script.write(coming, "early")
        saver.prune(["t"])
        script.put(chain[-1], at=coming)
        found = saver.get_tuple(thread())
        assert found is not None
        assert found.checkpoint["id"] == coming
        assert [w[2] for w in found.pending_writes or ()] == [["early"]]
