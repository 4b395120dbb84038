"""Messages as plain data: what counts as one, and how writes of them add up.

Writes are merged as LangGraph's `add_messages` does, without its classes: a known id is
replaced where it stands, a new one appended; a `RemoveMessage` takes its id away, and the id
`__remove_all__` everything before it; an `Overwrite` replaces the list. Another reducer may
mean something else: what such a graph *stored* is taken as it is, what is replayed from its
writes follows the rules above.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from logstore.records import Record
from logstore.structural import CLASS, is_delta_snapshot

Plain = Mapping[str, Any]
"""A message as `structural.decode` gives it."""

REMOVE_ALL = "__remove_all__"
_OVERWRITE = "__overwrite__"
_OVERWRITE_CLASS = "langgraph.types.Overwrite"
_MESSAGE_MODULES = "langchain_core.messages."
_ROLES = {
    "human": "user",
    "HumanMessageChunk": "user",
    "user": "user",
    "ai": "assistant",
    "AIMessageChunk": "assistant",
    "assistant": "assistant",
    "system": "system",
    "SystemMessageChunk": "system",
    "developer": "developer",
    "tool": "tool",
    "ToolMessageChunk": "tool",
    "function": "function",
    "FunctionMessageChunk": "function",
    "remove": "remove",
}


def is_message(value: Any) -> bool:
    """Whether a value is a message: an object of LangChain's, one like it, or OpenAI's dict."""
    if not isinstance(value, dict):
        return False
    path = value.get(CLASS)
    if isinstance(path, str) and path.startswith(_MESSAGE_MODULES):
        return True
    return "content" in value and (value.get("role") in _ROLES or value.get("type") in _ROLES)


def role_of(message: Plain) -> str | None:
    """Who speaks, in OpenAI's words: user, assistant, system, tool…"""
    if "__encrypted__" in message:
        return "encrypted"
    role, type_ = message.get("role"), message.get("type")
    if isinstance(role, str):
        return _ROLES.get(role, role)
    return _ROLES.get(type_, type_) if isinstance(type_, str) else None


class Said(NamedTuple):
    """What a stored value or a write says of a channel of messages."""

    record: Record
    messages: Sequence[Plain]
    replaces: bool
    """Whether a write replaces the whole list."""


def holds_messages(value: Any) -> bool:
    """Whether a stored value or a write is a message or a list with one in it."""
    _, inner = _overwritten(value)
    return is_message(inner) or (isinstance(inner, list) and any(map(is_message, inner)))


def said_in(record: Record, value: Any) -> Said:
    """The messages in a record's value; strings and pairs are messages too."""
    replaces, inner = _overwritten(value)
    if inner is None:
        return Said(record, (), replaces)
    items = inner if isinstance(inner, list) and not _is_pair(inner) else [inner]
    return Said(record, [_as_message(item) for item in items], replaces)


def _overwritten(value: Any) -> tuple[bool, Any]:
    """Whether a write replaces the whole value, and with what."""
    if is_delta_snapshot(value):
        return False, value["value"]
    if isinstance(value, dict):
        if value.get(CLASS) == _OVERWRITE_CLASS or value.get("type") == _OVERWRITE:
            return True, value.get("value")
        if len(value) == 1 and _OVERWRITE in value:
            return True, value[_OVERWRITE]
    return False, value


def _as_message(item: Any) -> Plain:
    if isinstance(item, str):
        return {"type": "human", "content": item}
    if isinstance(item, list) and _is_pair(item):
        return {"role": item[0], "content": item[1]}
    return item if isinstance(item, dict) else {"type": "unknown", "content": item}


def _is_pair(value: Sequence[Any]) -> bool:
    match value:
        case [str(role), str() | list()]:
            return role in _ROLES
        case _:
            return False


class Place(NamedTuple):
    """Where a message lies."""

    record: Record
    number: int
    """Which one of the messages in the record's value, from 0."""


class Held(NamedTuple):
    """A message in a list, and the checkpoint that it first stood in."""

    place: Place
    since: str


