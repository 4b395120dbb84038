"""Folding: which snapshots a job makes, where, and when it had better make none."""

# No `from __future__ import annotations`: LangGraph evaluates the annotations of states.

import itertools
import random
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from compactor import Report
from tests.helpers import (
    CompactingSaver,
    Make,
    Place,
    Script,
    append,
    assert_same_tuple,
    assert_twins,
    both,
    linear_graph,
    memory_place,
    parallel_graph,
    rebuilt,
    thread,
    twin_state,
)


def channels(reducer: Callable[..., Any] = append, k: int = 2, typ: Any = list) -> dict[str, Any]:
    return {"d": DeltaChannel(reducer, typ, snapshot_frequency=k)}


def assert_like(place: Place, model: InMemorySaver, **options: Any) -> None:
    """Every checkpoint and the channel's value at it, from a fresh saver."""
    with place.fresh(**options) as saver:
        expected = list(model.list(thread()))
        assert len(list(saver.list(thread()))) == len(expected)
        for entry in expected:
            assert_same_tuple(saver.get_tuple(entry.config), entry)
            assert rebuilt(saver, entry.config, channels()) == rebuilt(
                model, entry.config, channels()
            )


# -- where snapshots are ------------------------------------------------------------------


def linear(place: Place, step: Callable[[], None]) -> None:
    for turn in range(6):
        linear_graph(1000)(place.saver()).invoke(both(f"{turn}"), thread())
        step()


def exiting(place: Place, step: Callable[[], None]) -> None:
    for turn in range(6):
        graph = parallel_graph(1000, tasks=2, pause_s=0)(place.saver())
        graph.invoke(both(f"{turn}"), thread(), durability="exit")
        step()


def forked(place: Place, step: Callable[[], None]) -> None:
    graph = linear_graph(1000)(place.saver())
    graph.invoke(both("0"), thread())
    step()
    kept = graph.get_state(thread()).config
    for turn in range(2):
        graph.invoke(both(f"{turn}"), thread())
        step()
    graph.invoke(both("branch"), kept)
    step()
    for turn in range(2):
        graph.update_state(kept, both(f"update {turn}"), as_node="work")
        step()
    graph.invoke(both("on"), thread())
    step()


def comparable(place: Place, ids: dict[str, int]) -> set[tuple[str, int, str]]:
    """The snapshots' places, by the order of their checkpoints."""
    return {(ns, ids[checkpoint_id], ch) for _, ns, checkpoint_id, ch in place.snapshots()}


def order_of(place: Place) -> dict[str, int]:
    with place.fresh() as saver:
        found = sorted(t.checkpoint["id"] for t in saver.list(thread()))
    return {checkpoint_id: number for number, checkpoint_id in enumerate(found)}


@pytest.mark.parametrize("history", [linear, exiting, forked])
@pytest.mark.parametrize("k", [1, 3])
def test_any_schedule_of_jobs_makes_the_same_snapshots(
    history: Callable[[Place, Callable[[], None]], None], k: int
) -> None:
    make = linear_graph(1000)
    found = []
    for every in (1, 2, 1000):
        with memory_place(short_grace_s=0, long_grace_s=0) as place:
            steps = itertools.count(1)

            def step(
                place: Place = place, every: int = every, steps: Iterator[int] = steps
            ) -> None:
                if next(steps) % every == 0:
                    place.compact(graph=make(None), frequency=k)

            history(place, step)
            place.compact(graph=make(None), frequency=k)
            found.append(comparable(place, order_of(place)))
            assert_twins(place, make, thread())
    assert found[0] == found[1] == found[2]
    assert found[0]


def test_jobs_between_single_writes_make_the_same_snapshots_as_one_job() -> None:
    make = parallel_graph(1000, tasks=3, pause_s=0)
    found = []
    for always in (True, False):
        with memory_place() as place:
            saver = place.saver(CompactingSaver) if always else place.saver()
            saver.how = {"graph": make(None), "frequency": 2}  # type: ignore[attr-defined]
            for turn in range(4):
                make(saver).invoke(both(f"{turn}"), thread())
            place.compact(graph=make(None), frequency=2)
            found.append(comparable(place, order_of(place)))
            assert_twins(place, make, thread())
    assert found[0] == found[1]
    assert found[0]


