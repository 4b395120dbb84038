"""The reducer of messages: its laws, and that it means what `add_messages` means."""

from __future__ import annotations

import copy
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph.message import add_messages
from langgraph.types import Overwrite

from logstore.channels import REMOVE_ALL_MESSAGES, delta_messages, merge_message_writes
from tests.config.apps import saying_graph
from tests.helpers import memory_place, thread

ids = st.sampled_from(["a", "b", "c", "d"])
texts = st.sampled_from(["yes", "no", "", "\ud800 lone", "long " * 9])
contents = st.one_of(
    texts, st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}))
)


def messages(message_ids: st.SearchStrategy[str | None]) -> st.SearchStrategy[BaseMessage]:
    """Messages and chunks of several kinds."""
    return st.tuples(st.sampled_from(KINDS), contents, message_ids).map(
        lambda made: made[0](made[1], made[2])
    )


KINDS = [
    lambda content, id_: HumanMessage(content, id=id_),
    lambda content, id_: AIMessage(content, id=id_),
    lambda content, id_: AIMessageChunk(content, id=id_),
    lambda content, id_: SystemMessage(content, id=id_, name="x"),
    lambda content, id_: ToolMessage(content, id=id_, tool_call_id="call"),
]
roles = st.sampled_from(["user", "assistant", "system"])
dicts = st.one_of(
    st.fixed_dictionaries({"role": roles, "content": texts}),
    st.fixed_dictionaries({"role": roles, "content": texts, "id": ids}),
)
identified = messages(ids)
anonymous = st.one_of(messages(st.sampled_from([None, ""])), texts, st.tuples(roles, texts))
removals = st.sampled_from(["a", "b", "c", "d", "z", REMOVE_ALL_MESSAGES]).map(
    lambda id_: RemoveMessage(id=id_)
)
anything = st.one_of(identified, anonymous, dicts, removals)
single_or_list = st.one_of(st.none(), anything, st.lists(anything, max_size=5))
write_lists = st.lists(single_or_list, max_size=5)
states = st.one_of(st.none(), st.lists(st.one_of(identified, anonymous, dicts), max_size=5))


@given(states, write_lists, write_lists)
def test_batches_do_not_count(state: Any, first: list[Any], second: list[Any]) -> None:
    in_two = merge_message_writes(merge_message_writes(state, first), second)
    assert in_two == merge_message_writes(state, first + second)


@given(states, write_lists)
def test_every_split_of_the_writes_gives_the_same(state: Any, writes: list[Any]) -> None:
    one_by_one = reduce(lambda s, w: merge_message_writes(s, [w]), writes, state)
    assert merge_message_writes(one_by_one, []) == merge_message_writes(state, writes)


@given(states, write_lists)
def test_it_depends_on_its_arguments_alone(state: Any, writes: list[Any]) -> None:
    again = copy.deepcopy((state, writes))
    assert merge_message_writes(state, writes) == merge_message_writes(*again)
    assert (state, writes) == again, "an argument was changed"


@given(states, write_lists)
def test_a_read_from_storage_gives_what_was_live(state: Any, writes: list[Any]) -> None:
    serde = JsonPlusSerializer()
    stored = [w for w in writes if "lone" not in repr(w)]
    state = [] if "lone" in repr(state) else state
    read = serde.loads_typed(serde.dumps_typed((state, stored)))
    assert merge_message_writes(*read) == merge_message_writes(state, stored)


@given(states, write_lists)
def test_every_message_has_an_id_of_its_own(state: Any, writes: list[Any]) -> None:
    merged = merge_message_writes(state, writes)
    found = [message.id for message in merged]
    assert all(found)
    assert len(set(found)) == len(found)
    assert not any(isinstance(m, RemoveMessage | AIMessageChunk) for m in merged)


