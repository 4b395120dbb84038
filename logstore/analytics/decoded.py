"""Rows of the tables that are made by reading threads: messages, tool calls, decoded values."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from logstore.analytics.messages import (
    Plain,
    ToolCall,
    finish_reason_of,
    model_of,
    role_of,
    text_of,
    tool_calls_of,
    usage_of,
)
from logstore.analytics.spoken import MessageReader
from logstore.analytics.transcript import ChannelMessages, Entry, Transcript
from logstore.errors import FormatError, InvalidOptionError
from logstore.reader import ThreadRead
from logstore.records import Encoding, Kind
from logstore.store import LogStore
from logstore.structural import decode, to_json
from logstore.values import ValueDecoder

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reading:
    """How the tables of messages are made."""

    history: bool = False
    """Every message that ever stood in the channel; else those as of the head."""
    branches: Literal["head", "all"] = "head"
    """The head's branch, or every branch of a thread with forks."""

    def __post_init__(self) -> None:
        """Refuse what is no choice."""
        if self.branches not in ("head", "all"):
            raise InvalidOptionError(f'branches is "head" or "all", not {self.branches!r}')

    @property
    def name(self) -> str:
        """A name for files."""
        return f"{'history' if self.history else 'head'}-{self.branches}"


def rows_of(
    names: Collection[str], partition: int, read: ThreadRead, store: LogStore, reading: Reading
) -> Iterator[tuple[str, Row]]:
    """A thread's rows of tables that are made by reading threads, decoded once for all of them.

    Args:
        names: the tables.
        partition: the thread's partition.
        read: the thread with all of its records.
        store: where it is.
        reading: which messages and tool calls.

    Yields:
        Each row with its table.

    Raises:
        FormatError: a value of a channel of messages cannot be decoded.
        ReadError: something that a value is rebuilt from is missing.
    """
    decoder = store.reader.decoder(read)
    for name, row in _all_rows(names, read, decoder, reading):
        row["partition"] = partition
        yield name, row


def _all_rows(
    names: Collection[str], read: ThreadRead, decoder: ValueDecoder, reading: Reading
) -> Iterator[tuple[str, Row]]:
    if "decoded" in names:
        for row in _decoded_rows(read, decoder):
            yield "decoded", row
    makers = {name: make for name, make in _OF_CHANNEL.items() if name in names}
    if not makers:
        return
    reader = MessageReader(decoder)
    transcript = Transcript(read, reader)
    every = reading.branches == "all"
    for found in transcript.channels(history=reading.history, every_branch=every):
        for name, make in makers.items():
            for row in make(found, reader):
                yield name, row


def _message_rows(found: ChannelMessages, reader: MessageReader) -> Iterator[Row]:
    """The messages of a channel."""
    for entry in found.entries:
        yield _message_row(found, entry, reader.message(entry.place))


def _tool_call_rows(found: ChannelMessages, reader: MessageReader) -> Iterator[Row]:
    """The calls of tools in a channel's messages, each with its result if there is one."""
    calling: list[Entry] = []
    results: dict[str, Entry] = {}
    for entry in found.entries:
        message = reader.message(entry.place)
        if tool_calls_of(message):
            calling.append(entry)
        if isinstance(message.get("tool_call_id"), str):
            results[message["tool_call_id"]] = entry
    for entry in calling:
        message = reader.message(entry.place)
        for call in tool_calls_of(message):
            answer = results.get(call.id or "")
            row = _tool_call_row(found, entry, message, call)
            if answer is not None:
                row.update(_result_of(call, entry, answer, reader.message(answer.place)))
            yield row


_OF_CHANNEL: Mapping[str, Callable[[ChannelMessages, MessageReader], Iterator[Row]]] = {
    "messages": _message_rows,
    "tool_calls": _tool_call_rows,
}


def _decoded_rows(read: ThreadRead, decoder: ValueDecoder) -> Iterator[Row]:
    """The values of all blobs, writes and snapshots that show, as JSON, on whatever branch."""
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


def _message_row(found: ChannelMessages, entry: Entry, message: Plain) -> Row:
    usage = usage_of(message)
    return {
        **_place(found, entry, message),
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


def _place(found: ChannelMessages, entry: Entry, message: Plain) -> Row:
    leaf = found.branch.leaf
    return {
        "thread_id": leaf.thread_id,
        "checkpoint_ns": leaf.checkpoint_ns,
        "channel": found.channel,
        "branch": leaf.checkpoint_id,
        "step": entry.first.step,
        "ts": entry.first.ts,
        "position": entry.position,
        "message_id": _clean(message.get("id")),
    }


def _call_ids(message: Plain) -> list[str | None]:
    """The calls that the message makes, or the one that it answers."""
    answered = message.get("tool_call_id")
    if isinstance(answered, str):
        return [_clean(answered)]
    return [_clean(call.id) for call in tool_calls_of(message)]


def _tool_call_row(found: ChannelMessages, entry: Entry, message: Plain, call: ToolCall) -> Row:
    """A call, as long as nothing has answered it."""
    return {
        **_place(found, entry, message),
        "tool_call_id": _clean(call.id),
        "name": _clean(call.name),
        "arguments": _arguments(call.arguments),
        "result": _clean(call.error),
        "is_error": None if call.valid else True,
        "result_ts": None,
        "latency_s": None,
    }


def _result_of(call: ToolCall, entry: Entry, answer: Entry, message: Plain) -> Row:
    """What an answer tells of a call."""
    content = message.get("content")
    text = text_of(content)
    return {
        "result": _json(content) if text is None else _clean(text),
        "is_error": not call.valid or message.get("status") == "error",
        "result_ts": answer.first.ts,
        "latency_s": _seconds_between(entry, answer),
    }


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