@pytest.mark.parametrize("k", [1, 2, 3, 7])
def test_a_snapshot_lies_where_the_updates_pass_a_multiple_of_k(place: Place, k: int) -> None:
    script = Script([place.saver()])
    ids = script.chain(15)
    place.compact(channels=channels(k=k))
    # The n-th checkpoint of the chain, counted from one, has had n updates.
    expected = {at for number, at in enumerate(ids, 1) if number % k == 0}
    assert {checkpoint_id for _, _, checkpoint_id, _ in place.snapshots()} == expected


def test_a_channel_without_updates_gets_a_snapshot_after_the_most_supersteps(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANGGRAPH_DELTA_MAX_SUPERSTEPS_SINCE_SNAPSHOT", "4")
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    parent = script.put()
    script.write(parent, "only")
    ids = [parent]
    for number in range(9):
        parent = script.put(parent, updates=["d"] if number == 0 else ["x"])
        ids.append(parent)
    place.compact(channels=channels(k=1000))
    assert {at for _, _, at, _ in place.snapshots()} == {ids[3], ids[7]}
    assert_like(place, model)


def test_a_graphs_own_snapshot_is_not_folded_again(place: Place) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    ids = script.chain(4)
    script.write(ids[-1], "more")
    inline = script.put(ids[-1], values={"d": _DeltaSnapshot(["its own"])})
    script.write(inline, "after")
    head = script.put(inline)
    place.compact(channels=channels(k=1))
    assert inline not in {at for _, _, at, _ in place.snapshots()}
    assert_like(place, model)
    with place.fresh() as fresh:
        assert rebuilt(fresh, script.config(head), channels()) == {"d": ["its own", "after"]}


def test_a_snapshot_shows_at_its_own_checkpoint_only(place: Place) -> None:
    script = Script([place.saver()])
    ids = script.chain(9)
    place.compact(channels=channels(k=4))
    marked = {at for _, _, at, _ in place.snapshots()}
    assert marked == {ids[3], ids[7]}
    with place.fresh() as saver:
        for shown in (saver.list(thread()), map(saver.get_tuple, map(script.config, ids))):
            for entry in shown:
                assert entry is not None
                has = isinstance(entry.checkpoint["channel_values"].get("d"), _DeltaSnapshot)
                assert has == (entry.checkpoint["id"] in marked)


def test_a_checkpoint_that_shares_a_version_with_a_snapshots_gets_no_value_of_it(
    place: Place,
) -> None:
    """A resume at a superseded checkpoint: one version, two values."""
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    first, second, third = script.chain(3)
    place.compact(channels=channels(k=1))
    script.write(second, "late", task="t9")
    script.put(second, updates=["x"])
    assert_like(place, model)
    place.compact(channels=channels(k=1))
    assert_like(place, model)
    assert first != third


@pytest.mark.parametrize("k", [2, 5])
def test_a_replay_after_a_job_is_at_most_k_updates_and_what_arrived_since(
    place: Place, k: int
) -> None:
    script = Script([place.saver()])
    head = None
    for number in range(23):
        head = script.put(head)
        place.compact(channels=channels(k=k))
        with place.fresh() as saver:
            found = saver.get_delta_channel_history(config=thread(), channels=["d"])["d"]
        assert len(found["writes"]) <= k
        script.write(head, f"{number}")
    for number in range(4):
        head = script.put(head)
        script.write(head, f"since {number}")
    with place.fresh() as saver:
        found = saver.get_delta_channel_history(config=thread(), channels=["d"])["d"]
        assert len(found["writes"]) <= k + 4
        for entry in saver.list(thread()):
            found = saver.get_delta_channel_history(config=entry.config, channels=["d"])["d"]
            assert len(found["writes"]) <= k + 4
    assert "seed" in found or len(found["writes"]) <= k


# -- late writes ---------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 3, 7, 8])
@pytest.mark.parametrize("again", [True, False])
def test_a_late_write_below_snapshots_voids_them_and_they_are_folded_anew(
    place: Place, depth: int, again: bool
) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    ids = script.chain(10)
    place.compact(channels=channels())
    before = place.snapshots()
    script.write(ids[depth], "late", task="t9")
    assert_like(place, model)
    report = place.compact(channels=channels())
    # Those of the checkpoints after it; their own writes are not below them.
    assert report.total("voided") == sum(at > ids[depth] for _, _, at, _ in before)
    assert_like(place, model)
    assert place.snapshots() == before
    if again:
        script.write(ids[depth], "later still", task="t8")
        place.compact(channels=channels())
        assert_like(place, model)
        assert place.snapshots() == before


def test_a_late_write_that_cannot_be_folded_leaves_no_snapshot_without_it(place: Place) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    ids = script.chain(10)
    place.compact(channels=channels())
    script.write(ids[2], "late", task="t9")
    report = place.compact()
    assert report.unfolded
    assert_like(place, model)
    assert {at for _, _, at, _ in place.snapshots()} == {ids[1]}
    place.compact(channels=channels())
    assert_like(place, model)


def test_a_late_write_on_one_branch_leaves_the_other_branchs_snapshots(place: Place) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    trunk = script.chain(4)
    script.write(trunk[-1], "both")
    left = script.chain(4, trunk[-1])
    right = script.chain(4, trunk[-1])
    place.compact(channels=channels(k=1))
    script.write(left[0], "late", task="t9")
    report = place.compact(channels=channels(k=1))
    assert report.total("voided") == 3
    assert_like(place, model)
    assert {*left, *right} <= {at for _, _, at, _ in place.snapshots()}


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_put_its_writes_and_its_childs_put_may_arrive_in_any_order(
    place: Place, order: Sequence[int]
) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    root = script.put()
    script.write(root, "root")
    middle, child = script.next_id(), script.next_id()
    events = [
        lambda: script.write(middle, "middle"),
        lambda: script.put(root, at=middle),
        lambda: script.put(middle, at=child),
    ]
    # The script knows the parent's versions only once the parent was put.
    if order.index(2) < order.index(1):
        script._known[middle] = ({**script._known[root][0], "x": "1"}, 2, 2)
    for number in order:
        events[number]()
        place.compact(channels=channels(k=1))
        with place.fresh() as fresh:
            assert_same_tuple(fresh.get_tuple(thread()), model.get_tuple(thread()))
    place.compact(channels=channels(k=1))
    assert_like(place, model)


# -- reducers that cannot be trusted ------------------------------------------------------------


def random_ids(state: list[Any], writes: Sequence[Any]) -> list[Any]:
    return append(state, writes) + [random.random()]


def clock(state: list[Any], writes: Sequence[Any]) -> list[Any]:
    return append(state, writes) + [time.perf_counter_ns()]


def batched(state: list[Any], writes: Sequence[Any]) -> list[Any]:
    return [*append(state, writes), f"batch of {len(writes)}"]


def last_batch(state: list[Any], writes: Sequence[Any]) -> list[Any]:
    return append([], writes)


def raising(state: list[Any], writes: Sequence[Any]) -> list[Any]:
    raise RuntimeError("the reducer's own error")


def raising_later(state: list[Any], writes: Sequence[Any]) -> list[Any]:
    if len(state) + len(writes) > 4:
        raise ZeroDivisionError("too long")
    return append(state, writes)


@pytest.mark.parametrize(
    "reducer", [random_ids, clock, batched, last_batch, raising, raising_later]
)
def test_a_reducer_that_breaks_the_laws_gets_no_snapshot_and_a_report(
    place: Place, reducer: Callable[..., Any]
) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    script.chain(9)
    report = place.compact(channels=channels(reducer))
    assert any("d" in channel for channel in report.unfolded), report.unfolded
    assert report.total("segments_merged") > 0
    assert report.total("runs_written") == 1
    assert_like(place, model)
    if reducer is raising:
        assert "the reducer's own error" in "".join(report.unfolded.values())
    if reducer is not raising_later:
        assert place.snapshots() == set()
    # A sound reducer makes up for it afterwards.
    script.put(script.put())
    assert not place.compact(channels=channels()).unfolded
    assert_like(place, model)


def test_a_reducer_is_run_with_values_of_its_own(place: Place) -> None:
    """One that changes its arguments spoils nothing."""

    def mutating(state: list[Any], writes: Sequence[Any]) -> list[Any]:
        for write in writes:
            state.extend(write)
            write.clear()
        return state

    saver, model = place.saver(), InMemorySaver()
    Script([saver, model]).chain(9)
    assert not place.compact(channels=channels(mutating)).unfolded
    assert_like(place, model)
    assert place.snapshots()


def test_channels_that_nobody_names_are_reported_and_merged(place: Place) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    script.chain(9)
    report = place.compact()
    assert any("d" in channel for channel in report.unfolded)
    assert report.total("runs_written") == 1
    assert place.snapshots() == set()
    assert_like(place, model)


# -- classes that are not at hand --------------------------------------------------------------


@dataclass
class Note:
    """A value's class, of this test's own module."""

    text: str


@pytest.fixture
def vanishing() -> Iterator[types.ModuleType]:
    """A module that can be taken away, with a class in it."""
    module = types.ModuleType("vanishing_application")
    found = dataclass(type("Thing", (), {"__annotations__": {"text": str}}))
    found.__module__ = module.__name__
    module.Thing = found  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    yield module
    sys.modules.pop(module.__name__, None)


def serde_for(module: types.ModuleType) -> Any:
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    return JsonPlusSerializer(allowed_msgpack_modules=[(module.__name__, "Thing")])


@pytest.mark.parametrize("wrap", [lambda thing: thing, lambda thing: {"deep": [thing]}])
def test_a_missing_class_gets_no_snapshot_and_is_named(
    place: Place, vanishing: types.ModuleType, wrap: Callable[[Any], Any]
) -> None:
    serde = serde_for(vanishing)
    saver, model = place.saver(serde=serde), InMemorySaver(serde=serde)
    script = Script([saver, model])
    first, *_ = script.chain(4)
    script.write(first, wrap(vanishing.Thing("here")), task="t2")
    del sys.modules[vanishing.__name__]
    report = place.compact(channels=channels(), serde=serde)
    assert "vanishing_application.Thing" in "".join(report.unfolded.values())
    assert report.total("runs_written") == 1
    assert place.snapshots() == set()
    sys.modules[vanishing.__name__] = vanishing
    assert_like(place, model, serde=serde)
    # Merged without its class, and read with it.
    script.put(script.put())
    assert not place.compact(channels=channels(), serde=serde).unfolded
    assert_like(place, model, serde=serde)


def test_a_class_that_the_serde_does_not_allow_gets_no_snapshot_and_is_named(
    place: Place, vanishing: types.ModuleType
) -> None:
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    serde = serde_for(vanishing)
    saver, model = place.saver(serde=serde), InMemorySaver(serde=serde)
    script = Script([saver, model])
    first, *_ = script.chain(4)
    script.write(first, vanishing.Thing("here"), task="t2")
    strict = JsonPlusSerializer(allowed_msgpack_modules=[])
    report = place.compact(channels=channels(), serde=strict)
    assert "vanishing_application.Thing" in "".join(report.unfolded.values())
    assert place.snapshots() == set()
    assert_like(place, model, serde=serde)


def test_messages_fold_with_langgraphs_own_reducer(place: Place) -> None:
    def merge_messages(state: list[Any], writes: Sequence[Any]) -> list[Any]:
        for write in writes:
            state = add_messages(state, write)  # type: ignore[assignment,arg-type]
        return state

    class State(TypedDict, total=False):
        messages: Annotated[list, DeltaChannel(merge_messages, snapshot_frequency=1000)]

    def answer(state: Any) -> Any:
        number = len(state["messages"])
        return {"messages": [AIMessage(f"answer {number}", id=f"a{number}")]}

    builder = StateGraph(State)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)

    def make(saver: Any) -> Any:
        return builder.compile(checkpointer=saver)

    for turn in range(5):
        live = make(place.saver()).invoke(
            {"messages": [HumanMessage(f"question {turn}", id=f"q{turn}")]}, thread()
        )
        report = place.compact(graph=make(None), frequency=2)
        assert not report.unfolded
        with place.fresh() as saver:
            assert make(saver).get_state(thread()).values == live
    assert place.snapshots()


