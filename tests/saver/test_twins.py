"""The twin oracle: a delta channel equals a plain channel that received the same writes.

After every step the live result, the state and the whole history are compared, from fresh
savers, with compaction at every possible point. Wrong write order is invisible at a
snapshot frequency of 2, so every case runs at 2, 7 and 1000.
"""

# No `from __future__ import annotations`: LangGraph evaluates the annotations of states.

import operator
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Overwrite, interrupt

from tests.helpers import (
    CompactingSaver,
    Config,
    Make,
    Place,
    append,
    assert_same_tuple,
    assert_twins,
    both,
    concat,
    linear_graph,
    parallel_graph,
    send_graph,
    thread,
    twin_state,
)


class Schedule:
    """When a job runs, and what it folds."""

    def __init__(self, *, always: bool = False, steps: bool = False, **how: Any) -> None:
        self.always = always
        self.steps = steps
        self.how = how

    def job(self, make: Make) -> dict[str, Any]:
        """A job's options."""
        folds = self.how.get("fold", True)
        options = {k: v for k, v in self.how.items() if k != "fold"}
        return {"graph": make(None), **options} if folds else options

    def saver(self, place: Place, make: Make) -> Any:
        """A fresh saver, which compacts by itself if that is the schedule."""
        if not self.always:
            return place.saver()
        saver = place.saver(CompactingSaver)
        saver.how = self.job(make)
        return saver

    def after_step(self, place: Place, make: Make) -> None:
        """The end of a step of the test."""
        if self.steps:
            place.compact(**self.job(make))

    def finally_(self, place: Place, make: Make) -> None:
        """The end of the test: the job that runs afterwards."""
        place.compact(**self.job(make))


NEVER = Schedule()
SCHEDULES = {
    "never": NEVER,
    "k-after-steps": Schedule(steps=True),
    "k3-after-steps": Schedule(steps=True, frequency=3),
    "merge-after-steps": Schedule(steps=True, fold=False),
    "k1-after-writes": Schedule(always=True, frequency=1),
    "k3-after-writes": Schedule(always=True, frequency=3),
    "merge-after-writes": Schedule(always=True, fold=False),
}
# Every frequency with every kind of schedule; the three with the rarest snapshots most often.
PAIRS = [
    (2, "never"),
    (2, "k1-after-writes"),
    (7, "k-after-steps"),
    (7, "k3-after-writes"),
    (7, "merge-after-writes"),
    (1000, "never"),
    (1000, "k3-after-steps"),
    (1000, "merge-after-steps"),
    (1000, "k1-after-writes"),
]
schedules = pytest.mark.parametrize(
    ("k", "schedule"),
    [pytest.param(k, SCHEDULES[name], id=f"{k}-{name}") for k, name in PAIRS],
)
FEW = [(2, "merge-after-writes"), (7, "k3-after-writes"), (1000, "k3-after-steps")]
few_schedules = pytest.mark.parametrize(
    ("k", "schedule"),
    [pytest.param(k, SCHEDULES[name], id=f"{k}-{name}") for k, name in FEW],
)


def check(place: Place, make: Make, config: Config, schedule: Schedule, live: Any = None) -> None:
    """Compare before the last job, and after it."""
    assert_twins(place, make, config, live)
    schedule.finally_(place, make)
    assert_twins(place, make, config, live)


@pytest.mark.parametrize(
    ("k", "schedule"),
    [
        pytest.param(2, Schedule(steps=True, fold=False), id="2-merge-after-turns"),
        pytest.param(7, Schedule(steps=True, frequency=5), id="7-k5-after-turns"),
        pytest.param(1000, NEVER, id="1000-never"),
    ],
)
def test_sixty_turns_in_a_line_are_equal_in_state_and_history(
    place: Place, k: int, schedule: Schedule
) -> None:
    make = linear_graph(k)
    graph = make(schedule.saver(place, make))
    live = None
    for turn in range(60):
        live = graph.invoke(both(f"turn {turn}"), thread())
        if turn % 8 == 7:
            schedule.after_step(place, make)
    schedule.finally_(place, make)
    assert assert_twins(place, make, thread(), live) == 180
    assert live is not None
    assert len(live["plain"]) == 120


