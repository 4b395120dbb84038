"""The channel of messages: its reducer for `DeltaChannel`, and the field for each mode.

A delta channel is rebuilt by replaying writes, in other batches than they came in, over and
over. So its reducer must be deterministic and must not care about batches:
``reducer(reducer(s, xs), ys) == reducer(s, xs + ys)``.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import (
    BaseMessage,
    BaseMessageChunk,
    RemoveMessage,
    convert_to_messages,
    message_chunk_to_message,
)

from logstore.config import ChannelMode
from logstore.errors import UsageError
from logstore.modes import freeze

REMOVE_ALL_MESSAGES = "__remove_all__"
"""LangGraph's id for a `RemoveMessage` that removes every message before it."""

_ROLES = frozenset(("user", "human", "assistant", "ai", "system", "developer"))
_DERIVED_IDS = uuid.UUID("5b0c6d2e-8f5c-4d8b-9a53-1f6c0b7a4e21")


def merge_message_writes(state: Sequence[Any] | None, writes: Sequence[Any]) -> list[BaseMessage]:
    """Merge writes of messages into a list of messages, by id.

    Each write has the meaning that `add_messages` gives it: a known id is replaced where it
    stands, a new one is appended, a `RemoveMessage` takes its id away at the end of its
    write, and one with the id `REMOVE_ALL_MESSAGES` takes everything before it. Messages may
    be messages, their chunks, dicts, strings or `(role, content)` tuples.

    In three things it differs, because it is replayed from storage. A message without an id
    gets one that follows from what stands before it, the same at every read. Nothing that a
    replay may meet raises: a `RemoveMessage` of an unknown id and a write of None change
    nothing, because on a fork a write can be replayed on a state that it was not made for, and
    an error would make the thread unreadable for good. And a list of a role and a content is
    one message, as the tuple is that it was before it was stored.

    Args:
        state: the messages so far; it is not changed, nor are the messages in it.
        writes: oldest first; each is a list of messages, or one message.

    Raises:
        NotImplementedError, ValueError: something is no message (langchain_core's errors).
    """
    merged: dict[str, BaseMessage] = {}
    for write in (state, *writes):
        if write is not None:
            _merge(merged, _as_messages(write))
    return list(merged.values())


def _merge(merged: dict[str, BaseMessage], write: Sequence[BaseMessage]) -> None:
    removed: set[str] = set()
    for message in write:
        if not isinstance(message, RemoveMessage):
            message_id = message.id or _derived_id(merged, message)
            if message_id != message.id:
                message = message.model_copy(update={"id": message_id})
            removed.discard(message_id)
            merged[message_id] = message
        elif message.id == REMOVE_ALL_MESSAGES:
            merged.clear()
            removed.clear()
        else:
            removed.add(message.id or "")
    for message_id in removed:
        merged.pop(message_id, None)


def _as_messages(write: Any) -> Sequence[BaseMessage]:
    items = write if isinstance(write, list) and not _is_pair(write) else [write]
    if all(isinstance(m, BaseMessage) and not isinstance(m, BaseMessageChunk) for m in items):
        return items
    converted = convert_to_messages(items)
    return [
        message_chunk_to_message(m) if isinstance(m, BaseMessageChunk) else m for m in converted
    ]


def _is_pair(write: Sequence[Any]) -> bool:
    match write:
        case [str(role), str() | list()]:
            return role in _ROLES
        case _:
            return False


def _derived_id(merged: dict[str, BaseMessage], message: BaseMessage) -> str:
    """An id that follows from the message and from the one before it, and is free."""
    before = next(reversed(merged), "")
    content = message.model_dump(include={"type", "content", "name"})
    attempt = 0
    while True:
        name = json.dumps([before, content, attempt], sort_keys=True, default=_type_name)
        derived = str(uuid.uuid5(_DERIVED_IDS, name))
        if derived not in merged:
            return derived
        attempt += 1


def _type_name(value: Any) -> str:
    return type(value).__qualname__


def delta_messages(snapshot_frequency: int) -> Any:
    """The `DeltaChannel` of messages with the cadence K, for a tool that builds no graph.

    Raises:
        UsageError: langgraph is not installed.
    """
    try:
        from langgraph.channels.delta import DeltaChannel
    except ImportError as error:
        raise _no_langgraph() from error
    return DeltaChannel(merge_message_writes, list, snapshot_frequency=snapshot_frequency)


def messages_channel(mode: ChannelMode | None = None, snapshot_frequency: int | None = None) -> Any:
    """What makes a field of a graph's state its messages, in the process's mode.

    The first call, with which the first graph is built, freezes mode and cadence for the
    process. What is left out is taken from what is frozen, or else from the defaults
    (`full`, 10). Pass what the application's configuration says, never a request's.

    Example:
        ```python
        database = load_config("config.yaml").database

        class State(TypedDict):
            messages: Annotated[
                list[AnyMessage],
                messages_channel(
                    database.checkpoint_channel_mode, database.snapshot_frequency
                ),
            ]
        ```

    Args:
        mode: `delta` gives `DeltaChannel(merge_message_writes, snapshot_frequency=K)`, `full`
            the ordinary reducer, `add_messages`.
        snapshot_frequency: K, at least 1; ignored in full mode.

    Raises:
        CheckpointModeReconfigurationError: the process runs with another mode or cadence.
        ValueError: K is not positive.
        UsageError: langgraph is not installed.
    """
    try:
        from langgraph.graph.message import add_messages
    except ImportError as error:
        raise _no_langgraph() from error
    frozen = freeze(mode, snapshot_frequency)
    if frozen.snapshot_frequency is None:
        return add_messages
    return delta_messages(frozen.snapshot_frequency)


def _no_langgraph() -> UsageError:
    return UsageError(
        "channels of messages need langgraph; install langgraph-checkpoint-logstore[langgraph]"
    )