@given(
    st.lists(identified, max_size=5, unique_by=lambda m: m.id),
    st.lists(st.lists(st.one_of(identified, dicts.filter(lambda d: "id" in d), removals))),
)
def test_it_means_what_the_ordinary_reducer_means(given: Any, writes: list[list[Any]]) -> None:
    state = merge_message_writes(None, given)
    try:
        expected = reduce(add_messages, copy.deepcopy(writes), copy.deepcopy(state))
    except ValueError:  # the removal of an unknown id, which a replay must not trip over
        return
    if any(isinstance(m, RemoveMessage) for m in expected) or _repeats(expected):
        return  # what follows a removal of all is not merged there
    assert merge_message_writes(state, writes) == expected


def _repeats(found: list[Any]) -> bool:
    return len({m.id for m in found}) < len(found)


def test_equal_messages_without_ids_stay_two() -> None:
    merged = merge_message_writes([], ["yes", "yes", [("user", "yes"), HumanMessage("yes")]])
    assert [m.content for m in merged] == ["yes"] * 4
    assert len({m.id for m in merged}) == 4


def test_ids_stay_as_they_are_over_any_number_of_reads() -> None:
    writes = ["one", ("assistant", "two"), {"role": "user", "content": "three"}]
    first = [m.id for m in merge_message_writes([], writes)]
    for _ in range(20):
        assert [m.id for m in merge_message_writes([], list(writes))] == first


def test_a_derived_id_can_be_replaced_and_removed() -> None:
    (message,) = merge_message_writes([], ["draft"])
    replaced = merge_message_writes([], ["draft", HumanMessage("final", id=message.id)])
    assert [m.content for m in replaced] == ["final"]
    assert merge_message_writes([], ["draft", RemoveMessage(id=message.id or "")]) == []


def test_derived_ids_do_not_meet_after_a_removal() -> None:
    """The same message after the same one, while the first of them is still there."""
    last = HumanMessage("last", id="x")
    (_, yes) = merge_message_writes([last], ["yes"])
    moved = merge_message_writes([last], ["yes", RemoveMessage(id="x"), last, "yes"])
    assert [m.content for m in moved] == ["yes", "last", "yes"]
    assert moved[0].id == yes.id != moved[2].id


def test_a_pair_that_became_a_list_in_storage_is_still_one_message() -> None:
    serde = JsonPlusSerializer()
    for write in (("user", "hi"), ("assistant", [{"type": "text", "text": "hi"}])):
        stored = serde.loads_typed(serde.dumps_typed(write))
        (live,) = merge_message_writes([], [write])
        assert merge_message_writes([], [stored]) == [live]
    assert len(merge_message_writes([], [["not a role", "hi"]])) == 2


def test_what_a_graph_says_has_the_same_ids_at_every_read() -> None:
    """Strings, tuples and dicts, alone and in lists, through the store and a compaction."""
    answers: list[Any] = [
        "a string",
        ("assistant", "a tuple"),
        {"role": "assistant", "content": "a dict"},
        ["the same", "the same", ("user", "the same")],
        AIMessage("an object"),
    ]
    with memory_place() as place:
        graph = saying_graph(delta_messages(1000), place.saver(), answers)
        for turn in ("first", ("user", "second"), Overwrite(["anew"])):
            live = graph.invoke({"messages": turn}, thread())["messages"]
            for made_at in (0, 0, 1, 3):
                if made_at:
                    place.compact(
                        graph=saying_graph(delta_messages(1000), None, answers), frequency=made_at
                    )
                with place.fresh() as saver:
                    again = saying_graph(delta_messages(1000), saver, answers)
                    assert again.get_state(thread()).values["messages"] == live
        assert len({m.id for m in live}) == len(live) == 1 + 7


@pytest.mark.parametrize("write", [3, object(), {"no": "message"}, [None]])
def test_what_is_no_message_is_refused(write: Any) -> None:
    with pytest.raises((NotImplementedError, ValueError)):
        merge_message_writes([], [write])
