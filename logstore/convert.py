"""Materialising a delta thread, so that a full-mode process can go on with it.

Each namespace gets a new head: a copy of its head, with the same parent, that holds the whole
list of messages and bears no mark. It goes through the saver's public interface and works on
any saver. Nothing that is stored changes; what came before stays readable in delta mode.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener

from logstore.channels import delta_messages, merge_message_writes
from logstore.errors import LogStoreError
from logstore.modes import COUNTERS, MESSAGES, MODE_KEY, is_delta

Reducer = Callable[[Any, Sequence[Any]], Any]


class ConversionError(LogStoreError):
    """A thread cannot be converted now, or the conversion was overtaken."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was done in one namespace of a thread."""

    checkpoint_ns: str
    converted_from: str
    """The head in delta mode."""
    checkpoint_id: str
    """The head now, which full mode reads."""
    messages: int


def convert_to_full(
    saver: BaseCheckpointSaver[Any],
    thread_id: str,
    *,
    namespaces: Collection[str] | None = None,
    reducer: Reducer = merge_message_writes,
    rerun_unfinished: bool = False,
) -> list[Conversion]:
    """Give each namespace of a delta thread a head that a full-mode process can go on from.

    No process may write the thread meanwhile. Repeating it does nothing.

    Args:
        saver: the saver itself, not guarded by a mode.
        thread_id: the thread; one that is in full mode already is left alone.
        namespaces: the thread's, if the caller knows them; else its checkpoints are listed.
        reducer: the reducer of the graph's `DeltaChannel` of messages.
        rerun_unfinished: convert a thread that was interrupted in the middle of a step too.
            The tasks of that step, whose results and questions are stored with the old head,
            then run again from their start.

    Returns:
        What was done, a subgraph's namespaces first; nothing for a thread in full mode.

    Raises:
        ConversionError: there is unfinished work, another process wrote meanwhile, a value's
            class is not at hand, or the clock is behind the thread's.
    """
    if namespaces is None:
        found = saver.list({"configurable": {"thread_id": thread_id}})
        namespaces = {_ns(one) for one in found}
    with _nothing_blocked(thread_id):
        heads = [_head(saver, thread_id, ns) for ns in sorted(namespaces, reverse=True)]
        delta = [head for head in heads if head is not None and is_delta(head)]
        messages = [materialise(saver, head, reducer) for head in delta]
    if not rerun_unfinished:
        for head in delta:
            _refuse_unfinished(thread_id, head)
    return [_convert(saver, thread_id, *one) for one in zip(delta, messages, strict=True)]


def _head(saver: BaseCheckpointSaver[Any], thread_id: str, ns: str) -> CheckpointTuple | None:
    return saver.get_tuple({"configurable": {"thread_id": thread_id, "checkpoint_ns": ns}})


def _ns(found: CheckpointTuple) -> str:
    return str(found.config["configurable"].get("checkpoint_ns", ""))


def _refuse_unfinished(thread_id: str, head: CheckpointTuple) -> None:
    if head.pending_writes:
        raise ConversionError(
            f"thread {thread_id!r} stopped in the middle of a step in namespace {_ns(head)!r}: "
            f"{len(head.pending_writes)} writes of its tasks wait at checkpoint "
            f"{head.checkpoint['id']}. Let the run finish in delta mode first, or pass "
            "--rerun-unfinished: the tasks of that step then run again from their start"
        )


def _convert(
    saver: BaseCheckpointSaver[Any], thread_id: str, head: CheckpointTuple, messages: list[Any]
) -> Conversion:
    checkpoint = _with_messages(saver, head, messages)
    if checkpoint["id"] <= head.checkpoint["id"]:
        raise ConversionError(
            f"the head of thread {thread_id!r}, {head.checkpoint['id']}, is newer than this "
            "machine's clock; set the clock, or repeat the command later"
        )
    version = checkpoint["channel_versions"].get(MESSAGES)
    new_versions = {} if version is None else {MESSAGES: version}
    saver.put(_parent(head), checkpoint, _metadata(head), new_versions)
    _verify(saver, thread_id, head, checkpoint["id"], messages)
    return Conversion(_ns(head), head.checkpoint["id"], checkpoint["id"], len(messages))


