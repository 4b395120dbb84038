"""Recorded chat messages as LangChain's and back, without losing a byte.

LangChain's own conversion loses some of what OpenAI's form can say: whether an empty
content was null, the exact text of a tool call's arguments, fields that it does not know.
What it would lose travels along in the message, so that the recording can be compared with
what comes back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, convert_to_messages

Recorded = Mapping[str, Any]
"""One message in OpenAI's chat form, as `json.loads` gives it."""

ROLES = ("system", "developer", "user", "assistant", "tool", "function")

_KEPT = "recorded"
"""The entry of `additional_kwargs` that holds what LangChain's form cannot."""
_ROLE_OF_TYPE = {"human": "user", "ai": "assistant"}
_CONVERTED = ("role", "content", "name", "tool_call_id")
_MAX_INT = 2**63
"""MessagePack holds no larger integers."""


def to_message(recorded: Recorded, position: int) -> BaseMessage:
    """The LangChain message of a recorded one.

    Args:
        recorded: the message.
        position: its place in the conversation, from 0; it becomes the message's id, so
            that the same recording gives the same ids.

    Raises:
        ValueError: it is not a message.
    """
    storable = _without_surrogates(recorded)
    calls, invalid = _tool_calls(storable.get("tool_calls"))
    fields = {key: storable[key] for key in _CONVERTED if key in storable}
    (message,) = convert_to_messages([{"content": None, **fields, "tool_calls": calls}])
    message.id = f"message-{position:05d}"
    if isinstance(message, AIMessage):
        message.invalid_tool_calls = invalid
    standard = _standard(message)
    changed = {k: v for k, v in recorded.items() if k not in standard or standard[k] != v}
    absent = [k for k in standard if k not in recorded]
    kept = {"fields": changed, "absent": absent} if absent else {"fields": changed}
    if changed or absent:
        message.additional_kwargs[_KEPT] = json.dumps(kept, separators=(",", ":"))
    return message


def to_recorded(message: BaseMessage) -> dict[str, Any]:
    """The recorded message that `to_message` made this one of."""
    kept = json.loads(message.additional_kwargs.get(_KEPT, "{}"))
    absent = kept.get("absent", ())
    standard = {k: v for k, v in _standard(message).items() if k not in absent}
    return {**standard, **kept.get("fields", {})}


def _standard(message: BaseMessage) -> dict[str, Any]:
    """OpenAI's form of what LangChain's fields hold."""
    found: dict[str, Any] = {
        "role": _ROLE_OF_TYPE.get(message.type, message.type),
        "content": message.content,
    }
    if message.name is not None:
        found["name"] = message.name
    if isinstance(message, ToolMessage):
        found["tool_call_id"] = message.tool_call_id
    if isinstance(message, AIMessage) and message.tool_calls:
        found["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": _compact(call["args"])},
            }
            for call in message.tool_calls
        ]
    return found


def _tool_calls(recorded: Any) -> tuple[list[Any] | None, list[Any]]:
    """Tool calls as LangChain takes them, and those whose arguments are no JSON object.

    A model that writes broken arguments is a fact worth keeping, not an error.
    """
    if recorded is None:
        return None, []
    calls: list[Any] = []
    invalid: list[Any] = []
    for call in recorded:
        name, text = call["function"]["name"], call["function"]["arguments"]
        head = {"name": name, "id": call["id"]}
        args = _parsed(text)
        if args is None:
            broken = {**head, "args": str(text), "error": None, "type": "invalid_tool_call"}
            invalid.append(broken)
        else:
            calls.append({**head, "args": args, "type": "tool_call"})
    return calls, invalid


def _parsed(arguments: Any) -> dict[str, Any] | None:
    try:
        args = json.loads(arguments, parse_int=_small_int, parse_constant=_no_constant)
    except (TypeError, ValueError, RecursionError):
        return None
    return args if isinstance(args, dict) else None


def _small_int(text: str) -> int:
    value = int(text)
    if not -_MAX_INT <= value < _MAX_INT:
        raise ValueError(f"{text} does not fit in 64 bits")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _without_surrogates(recorded: Recorded) -> dict[str, Any]:
    """The message with lone surrogates, which no store of UTF-8 can hold, replaced."""
    text = json.dumps(recorded, ensure_ascii=False)
    found: dict[str, Any] = json.loads(text.encode("utf-8", "replace"))
    return found