@schedules
def test_each_turn_in_a_line_reads_back_as_it_was(place: Place, k: int, schedule: Schedule) -> None:
    make = linear_graph(k)
    live = None
    for turn in range(5):
        # Each turn is a process of its own.
        live = make(schedule.saver(place, make)).invoke(both(f"turn {turn}"), thread())
        schedule.after_step(place, make)
        with place.fresh() as saver:
            state = make(saver).get_state(thread()).values
        assert state == live
        assert state["delta"] == state["plain"]
    check(place, make, thread(), schedule, live)


@pytest.mark.parametrize(
    ("k", "schedule", "graph_of"),
    [
        pytest.param(k, SCHEDULES[name], graph_of, id=f"{k}-{name}-{graph_of.__name__}")
        for graph_of, pairs in ((parallel_graph, PAIRS), (send_graph, FEW))
        for k, name in pairs
    ],
)
def test_parallel_tasks_that_finish_in_reverse_order_keep_their_order(
    place: Place, k: int, schedule: Schedule, graph_of: Callable[[int], Make]
) -> None:
    make = graph_of(k)
    live = None
    for turn in range(2):
        live = make(schedule.saver(place, make)).invoke(both(f"turn {turn}"), thread())
        schedule.after_step(place, make)
    check(place, make, thread(), schedule, live)


@pytest.mark.parametrize(
    ("any_place", "mode"),
    [
        ("file", "strict"),
        ("file", "checkpoint"),
        ("file", "buffered"),
        ("moto", "strict"),
        pytest.param("seaweedfs", "checkpoint", marks=pytest.mark.s3),
    ],
    indirect=["any_place"],
)
def test_twins_are_equal_on_every_backend_and_in_every_durability(
    any_place: Place, mode: str
) -> None:
    make = parallel_graph(1000, tasks=3, pause_s=0)
    for turn in range(4):
        with any_place.fresh(durability=mode) as saver:
            live = make(saver).invoke(both(f"turn {turn}"), thread())
        any_place.compact(graph=make(None), frequency=2)
        with any_place.fresh() as saver:
            assert make(saver).get_state(thread()).values == live
    assert_twins(any_place, make, thread(), live)
    assert any_place.snapshots()


@few_schedules
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_forks_are_right_in_both_branches(
    place: Place, k: int, schedule: Schedule, durability: Any
) -> None:
    make = linear_graph(k)
    graph = make(schedule.saver(place, make))

    def run(name: str, config: Config) -> Any:
        found = graph.invoke(both(name), config, durability=durability)
        schedule.after_step(place, make)
        return found

    run("one", thread())
    run("two", thread())
    kept = graph.get_state(thread()).config
    run("three", thread())
    branched = run("other three", kept)
    assert branched["delta"] == branched["plain"]
    assert "three" not in branched["plain"]
    base = graph.get_state(thread()).config
    for name in ("first", "second"):
        updated = graph.update_state(base, both(f"update {name}"), as_node="work")
        schedule.after_step(place, make)
        found = graph.get_state(updated).values
        assert found["delta"] == found["plain"]
        assert found["plain"][-1] == f"update {name}"
    live = run("four", thread())
    again = run("old branch", kept)
    assert again["delta"] == again["plain"]
    assert live["delta"] == live["plain"]
    check(place, make, thread(), schedule)


@few_schedules
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_every_durability_of_langgraph_reads_back_equal(
    place: Place, k: int, schedule: Schedule, durability: Any
) -> None:
    make = parallel_graph(k, tasks=3, pause_s=0.001)
    live = None
    for turn in range(4):
        graph = make(schedule.saver(place, make))
        live = graph.invoke(both(f"turn {turn}"), thread(), durability=durability)
        schedule.after_step(place, make)
    check(place, make, thread(), schedule, live)


@few_schedules
async def test_async_runs_read_back_equal(place: Place, k: int, schedule: Schedule) -> None:
    make = parallel_graph(k, tasks=3, pause_s=0.001)
    live = None
    for turn in range(3):
        graph = make(schedule.saver(place, make))
        live = await graph.ainvoke(both(f"turn {turn}"), thread())
        schedule.after_step(place, make)
        state = await graph.aget_state(thread())
        assert state.values == live
    check(place, make, thread(), schedule, live)


