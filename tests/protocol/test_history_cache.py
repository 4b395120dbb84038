"""What was read before is given out again, and only while it is still right."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver

from logstore import LogStoreSaver
from logstore.store import LONG_GRACE_S, SHORT_GRACE_S
from logstore.testing.wrappers import CountingStore
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
    told,
    written,
)

OLD = id_of(7)
"""A checkpoint below the head."""


@pytest.fixture
def grown() -> Iterator[World]:
    """A compacted conversation with a tail, and the usual graces."""
    world = World(short_grace_s=SHORT_GRACE_S, long_grace_s=LONG_GRACE_S)
    written(world, conversation(20))
    world.compact()
    written(world, conversation(2, begin=20))
    yield world
    world.close()


def history(saver: Any, checkpoint_id: str | None = None) -> Any:
    config = config_of(THREAD, checkpoint_id)
    return saver.get_delta_channel_history(config=config, channels=[CHANNEL])[CHANNEL]


def kept(saver: LogStoreSaver) -> int:
    return len(saver.store.histories)


# -- what it saves ---------------------------------------------------------------------


def test_a_checkpoint_below_the_head_is_read_again_without_another_fetch(grown: World) -> None:
    counted = CountingStore(grown.objects)
    reader = grown.saver(objects=counted)
    calls = [
        lambda: history(reader, OLD),
        lambda: reader.get_tuple(config_of(THREAD, OLD)),
        lambda: next(iter(reader.list(config_of(THREAD)))),
    ]
    for call in calls:
        first = call()
        counted.reset()
        assert call() == first
        assert counted.counts == {"get_if_changed": 1, "list": 1}


def test_after_the_first_checkpoint_of_a_thread_another_one_costs_no_more_fetches(
    grown: World,
) -> None:
    counted = CountingStore(grown.objects)
    reader = grown.saver(objects=counted)
    reader.get_tuple(config_of(THREAD, OLD))
    counted.reset()
    assert history(reader, id_of(5))["writes"]
    assert reader.get_tuple(config_of(THREAD, id_of(3))) is not None
    assert counted.counts == {"get_if_changed": 2, "list": 2}


# -- what it must never give ------------------------------------------------------------


@pytest.mark.parametrize("compacted", [False, True])
def test_a_late_write_onto_an_ancestor_is_seen_by_whoever_had_read_it_before(
    grown: World, compacted: bool
) -> None:
    calls = [*conversation(22), Writes(THREAD, id_of(2), ("late",), "late task")]
    reader = grown.saver()
    told(reader)
    written(grown, calls[-1:])
    if compacted:
        grown.compact()
    assert told(reader) == told(model_of(*calls))


def test_the_latest_is_never_kept(grown: World) -> None:
    reader = grown.saver()
    history(reader)
    for begin in (22, 23):
        written(grown, conversation(1, begin=begin))
        assert history(reader) == history(grown.saver())
        assert told(reader) == told(model_of(*conversation(begin + 1)))


def test_a_checkpoint_that_did_not_exist_is_found_once_it_does(grown: World) -> None:
    reader = grown.saver()
    assert history(reader, id_of(23)) == {"writes": []}
    written(grown, conversation(1, begin=22))
    assert history(reader, id_of(23)) == history(grown.saver(), id_of(23))


def test_a_checkpoint_put_again_shows_its_new_values(grown: World) -> None:
    again = Put(THREAD, OLD, id_of(6), 7, note="mended")
    reader = grown.saver()
    told(reader)
    written(grown, [again])
    assert told(reader) == told(model_of(*conversation(22), again))


def test_nobody_can_change_what_the_next_reader_gets(grown: World) -> None:
    reader = grown.saver()
    expected = told(model_of(*conversation(22)))
    for checkpoint_id in (None, OLD):
        for _ in range(2):
            found = history(reader, checkpoint_id)
            found["writes"].clear()
            found.get("seed", []) and found["seed"].value.append("mine")
            shown = reader.get_tuple(config_of(THREAD, checkpoint_id))
            assert shown is not None
            shown.checkpoint["channel_values"].clear()
            shown.metadata.clear()
    assert told(reader) == expected


def test_a_deleted_thread_is_let_go_of_and_comes_back_new(grown: World) -> None:
    other = conversation(3, thread="other")
    written(grown, other)
    reader = grown.saver()
    told(reader)
    told(reader, "other")
    before = kept(reader)
    reader.delete_thread(THREAD)
    assert kept(reader) < before
    assert history(reader, OLD) == {"writes": []}
    assert told(reader, "other") == told(model_of(*other), "other")
    written(grown, conversation(2))
    assert told(reader) == told(model_of(*conversation(2)))


def test_a_thread_that_another_process_deleted_is_gone(grown: World) -> None:
    reader = grown.saver()
    told(reader)
    grown.saver().delete_thread(THREAD)
    assert told(reader) == told(InMemorySaver())


@pytest.mark.parametrize("compacted", [False, True])
def test_what_was_pruned_is_not_shown_again(grown: World, compacted: bool) -> None:
    reader, other = grown.saver(), grown.saver()
    for saver in (reader, other):
        told(saver)
    before = kept(reader)
    reader.prune([THREAD])
    assert kept(reader) < before
    if compacted:
        grown.compact()
    with grown.saver() as fresh:
        shown = told(fresh)
    assert len(shown["all"]) == 1
    assert told(reader) == told(other) == shown
    assert history(other, OLD) == {"writes": []}


def test_what_is_acknowledged_and_not_stored_is_shown_and_not_kept(grown: World) -> None:
    saver = grown.saver(durability="buffered", hold_s=60.0)
    told(saver)
    before = kept(saver)
    calls = conversation(22)
    for begin in (22, 23):
        more = conversation(1, begin=begin)
        calls += more
        play(more, saver)
        assert told(saver) == told(model_of(*calls))
    assert kept(saver) == before
    saver.flush()
    assert told(saver) == told(model_of(*calls))


def test_records_whose_runs_were_replaced_and_deleted_are_read_anew() -> None:
    world = World()
    # Too large, and too random, for the values to come along with the end of the run.
    calls = [
        replace(call, values=(secrets.token_hex(20_000),)) if isinstance(call, Writes) else call
        for call in conversation(12)
    ]
    written(world, calls)
    world.compact()
    reader = world.saver()
    view = reader.store.read_history(THREAD, after=reader.store.read_head(THREAD))
    for number in range(9):
        written(world, conversation(1, thread=f"other {number}"))
        world.compact()
    world.compact()
    assert not set(view.runs) & world.keys("runs/")
    assert told(reader) == told(model_of(*calls))
    world.close()


# -- its bounds -------------------------------------------------------------------------


def test_no_more_is_kept_than_was_allowed(grown: World) -> None:
    reader = grown.saver(history_entries=3)
    for step in range(1, 20):
        history(reader, id_of(step))
    assert kept(reader) == 3
    assert told(reader) == told(model_of(*conversation(22)))


@pytest.mark.parametrize("options", [{"history_entries": 0}, {"cache_bytes": 60}])
def test_nothing_is_kept_if_nothing_may_be(grown: World, options: dict[str, int]) -> None:
    reader = grown.saver(**options)
    for _ in range(2):
        assert told(reader) == told(model_of(*conversation(22)))
    assert kept(reader) == 0


# -- any order of events ---------------------------------------------------------------

_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.integers(1, 3)),
        st.tuples(st.just("late write"), st.integers(0, 30)),
        st.tuples(st.just("put again"), st.integers(0, 30)),
        st.tuples(st.just("compact"), st.sampled_from([1, 3, 1000])),
        st.tuples(st.just("delete"), st.just(0)),
    ),
    min_size=2,
    max_size=9,
)


@settings(deadline=None, max_examples=40)
@given(events=_EVENTS)
def test_a_reader_that_stays_open_tells_what_the_model_tells_after_any_event(
    events: list[tuple[str, int]],
) -> None:
    world, model = World(), InMemorySaver()
    reader, writer = world.saver(), world.saver()
    length, life = 0, 0
    try:
        for number, (event, how) in enumerate(events):
            calls: list[Any] = []
            prefix = f"{life}-"
            at = id_of(how % (length + 1), prefix)
            if event == "grow":
                calls = conversation(how, begin=length, prefix=prefix)
                length += how
            elif event == "late write" and length:
                calls = [Writes(THREAD, at, (f"late {number}",), f"task {number}")]
            elif event == "put again" and how % (length + 1) and length:
                step = how % (length + 1)
                calls = [Put(THREAD, at, id_of(step - 1, prefix), step, note=f"again {number}")]
            elif event == "compact":
                if length:
                    world.compact(how)
            elif event == "delete":
                writer.delete_thread(THREAD)
                model.delete_thread(THREAD)
                length, life = 0, life + 1
            play(calls, writer, model)
            assert told(reader) == told(model)
    finally:
        world.close()