# -- namespaces ---------------------------------------------------------------------------------


def nested(k: int) -> Make:
    class Inner(TypedDict, total=False):
        notes: Annotated[list, DeltaChannel(append, snapshot_frequency=k)]

    inner = StateGraph(Inner)
    inner.add_node("a", lambda values: {"notes": ["a"]})
    inner.add_node("b", lambda values: {"notes": ["b"]})
    inner.add_edge(START, "a")
    inner.add_edge("a", "b")
    inner.add_edge("b", END)
    outer = StateGraph(twin_state(k))
    outer.add_node("inner", inner.compile(checkpointer=True))
    outer.add_edge(START, "inner")
    outer.add_edge("inner", END)
    return lambda saver: outer.compile(checkpointer=saver)


def test_a_graph_resolves_its_subgraphs_namespaces(place: Place) -> None:
    make = nested(1000)
    for turn in range(4):
        make(place.saver()).invoke(both(f"{turn}"), thread())
        report = place.compact(graph=make(None), frequency=2)
        assert not report.unfolded
    found = {(ns, channel) for _, ns, _, channel in place.snapshots()}
    assert {ns for ns, channel in found if channel == "notes"} != set()
    assert all(ns.startswith("inner") for ns, channel in found if channel == "notes")
    assert {ns for ns, channel in found if channel == "delta"} == {""}
    assert_twins(place, make, thread())