# -- from a plain channel to a delta channel ---------------------------------------------


def total(state: Any, writes: Sequence[Any]) -> Any:
    """Adds the writes of any type that adds; None counts for nothing."""
    for write in writes:
        state = write if state is None else state if write is None else state + write
    return state


def add(state: Any, write: Any) -> Any:
    return total(state, [write])


@few_schedules
@pytest.mark.parametrize(
    ("typ", "seed", "item"),
    [(list, ["old"], ["new"]), (list, [], ["new"]), (int, 0, 3), (str, "", "x"), (list, None, [1])],
    ids=["list", "empty-list", "zero", "empty-string", "none"],
)
def test_a_plain_channel_that_becomes_a_delta_channel_goes_on_from_its_value(
    place: Place, k: int, schedule: Schedule, typ: type, seed: Any, item: Any
) -> None:
    def graph_of(kind: Any) -> Make:
        class State(TypedDict, total=False):
            value: Annotated[typ, kind]  # type: ignore[valid-type]
            twin: Annotated[typ, add]  # type: ignore[valid-type]

        builder = StateGraph(State)
        builder.add_node("work", lambda values: None)
        builder.add_edge(START, "work")
        builder.add_edge("work", END)
        return lambda saver: builder.compile(checkpointer=saver)

    plain, delta = graph_of(add), graph_of(DeltaChannel(total, typ, snapshot_frequency=k))
    for _ in range(3):
        plain(schedule.saver(place, delta)).invoke({"value": seed, "twin": seed}, thread())
        schedule.after_step(place, delta)
    before = len(list_history(place))
    for _ in range(3):
        live = delta(schedule.saver(place, delta)).invoke({"value": item, "twin": item}, thread())
        schedule.after_step(place, delta)
        assert live["value"] == live["twin"]
    if k == 1000:
        with place.fresh() as saver:
            found = saver.get_delta_channel_history(config=thread(), channels=["value"])["value"]
        if not schedule.steps and not schedule.always:
            assert [value for _, _, value in found["writes"]] == [item] * 3
        assert len(found["writes"]) <= 3
        assert "seed" in found
    assert len(list_history(place)) > before
    for _ in range(2):
        with place.fresh() as saver:
            graph = delta(saver)
            assert graph.get_state(thread()).values == live
            for entry in graph.get_state_history(thread()):
                assert entry.values.get("value") == entry.values.get("twin")
        schedule.finally_(place, delta)


def list_history(place: Place) -> list[Any]:
    with place.fresh() as saver:
        return list(saver.list(thread()))


# -- overwrites ---------------------------------------------------------------------------


@few_schedules
@pytest.mark.parametrize("position", [0, 5])
def test_an_overwrite_among_parallel_writes_wins_live_and_reloaded(
    place: Place, k: int, schedule: Schedule, position: int
) -> None:
    builder = StateGraph(twin_state(k))
    for number in range(6):
        items = [f"n{number}"]
        writes = (
            {"delta": Overwrite(items), "plain": Overwrite(items)}
            if number == position
            else both(*items)
        )
        builder.add_node(f"n{number}", lambda values, writes=writes: writes)
        builder.add_edge(START, f"n{number}")
        builder.add_edge(f"n{number}", "end")
    builder.add_node("end", lambda values: both(f"end {len(values['delta'])}"))
    builder.add_edge("end", END)

    def make(saver: Any) -> Any:
        return builder.compile(checkpointer=saver)

    live = None
    for turn in range(3):
        live = make(schedule.saver(place, make)).invoke(both(f"turn {turn}"), thread())
        schedule.after_step(place, make)
        with place.fresh() as saver:
            assert make(saver).get_state(thread()).values == live
    check(place, make, thread(), schedule, live)


# -- a pause, an update of another channel, and a resume at the paused id -------------------


def paused_graph(k: int) -> Make:
    builder = StateGraph(twin_state(k))

    def sibling(values: Any) -> Any:
        return both("sibling")

    def ask(values: Any) -> Any:
        return both(f"answered {interrupt('?')}")

    builder.add_node("work", lambda values: both(f"work {len(values['plain'])}"))
    builder.add_node("sibling", sibling)
    builder.add_node("ask", ask)
    builder.add_node("end", lambda values: both("end"))
    builder.add_edge(START, "work")
    builder.add_edge("work", "sibling")
    builder.add_edge("work", "ask")
    builder.add_edge(["sibling", "ask"], "end")
    builder.add_edge("end", END)
    return lambda saver: builder.compile(checkpointer=saver)