def materialise(
    saver: BaseCheckpointSaver[Any], head: CheckpointTuple, reducer: Reducer = merge_message_writes
) -> list[Any]:
    """The messages at a checkpoint, as a graph with a `DeltaChannel` would read them.

    Args:
        saver: where the checkpoint is from.
        head: the checkpoint.
        reducer: the channel's.

    Raises:
        ReadError: not all of it can be reached.
    """
    channel = delta_messages(1)
    channel.reducer = reducer
    stored = head.checkpoint["channel_values"]
    if MESSAGES in stored or MESSAGES not in head.checkpoint["channel_versions"]:
        return list(channel.from_checkpoint(stored.get(MESSAGES)).get())
    history = saver.get_delta_channel_history(config=head.config, channels=[MESSAGES])[MESSAGES]
    channel = channel.from_checkpoint(history.get("seed"))
    channel.replay_writes(history["writes"])
    return list(channel.get())


def _with_messages(
    saver: BaseCheckpointSaver[Any], head: CheckpointTuple, messages: list[Any]
) -> Checkpoint:
    """A copy of the head's checkpoint that holds the messages at a version of their own."""
    checkpoint = head.checkpoint.copy()
    checkpoint["id"] = str(uuid6(clock_seq=-2))
    checkpoint["ts"] = datetime.now(UTC).isoformat()
    before = checkpoint["channel_versions"].get(MESSAGES)
    if before is None:  # a namespace without messages, a subgraph's perhaps
        return checkpoint
    version = saver.get_next_version(before, None)
    checkpoint["channel_values"] = {**checkpoint["channel_values"], MESSAGES: messages}
    checkpoint["channel_versions"] = {**checkpoint["channel_versions"], MESSAGES: version}
    # The new version is no write: whoever had seen the old one has seen it.
    checkpoint["versions_seen"] = {
        node: {**seen, MESSAGES: version} if seen.get(MESSAGES) == before else seen
        for node, seen in checkpoint["versions_seen"].items()
    }
    return checkpoint


def _metadata(head: CheckpointTuple) -> CheckpointMetadata:
    """The head's metadata, without what says that the messages are a delta channel."""
    fields: dict[str, Any] = {k: v for k, v in head.metadata.items() if k != MODE_KEY}
    counters = {k: v for k, v in fields.pop(COUNTERS, {}).items() if k != MESSAGES}
    if counters:
        fields[COUNTERS] = counters
    return cast(
        CheckpointMetadata, {**fields, "source": "fork", "step": fields.get("step", -2) + 1}
    )


def _parent(head: CheckpointTuple) -> RunnableConfig:
    """The config for a put beside the head, where LangGraph puts its own copies too.

    Below the head, the writes of its unfinished tasks would count as applied.
    """
    if head.parent_config is not None:
        return head.parent_config
    configurable = head.config["configurable"]
    return {"configurable": {k: v for k, v in configurable.items() if k != "checkpoint_id"}}


def _verify(
    saver: BaseCheckpointSaver[Any],
    thread_id: str,
    before: CheckpointTuple,
    checkpoint_id: str,
    messages: list[Any],
) -> None:
    found = _head(saver, thread_id, _ns(before))
    if found is None or found.checkpoint["id"] != checkpoint_id:
        raise ConversionError(
            f"another process wrote thread {thread_id!r} while it was converted; stop what runs "
            "in delta mode and repeat the command"
        )
    if is_delta(found) or found.checkpoint["channel_values"].get(MESSAGES, []) != messages:
        raise ConversionError(
            f"thread {thread_id!r}: checkpoint {checkpoint_id} does not hold the messages of "
            f"{before.checkpoint['id']}; go on in delta mode from that one, by its id"
        )


@contextmanager
def _nothing_blocked(thread_id: str) -> Iterator[None]:
    """Refuse values that the serde does not construct: it gives a dict for them instead."""
    blocked: set[str] = set()
    me = threading.get_ident()

    def listen(event: SerdeEvent) -> None:
        if threading.get_ident() == me and "blocked" in event["kind"]:
            blocked.add(f"{event['module']}.{event['name']}")

    unregister = register_serde_event_listener(listen)
    try:
        yield
    finally:
        unregister()
    if blocked:
        raise ConversionError(
            f"the heads of thread {thread_id!r} hold {', '.join(sorted(blocked))}, which the "
            "serde does not allow; pass the application's with --serde"
        )
