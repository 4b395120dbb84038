"""Recorded conversations: one JSON object a line, read and checked line by line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage
from pydantic import ValidationError

from logstore.demo.messages import ROLES, Recorded, to_message, to_recorded
from logstore.encode import Target
from logstore.errors import LogStoreError

DEFAULT_INPUT = Path(__file__).with_name("conversations.jsonl")


class RecordingError(LogStoreError, ValueError):
    """A file of recorded conversations, or a line of it, is not what it should be."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One recorded conversation."""

    thread_id: str
    recorded: tuple[Recorded, ...]
    """As they stand in the file."""
    messages: tuple[BaseMessage, ...]
    """The same as LangChain's messages, with ids that come from their places."""
    line: int
    """Its line in the file, from 1."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file: a conversation, or what is wrong with it."""

    number: int
    size: int
    """Bytes, the line's end included."""
    conversation: Conversation | None = None
    error: RecordingError | None = None


def read_lines(path: Path) -> Iterator[Line]:
    """Read a file; a line that is no conversation ends nothing. Blank lines are passed over.

    Raises:
        RecordingError: the file cannot be opened.
    """
    seen: dict[str, int] = {}
    try:
        file = path.open("rb")
    except OSError as error:
        raise RecordingError(
            f"{path} cannot be read: {error.strerror}; expected a file of conversations, one "
            'JSON object a line: {"thread_id": "…", "messages": [{"role": "user", …}, …]}'
        ) from error
    with file:
        for number, raw in enumerate(file, 1):
            if not raw.strip():
                continue
            try:
                conversation = _conversation(raw, number)
                _check_new(conversation.thread_id, number, seen)
            except LogStoreError as error:
                yield Line(number, len(raw), error=RecordingError(f"{path}:{number}: {error}"))
            else:
                yield Line(number, len(raw), conversation)


def read_conversations(path: Path) -> list[Conversation]:
    """All conversations of a file.

    Raises:
        RecordingError: the file cannot be read, or one of its lines.
    """
    found = []
    for line in read_lines(path):
        if line.error is not None:
            raise line.error
        if line.conversation is not None:
            found.append(line.conversation)
    return found


def _conversation(raw: bytes, number: int) -> Conversation:
    try:
        doc = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RecordingError(f"not a line of JSON: {error}") from error
    if not isinstance(doc, dict) or doc.get("thread_id") is None:
        raise RecordingError('expected a JSON object with "thread_id" and "messages"')
    recorded = doc.get("messages")
    if not isinstance(recorded, list) or not recorded:
        raise RecordingError('expected "messages" to be a list of at least one message')
    messages = tuple(_message(item, i) for i, item in enumerate(recorded))
    thread_id = Target.check_thread_id(doc["thread_id"])
    return Conversation(thread_id, tuple(recorded), messages, number)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _message(recorded: Any, position: int) -> BaseMessage:
    try:
        if not isinstance(recorded, dict) or recorded.get("role") not in ROLES:
            raise TypeError(f'expected an object whose "role" is one of {", ".join(ROLES)}')
        message = to_message(recorded, position)
        if to_recorded(message) != recorded:
            raise ValueError("it would not come back as it is")
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise RecordingError(
            f"message {position} is not a chat message in OpenAI's form: {_reason(error)}"
        ) from error
    return message


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'][:1]))}: {first['msg']}"
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)


def _check_new(thread_id: str, number: int, seen: dict[str, int]) -> None:
    earlier = seen.setdefault(thread_id, number)
    if earlier != number:
        raise RecordingError(
            f"thread {thread_id!r} stands on line {earlier} as well; give each conversation a "
            "thread_id of its own"
        )