@few_schedules
def test_a_resume_at_the_paused_id_after_an_update_elsewhere_equals_the_model(
    place: Place, k: int, schedule: Schedule
) -> None:
    make = paused_graph(k)

    def script(saver: Any, step: Callable[[], None]) -> list[Any]:
        """The results, without the interrupts, which have ids of their own."""
        graph = make(saver)
        graph.invoke(both("zero"), thread())
        step()
        graph.invoke(Command(resume="first"), thread())
        step()
        graph.invoke(both("one"), thread())
        paused = graph.get_state(thread()).config
        step()
        graph.update_state(paused, {"other": 5}, as_node="work")
        step()
        results = [graph.invoke(Command(resume="late"), paused)]
        step()
        results.append(graph.invoke(Command(resume="later"), paused))
        step()
        results.append(graph.invoke(both("two"), thread()))
        step()
        return [{k: v for k, v in r.items() if k != "__interrupt__"} for r in results]

    live = script(schedule.saver(place, make), lambda: schedule.after_step(place, make))
    expected = script(InMemorySaver(), lambda: None)
    assert live == expected
    for result in live:
        assert result["delta"] == result["plain"]
    check(place, make, thread(), schedule)


@schedules
def test_every_checkpoint_of_a_resume_at_a_superseded_id_equals_the_models(
    place: Place, k: int, schedule: Schedule
) -> None:
    """The same calls to both savers, so that ids and versions are the same."""
    make = paused_graph(k)
    model = InMemorySaver()
    saver = Recording(schedule.saver(place, make), model)
    graph = make(saver)
    graph.invoke(both("one"), thread())
    paused = graph.get_state(thread()).config
    schedule.after_step(place, make)
    graph.update_state(paused, {"other": 5}, as_node="work")
    schedule.after_step(place, make)
    graph.invoke(Command(resume="late"), paused)
    schedule.after_step(place, make)
    graph.invoke(Command(resume="again"), paused)
    schedule.after_step(place, make)
    graph.invoke(both("two"), thread())
    assert_all_like(place, make, model)
    schedule.finally_(place, make)
    assert_all_like(place, make, model)


class Recording(InMemorySaver):
    """Sends each call to both savers, and answers from the store's."""

    def __init__(self, saver: Any, model: InMemorySaver) -> None:
        super().__init__()
        self.saver, self.model = saver, model

    def get_tuple(self, config: Any) -> Any:
        found = self.saver.get_tuple(config)
        assert_same_tuple(found, self.model.get_tuple(config))
        return found

    def list(self, config: Any, **options: Any) -> Any:  # type: ignore[override]
        return self.saver.list(config, **options)

    def get_delta_channel_history(self, **call: Any) -> Any:
        return self.saver.get_delta_channel_history(**call)

    def put(self, *call: Any) -> Any:
        self.model.put(*call)
        return self.saver.put(*call)

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        self.model.put_writes(config, writes, task_id, task_path)
        self.saver.put_writes(config, writes, task_id, task_path)

    def get_next_version(self, current: Any, channel: Any) -> Any:
        return self.saver.get_next_version(current, channel)


def assert_all_like(place: Place, make: Make, model: InMemorySaver, ns: str | None = None) -> None:
    """Every checkpoint, and the state at it, equals the model's."""
    expected = {t.config["configurable"]["checkpoint_id"]: t for t in model.list(thread())}
    with place.fresh() as saver:
        found = {t.config["configurable"]["checkpoint_id"]: t for t in saver.list(thread())}
    assert found.keys() == expected.keys()
    with place.fresh() as saver:
        for checkpoint_id, entry in expected.items():
            assert_same_tuple(found[checkpoint_id], entry)
            assert_same_tuple(saver.get_tuple(entry.config), entry)
            if entry.config["configurable"]["checkpoint_ns"] == "":
                mine = make(saver).get_state(entry.config)
                theirs = make(model).get_state(entry.config)
                assert mine.values == theirs.values
                assert mine.next == theirs.next


