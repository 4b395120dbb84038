"""Recorded messages become LangChain's and come back without a difference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from logstore.demo.conversations import (
    DEFAULT_INPUT,
    RecordingError,
    read_conversations,
    read_lines,
)
from logstore.demo.graph import Recording, append_by_id
from logstore.demo.messages import to_message, to_recorded

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


def stored(message: BaseMessage) -> BaseMessage:
    """The message after it went through a checkpoint."""
    serde = JsonPlusSerializer()
    found: BaseMessage = serde.loads_typed(serde.dumps_typed(message))
    assert found == message
    return found


def with_arguments(arguments: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{**CALL, "function": {"name": "f", "arguments": arguments}}],
    }


@pytest.mark.parametrize(
    "recorded",
    [
        {"role": "system", "content": "be kind"},
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": "hello", "name": "bob"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "odd", "x": [1]}]},
        {"role": "user", "content": "", "additional_kwargs": {"mine": 1}},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
        {"role": "assistant", "tool_calls": [CALL, {**CALL, "id": "c2"}]},
        {"role": "assistant", "content": "said", "tool_calls": []},
        {"role": "assistant", "content": "said", "tool_calls": None},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "assistant", "content": None, "audio": {"id": "x"}},
        {"role": "tool", "content": "7", "tool_call_id": "c1", "name": "f"},
        {"role": "tool", "content": None, "tool_call_id": "c1"},
        {"role": "tool", "content": {"a": 1}, "tool_call_id": "c1"},
        {"role": "tool", "content": "7", "tool_call_id": "c1", "id": "own", "big": 10**30},
        {"role": "function", "name": "f", "content": "x"},
        {"role": "user", "content": "half of a pair \ud83d, süß 🏮, NUL \0"},
        with_arguments('{ "a" : 1.50, "b": [true, null] }'),
        with_arguments('{"a": "é \\u00e9 \\ud83c\\udfee"}'),
        with_arguments("{not json"),
        with_arguments("[1, 2]"),
        with_arguments(""),
        with_arguments('{"id": 123456789012345678901234567890}'),
        with_arguments('{"nan": NaN}'),
    ],
)
def test_a_message_comes_back_as_it_was(recorded: dict[str, Any]) -> None:
    assert to_recorded(stored(to_message(recorded, 3))) == recorded


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    role=st.sampled_from(["system", "user", "assistant"]),
    content=st.none() | st.text(),
    arguments=JSON.map(json.dumps) | st.text(),
    extra=st.dictionaries(st.sampled_from(["refusal", "annotations", "metadata", "x"]), JSON),
)
def test_any_message_comes_back_as_it_was(
    role: str, content: str | None, arguments: str, extra: dict[str, Any]
) -> None:
    recorded = {**extra, "role": role, "content": content}
    if role == "assistant":
        recorded["tool_calls"] = with_arguments(arguments)["tool_calls"]
    assert to_recorded(stored(to_message(recorded, 0))) == recorded


def test_broken_arguments_are_kept_as_an_invalid_call() -> None:
    message = to_message(with_arguments("{not json"), 0)
    assert isinstance(message, AIMessage)
    assert message.tool_calls == []
    (call,) = message.invalid_tool_calls
    assert (call["name"], call["args"], call["id"]) == ("f", "{not json", "c1")


def test_ids_come_from_the_place_in_the_conversation() -> None:
    ids = [to_message({"role": "user", "content": "same"}, i).id for i in (0, 1, 0)]
    assert ids[0] == ids[2] != ids[1]


# -- files -------------------------------------------------------------------------


def test_the_projects_own_recordings_are_whole() -> None:
    conversations = read_conversations(DEFAULT_INPUT)
    assert len(conversations) == 12
    for conversation in conversations:
        assert 8 <= len(conversation.messages) <= 40
        assert list(map(to_recorded, conversation.messages)) == list(conversation.recorded)
        called = {c["id"] for m in conversation.messages for c in getattr(m, "tool_calls", [])}
        called |= {
            c["id"] for m in conversation.messages for c in getattr(m, "invalid_tool_calls", [])
        }
        answered = {m.tool_call_id for m in conversation.messages if hasattr(m, "tool_call_id")}
        assert called == answered


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not a line of JSON"),
        ('{"thread_id": "a", "messages": [{"role": "user", "content": NaN}]}', "NaN is no JSON"),
        ("[1]", 'expected a JSON object with "thread_id" and "messages"'),
        ('{"messages": [{"role": "user", "content": "a"}]}', '"thread_id"'),
        ('{"thread_id": "a"}', "at least one message"),
        ('{"thread_id": "a", "messages": []}', "at least one message"),
        ('{"thread_id": "a", "messages": ["hi"]}', "message 0 is not a chat message"),
        ('{"thread_id": "a", "messages": [{"role": "robot"}]}', "one of system, developer"),
        (
            '{"thread_id": "a", "messages": [{"role": "user", "content": "b"}, {"role": "tool"}]}',
            "message 1 is not a chat message in OpenAI's form: it lacks 'tool_call_id'",
        ),
        ('{"thread_id": "a", "messages": [{"role": "user", "content": 5}]}', "content: "),
        (
            '{"thread_id": "a", "messages": [{"role": "assistant", "tool_calls": [{"id": 1}]}]}',
            "it lacks 'function'",
        ),
        (
            '{"thread_id": "%s", "messages": [{"role": "user", "content": ""}]}' % ("x" * 9000),
            "8192",
        ),
        ("\xff", "not a line of JSON"),
    ],
)
def test_a_bad_line_is_named_and_the_others_are_read(
    tmp_path: Path, line: str, problem: str
) -> None:
    good = json.dumps({"thread_id": "good", "messages": [{"role": "user", "content": "x"}]})
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join([b"", line.encode("latin-1"), good.encode(), b""]))
    bad, fine = read_lines(path)
    assert str(bad.error).startswith(f"{path}:2: ")
    assert problem in str(bad.error)
    assert "\n" not in str(bad.error)
    assert fine.conversation is not None
    assert fine.conversation.thread_id == "good"
    with pytest.raises(RecordingError, match=r"in\.jsonl:2"):
        read_conversations(path)


def test_a_thread_id_counts_as_its_text_and_may_stand_there_once(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    lines = [{"thread_id": i, "messages": [{"role": "user", "content": "x"}]} for i in (1, "1")]
    path.write_text("\n".join(map(json.dumps, lines)))
    first, second = read_lines(path)
    assert first.conversation is not None
    assert first.conversation.thread_id == "1"
    assert "stands on line 1 as well" in str(second.error)


# -- the graph's parts ---------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=5), st.integers(0, 5))
def test_the_reducer_does_not_mind_how_writes_are_batched(
    writes: list[list[int]], cut: int
) -> None:
    batches = [[to_message({"role": "user", "content": f"{i}"}, i) for i in w] for w in writes]
    at_once = append_by_id([], batches)
    assert append_by_id(append_by_id([], batches[:cut]), batches[cut:]) == at_once
    assert len({message.id for message in at_once}) == len(at_once)


def test_a_recording_tells_who_speaks_next() -> None:
    roles = ["system", "user", "assistant", "tool", "tool", "assistant"]
    messages = [
        to_message(
            {"role": role, "content": role, "tool_call_id": "c"}
            if role == "tool"
            else {"role": role, "content": role},
            i,
        )
        for i, role in enumerate(roles)
    ]
    recording = Recording(messages)
    assert recording.inputs(0) == messages[:2]
    assert recording.inputs(2) == recording.results(2) == []
    assert recording.answer(2) == messages[2:3]
    assert recording.results(3) == messages[3:5]
    assert recording.answer(3) == recording.answer(6) == []
