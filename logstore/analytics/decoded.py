"""Rows of the tables that are made by reading threads: messages, tool calls, decoded values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from logstore.analytics.messages import (
    Plain,
    finish_reason_of,
    model_of,
    role_of,
    text_of,
    tool_calls_of,
    usage_of,
)
from logstore.analytics.transcript import ChannelMessages, Entry, Transcript
from logstore.errors import FormatError
from logstore.reader import ThreadRead
from logstore.records import Encoding, Kind
from logstore.structural import decode, to_json
from logstore.values import ValueDecoder

Row = dict[str, Any]


def message_rows(
    read: ThreadRead, decoder: ValueDecoder, *, history: bool, every_branch: bool
) -> Iterator[Row]:
    """The thread's messages."""
    transcript = Transcript(read, decoder)
    for found in transcript.channels(history=history, every_branch=every_branch):
        for entry in found.entries:
            yield _message_row(found, entry)


def tool_call_rows(
    read: ThreadRead, decoder: ValueDecoder, *, history: bool, every_branch: bool
) -> Iterator[Row]:
    """The calls of tools in the thread's messages, each with its result if there is one."""
    transcript = Transcript(read, decoder)
    for found in transcript.channels(history=history, every_branch=every_branch):
        results = {
            entry.message["tool_call_id"]: entry
            for entry in found.entries
            if isinstance(entry.message.get("tool_call_id"), str)
        }
        for entry in found.entries:
            yield from _tool_call_rows(found, entry, results)


def decoded_rows(
    read: ThreadRead, decoder: ValueDecoder, *, history: bool, every_branch: bool
) -> Iterator[Row]:
    """The values of all blobs, writes and snapshots that show, as JSON.

    All of the thread's, whatever `history` and `every_branch` say.
    """
    for record in read.view.visible():
        if record.kind == Kind.CHECKPOINT or record.encoding == Encoding.EMPTY:
            continue
        ((type_, data),) = decoder.load([record])
        names = ("kind", "thread_id", "checkpoint_ns", "checkpoint_id", "channel", "version")
        yield {
            **{name: getattr(record, name) for name in (*names, "task_id", "idx", "ts")},
            "type": type_,
            "size": len(data),
            "json": _json(_decoded(type_, data)),
        }


def _decoded(type_: str, data: bytes) -> Any:
    try:
        return decode(type_, data)
    except FormatError as error:
        return {"__error__": str(error)}


def _message_row(found: ChannelMessages, entry: Entry) -> Row:
    message = entry.message
    usage = usage_of(message)
    return {
        **_place(found, entry),
        "first_checkpoint_id": entry.first.checkpoint_id,
        "last_checkpoint_id": entry.last.checkpoint_id,
        "role": _clean(role_of(message)),
        "name": _clean(message.get("name")),
        "text": _clean(text_of(message.get("content"))),
        "tool_call_ids": _call_ids(message),
        "finish_reason": _clean(finish_reason_of(message)),
        "model": _clean(model_of(message)),
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "total_tokens": usage.total,
    }


def _place(found: ChannelMessages, entry: Entry) -> Row:
    leaf = found.branch.leaf
    return {
        "thread_id": leaf.thread_id,
        "checkpoint_ns": leaf.checkpoint_ns,
        "channel": found.channel,
        "branch": leaf.checkpoint_id,
        "step": entry.first.step,
        "ts": entry.first.ts,
        "position": entry.position,
        "message_id": _clean(entry.message.get("id")),
    }


def _call_ids(message: Plain) -> list[str | None]:
    """The calls that the message makes, or the one that it answers."""
    answered = message.get("tool_call_id")
    if isinstance(answered, str):
        return [_clean(answered)]
    return [_clean(call.id) for call in tool_calls_of(message)]


def _tool_call_rows(
    found: ChannelMessages, entry: Entry, results: dict[str, Entry]
) -> Iterator[Row]:
    for call in tool_calls_of(entry.message):
        answer = results.get(call.id or "")
        row = {
            **_place(found, entry),
            "tool_call_id": _clean(call.id),
            "name": _clean(call.name),
            "arguments": _arguments(call.arguments),
            "result": _clean(call.error),
            "is_error": None if call.valid else True,
            "result_ts": None,
            "latency_s": None,
        }
        if answer is not None:
            content = answer.message.get("content")
            text = text_of(content)
            row["result"] = _json(content) if text is None else _clean(text)
            row["is_error"] = not call.valid or answer.message.get("status") == "error"
            row["result_ts"] = answer.first.ts
            row["latency_s"] = _seconds_between(entry, answer)
        yield row


def _arguments(value: Any) -> str:
    """Arguments as JSON; OpenAI's dicts hold them as a JSON text already."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return _json(value)
        return value
    return _json(value)


def _seconds_between(call: Entry, answer: Entry) -> float | None:
    if call.first.ts is None or answer.first.ts is None:
        return None
    return (answer.first.ts - call.first.ts) / 1_000_000


def _json(value: Any) -> str:
    return json.dumps(to_json(value), ensure_ascii=False, separators=(",", ":"))


def _clean(value: Any) -> str | None:
    """Text that Arrow can hold: lone surrogates are replaced."""
    if not isinstance(value, str):
        return None
    return value if value.isascii() else value.encode("utf-8", "replace").decode()