# -- subgraphs ------------------------------------------------------------------------------


def prepend(state: list[Any], writes: Sequence[Any]) -> list[Any]:
    """Another reducer for a channel of the same name: newest first."""
    for write in writes:
        state = [*reversed(write), *state]
    return state


def prepend_one(state: list[Any], write: list[Any]) -> list[Any]:
    return prepend(state, [write])


def nested_graph(k: int) -> Make:
    class Inner(TypedDict, total=False):
        delta: Annotated[list, DeltaChannel(prepend, snapshot_frequency=k)]
        plain: Annotated[list, prepend_one]
        count: Annotated[int, operator.add]

    inner = StateGraph(Inner)
    inner.add_node("a", lambda values: both("a1", "a2"))
    inner.add_node("b", lambda values: both(f"b {len(values['delta'])}"))
    inner.add_node("ask", lambda values: {**both(interrupt("?")), "count": 1})
    inner.add_edge(START, "a")
    inner.add_edge("a", "b")
    inner.add_edge("b", "ask")
    inner.add_edge("ask", END)
    outer = StateGraph(twin_state(k))
    outer.add_node("before", lambda values: both("before"))
    outer.add_node("inner", inner.compile())
    outer.add_edge(START, "before")
    outer.add_edge("before", "inner")
    outer.add_edge("inner", END)
    return lambda saver: outer.compile(checkpointer=saver)


@few_schedules
def test_a_subgraphs_channel_of_the_same_name_keeps_its_own_reducer(
    place: Place, k: int, schedule: Schedule
) -> None:
    make = nested_graph(k)
    model = InMemorySaver()
    graph = make(Recording(schedule.saver(place, make), model))
    for turn in range(2):
        graph.invoke(both(f"turn {turn}"), thread())
        schedule.after_step(place, make)
        # While the subgraph waits, its own state is read through its namespace.
        with place.fresh() as saver:
            waiting = make(saver).get_state(thread(), subgraphs=True).tasks[0].state
        expected = make(model).get_state(thread(), subgraphs=True).tasks[0].state
        assert waiting.values == expected.values
        assert waiting.values["delta"] == waiting.values["plain"]
        live = graph.invoke(Command(resume=f"answer {turn}"), thread())
        schedule.after_step(place, make)
        assert live["delta"] == live["plain"]
    for _ in range(2):
        assert_all_like(place, make, model)
        schedule.finally_(place, make)


def test_a_fold_never_takes_a_roots_reducer_for_a_subgraph(place: Place) -> None:
    make = nested_graph(1000)
    graph = make(place.saver())
    graph.invoke(both("turn"), thread())
    place.compact(channels={"delta": DeltaChannel(append, list, snapshot_frequency=1)})
    with place.fresh() as saver:
        waiting = make(saver).get_state(thread(), subgraphs=True).tasks[0].state
    assert waiting.values["delta"] == waiting.values["plain"]
    assert all(ns == "" for _, ns, _, channel in place.snapshots() if channel == "delta")
    assert concat([], waiting.values["delta"]) == waiting.values["plain"]


@pytest.mark.parametrize("own", [None, True, "the saver"])
def test_graphs_within_graphs_equal_the_model_whatever_saver_they_are_compiled_with(
    place: Place, own: Any
) -> None:
    def make(saver: Any) -> Any:
        given = saver if own == "the saver" else own
        graph = None
        for level in range(3):
            builder = StateGraph(twin_state(3))
            builder.add_node("work", lambda values, at=level: both(f"{at}: {len(values['plain'])}"))
            builder.add_edge(START, "work")
            if graph is not None:
                builder.add_node("below", graph)
                builder.add_edge("work", "below")
            graph = builder.compile(checkpointer=saver if level == 2 else given)
        return graph

    model = InMemorySaver()
    for turn in range(3):
        expected = make(model).invoke(both(f"turn {turn}"), thread())
        with place.fresh() as saver:
            assert make(saver).invoke(both(f"turn {turn}"), thread()) == expected
        place.compact(graph=make(None), frequency=2)
    assert_twins(place, make, thread(), expected)
    with place.fresh() as saver:
        found = {c.config["configurable"]["checkpoint_ns"].count("|") for c in saver.list(thread())}
    assert found == {0, 1}