def test_a_namespace_that_no_graph_resolves_is_merged_and_reported(place: Place) -> None:
    saver, model = place.saver(), InMemorySaver()
    Script([saver, model], ns="stranger:0123").chain(5)
    report = place.compact(channels=channels())
    assert any("stranger" in channel for channel in report.unfolded)
    assert place.snapshots() == set()
    with place.fresh() as fresh:
        for entry in model.list(thread()):
            assert_same_tuple(fresh.get_tuple(entry.config), entry)


# -- encryption -----------------------------------------------------------------------------------


class Rot(CipherProtocol):
    """A toy cipher whose key is a number of positions; a wrong key gives an error."""

    def __init__(self, key: int) -> None:
        self._key = key

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "rot", bytes((b + self._key) % 256 for b in b"ok" + plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "rot"
        found = bytes((b - self._key) % 256 for b in ciphertext)
        if not found.startswith(b"ok"):
            raise ValueError("the key is wrong")
        return found[2:]


def encrypted(key: int = 7) -> EncryptedSerializer:
    return EncryptedSerializer(Rot(key))


def test_encrypted_values_are_folded_with_the_key(place: Place) -> None:
    serde = encrypted()
    saver, model = place.saver(serde=serde), InMemorySaver(serde=serde)
    script = Script([saver, model])
    ids = script.chain(9)
    assert not place.compact(channels=channels(), serde=serde).unfolded
    assert place.snapshots()
    script.write(ids[-1], "more")
    script.put(ids[-1])
    place.compact(channels=channels(), serde=serde)
    assert_like(place, model, serde=serde)


@pytest.mark.parametrize("key", [None, 9], ids=["no key", "a wrong key"])
def test_encrypted_values_survive_merging_without_the_key(place: Place, key: int | None) -> None:
    serde = encrypted()
    saver, model = place.saver(serde=serde), InMemorySaver(serde=serde)
    script = Script([saver, model])
    ids = script.chain(9)
    without: dict[str, Any] = {} if key is None else {"serde": encrypted(key)}
    report: Report = place.compact(channels=channels(), **without)
    assert report.unfolded
    assert report.total("runs_written") == 1
    assert place.snapshots() == set()
    script.write(ids[-1], "more")
    script.put(ids[-1])
    place.compact(**without)
    assert_like(place, model, serde=serde)


# -- many threads ---------------------------------------------------------------------------------


def test_nine_jobs_and_more_go_up_the_tiers_without_losing_a_thread(place: Place) -> None:
    saver, model = place.saver(), InMemorySaver()
    scripts = [Script([saver, model], thread_id=f"t{n}") for n in range(3)]
    heads: list[str | None] = [None, None, None]
    for number in range(20):
        for at, script in enumerate(scripts):
            if (number + at) % 2:
                heads[at] = script.put(heads[at])
                script.write(heads[at], f"{number}")
        place.compact(channels=channels(k=3))
    assert len(place.keys("runs/")) < 16
    with place.fresh() as fresh:
        for script in scripts:
            for entry in model.list(thread(script.thread_id)):
                assert_same_tuple(fresh.get_tuple(entry.config), entry)
                assert rebuilt(fresh, entry.config, channels()) == rebuilt(
                    model, entry.config, channels()
                )


def test_a_job_without_news_writes_nothing(place: Place) -> None:
    Script([place.saver()]).chain(4)
    for _ in range(3):
        place.compact(channels=channels())
    with place.store() as store:
        before = {key: store.objects.get(key).etag for key in place.keys()}
        place.compact(channels=channels())
        assert {key: store.objects.get(key).etag for key in place.keys()} == before