@dataclass(slots=True)
class MessageList:
    """Which messages a channel holds while writes are replayed; what they say stays stored."""

    held: dict[Any, Held] = field(default_factory=dict)
    """By id; a message without one has a key that no other has."""
    _without_id: Counter[Any] = field(default_factory=Counter)

    def replace(self, said: Said, at: str) -> None:
        """Take a whole value: what is in it already keeps its place in time."""
        before = self.clear()
        for index, message in enumerate(said.messages):
            key = self._key(message)
            known = before.get(key)
            since = at if known is None else known.since
            self.held[key] = Held(Place(said.record, index), since)

    def apply(self, write: Said, at: str) -> Collection[Any]:
        """Replay one write, which the checkpoint `at` is the first to show.

        Returns:
            The keys of the messages that may have come, gone or changed.
        """
        if write.replaces:
            before = self.held.keys()
            self.replace(write, at)
            return before | self.held.keys()
        touched: set[Any] = set()
        removed: set[Any] = set()
        for index, message in enumerate(write.messages):
            if role_of(message) != "remove":
                key = self._key(message)
                known = self.held.get(key)
                removed.discard(key)
                touched.add(key)
                since = at if known is None else known.since
                self.held[key] = Held(Place(write.record, index), since)
            elif message.get("id") == REMOVE_ALL:
                touched |= self.clear().keys()
                removed.clear()
            else:
                removed.add(message.get("id"))
        for key in removed:
            self.held.pop(key, None)
        return touched | removed

    def adopt(self, other: MessageList, at: str) -> None:
        """Become another list; what is here already keeps its place in time."""
        before = self.clear()
        self._without_id = other._without_id
        for key, (place, _) in other.held.items():
            known = before.get(key)
            self.held[key] = Held(place, at if known is None else known.since)

    def clear(self) -> Mapping[Any, Held]:
        """Let go of all messages; those that were here."""
        before, self.held = self.held, {}
        self._without_id.clear()
        return before

    def positions(self, keys: Collection[Any]) -> Mapping[Any, int]:
        """The places of some messages in the list, from 0, quickly if they are the last ones."""
        missing = set(keys & self.held.keys())
        found: dict[Any, int] = {}
        position = len(self.held)
        for key in reversed(self.held):
            if not missing:
                break
            position -= 1
            if key in missing:
                missing.discard(key)
                found[key] = position
        return found

    def _key(self, message: Plain) -> Any:
        if message.get("id") is not None:
            return message["id"]
        # Two equal messages without ids are two messages; the n-th of a list stays the n-th.
        content = repr((role_of(message), message.get("content"))).encode("utf-8", "replace")
        digest = blake2b(content, digest_size=16).digest()
        self._without_id[digest] += 1
        return (digest, self._without_id[digest])


# -- what analysts ask of a message -----------------------------------------------------


def text_of(content: Any) -> str | None:
    """The text of a message's content: of a list of blocks the text blocks, joined."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    parts = []
    for block in content:
        if isinstance(block, str):
            parts.append(block)
        elif isinstance(block, dict) and isinstance(block.get("text"), str):
            parts.append(block["text"])
    return "".join(parts)


class Usage(NamedTuple):
    """Tokens that a model counted."""

    input: int | None = None
    output: int | None = None
    total: int | None = None


def usage_of(message: Plain) -> Usage:
    """The tokens of a message, from LangChain's field or else from what the provider sent."""
    metadata = _mapping(message.get("response_metadata"))
    for found in (
        message.get("usage_metadata"),
        metadata.get("token_usage"),
        metadata.get("usage"),
    ):
        if isinstance(found, dict):
            input_ = _count(found, "input_tokens", "prompt_tokens")
            output = _count(found, "output_tokens", "completion_tokens")
            total = _count(found, "total_tokens")
            if total is None and input_ is not None and output is not None:
                total = input_ + output
            return Usage(input_, output, total)
    return Usage()


def model_of(message: Plain) -> str | None:
    """The model that answered."""
    return _first_text(message.get("response_metadata"), "model_name", "model", "model_id")


def finish_reason_of(message: Plain) -> str | None:
    """Why the model stopped."""
    return _first_text(
        message.get("response_metadata"), "finish_reason", "stop_reason", "finishReason"
    )


class ToolCall(NamedTuple):
    """One call of a tool that a model asked for."""

    id: str | None
    name: str | None
    arguments: Any
    """Plain data; text where the model wrote no valid JSON."""
    error: str | None = None
    """Why the call is not valid."""
    valid: bool = True


def tool_calls_of(message: Plain) -> list[ToolCall]:
    """The calls in a message: LangChain's, the ones it could not parse, or OpenAI's."""
    calls = [
        ToolCall(_text(c.get("id")), _text(c.get("name")), c.get("args"))
        if "function" not in c
        else _openai_call(c)
        for c in _dicts(message.get("tool_calls"))
    ]
    calls += [
        ToolCall(
            _text(c.get("id")), _text(c.get("name")), c.get("args"), _text(c.get("error")), False
        )
        for c in _dicts(message.get("invalid_tool_calls"))
    ]
    return calls


def _openai_call(call: Plain) -> ToolCall:
    function = _mapping(call.get("function"))
    return ToolCall(_text(call.get("id")), _text(function.get("name")), function.get("arguments"))


def _dicts(value: Any) -> Iterable[Plain]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def _mapping(value: Any) -> Plain:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _first_text(value: Any, *names: str) -> str | None:
    found = _mapping(value)
    return next((found[n] for n in names if isinstance(found.get(n), str)), None)


def _count(value: Plain, *names: str) -> int | None:
    for name in names:
        found = value.get(name)
        if isinstance(found, int) and not isinstance(found, bool) and abs(found) < 2**63:
            return found
    return None
