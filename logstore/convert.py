"""Materialising a delta thread, so that a full-mode process can read it and go on with it.

Each checkpoint of delta mode is put again in its place, under its own id and parent: with the
whole list of messages, and without the mark. It goes through the saver's public interface and
works on any saver. What tasks had written at a checkpoint stays there, so that a thread that
waits for an answer still waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)

from logstore.blocked import blocked_classes
from logstore.channels import delta_messages, merge_message_writes
from logstore.encode import HIDDEN_PARENT
from logstore.errors import ConversionError
from logstore.modes import COUNTERS, MESSAGES, MODE_KEY, is_delta

Reducer = Callable[[Any, Sequence[Any]], Any]

_BATCH = 32
"""How many checkpoints are read before they are put: a put makes the next read a new one."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was done in one namespace of a thread."""

    checkpoint_ns: str
    checkpoints: int
    """How many were converted."""
    messages: int
    """At the newest of them."""


class _Place(NamedTuple):
    """A checkpoint of delta mode. They sort in the order in which they are converted."""

    ns: str
    checkpoint_id: str

    def config(self, thread_id: str) -> RunnableConfig:
        configurable = {"checkpoint_ns": self.ns, "checkpoint_id": self.checkpoint_id}
        return {"configurable": {"thread_id": thread_id, **configurable}}


def convert_to_full(
    saver: BaseCheckpointSaver[Any], thread_id: str, *, reducer: Reducer = merge_message_writes
) -> list[Conversion]:
    """Materialise every checkpoint of a thread that was written in delta mode.

    No process may write the thread meanwhile. One that was interrupted is finished by
    repeating it, and until then delta mode goes on as before; otherwise repeating it does
    nothing.

    Args:
        saver: the saver itself, not guarded by a mode.
        thread_id: the thread; checkpoints that are in full mode already are left alone.
        reducer: the reducer of the graph's `DeltaChannel` of messages.

    Returns:
        What was done, a subgraph's namespaces first; nothing for a thread in full mode.

    Raises:
        ConversionError: another process wrote meanwhile, or a value's class is not at hand.
        ReadError: not all of a checkpoint's messages can be reached.
    """
    found = saver.list({"configurable": {"thread_id": thread_id}})
    places = sorted(_Place(_ns(one), one.checkpoint["id"]) for one in found if is_delta(one))
    by_ns = {ns: list(group) for ns, group in groupby(places, key=lambda place: place.ns)}
    # The head of the root comes last: until then full mode refuses the thread.
    done = [
        _Converter(saver, thread_id, reducer).run(ns, by_ns[ns])
        for ns in sorted(by_ns, reverse=True)
    ]
    for ns in by_ns:
        config: RunnableConfig = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns}}
        head = saver.get_tuple(config)
        if head is None or is_delta(head):
            raise _overtaken(thread_id)
    return done


class _Materialised(NamedTuple):
    """A checkpoint of delta mode and the messages at it."""

    found: CheckpointTuple
    messages: list[Any]

    @property
    def checkpoint_id(self) -> str:
        return self.found.checkpoint["id"]

    @property
    def version(self) -> Any:
        return self.found.checkpoint["channel_versions"].get(MESSAGES)


class _Converter:
    """Converts one namespace of a thread, the oldest checkpoint first.

    So the walk back from a checkpoint ends at its parent, which has its whole list already.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any], thread_id: str, reducer: Reducer) -> None:
        self._saver = saver
        self._thread_id = thread_id
        self._reducer = reducer
        self._before: tuple[_Materialised, Any] | None = None
        """The checkpoint put last, and its new version of the messages."""

    def run(self, ns: str, places: Sequence[_Place]) -> Conversion:
        batch: list[_Materialised] = []
        for some in _batches(places, _BATCH):
            batch = self._read(some)
            for one in batch:
                self._put(one)
            for one in batch:
                self._verify(one)
        return Conversion(ns, len(places), len(batch[-1].messages))

    def _read(self, places: Sequence[_Place]) -> list[_Materialised]:
        with blocked_classes() as blocked:
            batch = [self._materialised(place.config(self._thread_id)) for place in places]
        if blocked:
            raise ConversionError(
                f"checkpoints of thread {self._thread_id!r} hold {', '.join(sorted(blocked))}, "
                "which the serde does not allow; pass the application's with --serde"
            )
        return batch

    def _materialised(self, config: RunnableConfig) -> _Materialised:
        found = self._saver.get_tuple(config)
        if found is None:
            raise _overtaken(self._thread_id)
        return _Materialised(found, materialise(self._saver, found, self._reducer))

    def _put(self, one: _Materialised) -> None:
        version, new_versions = self._new_version(one)
        checkpoint = _with_messages(one, version)
        self._saver.put(_parent(one.found), checkpoint, _metadata(one.found), new_versions)
        self._before = (one, version)

    def _new_version(self, one: _Materialised) -> tuple[Any, ChannelVersions]:
        """The version that the messages get, and what of it is new to the saver.

        The old version stands for "no value here", and a saver may keep what it has of a
        version. Checkpoints that share one may differ in the value, but seldom do.
        """
        if one.version is None:  # a namespace without messages, a subgraph's perhaps
            return None, {}
        if self._before is not None:
            before, version = self._before
            if before.version == one.version and before.messages == one.messages:
                return version, {}
        version = self._saver.get_next_version(one.version, None)
        return version, {MESSAGES: version}

    def _verify(self, one: _Materialised) -> None:
        found = self._saver.get_tuple(one.found.config)
        if found is None or is_delta(found):
            raise _overtaken(self._thread_id)
        if found.checkpoint["channel_values"].get(MESSAGES, []) != one.messages:
            raise ConversionError(
                f"thread {self._thread_id!r}: checkpoint {one.checkpoint_id} does not hold its "
                "messages after it was converted; it is readable in delta mode as before. Another "
                "process may have written it meanwhile: stop it and repeat the command"
            )


def _batches(places: Sequence[_Place], size: int) -> Iterator[list[_Place]]:
    rest = iter(places)
    while batch := list(islice(rest, size)):
        yield batch


def materialise(
    saver: BaseCheckpointSaver[Any], found: CheckpointTuple, reducer: Reducer = merge_message_writes
) -> list[Any]:
    """The messages at a checkpoint, as a graph with a `DeltaChannel` would read them.

    Args:
        saver: where the checkpoint is from.
        found: the checkpoint.
        reducer: the channel's.

    Raises:
        ReadError: not all of it can be reached.
    """
    channel = delta_messages(1)
    channel.reducer = reducer
    stored = found.checkpoint["channel_values"]
    if MESSAGES in stored or MESSAGES not in found.checkpoint["channel_versions"]:
        return list(channel.from_checkpoint(stored.get(MESSAGES)).get())
    history = saver.get_delta_channel_history(config=found.config, channels=[MESSAGES])[MESSAGES]
    channel = channel.from_checkpoint(history.get("seed"))
    channel.replay_writes(history["writes"])
    return list(channel.get())


def _ns(found: CheckpointTuple) -> str:
    return str(found.config["configurable"].get("checkpoint_ns", ""))


def _with_messages(one: _Materialised, version: Any) -> Checkpoint:
    """The checkpoint with its messages, at a version of their own."""
    checkpoint = one.found.checkpoint.copy()
    before = one.version
    if before is None:
        return checkpoint
    checkpoint["channel_values"] = {**checkpoint["channel_values"], MESSAGES: one.messages}
    checkpoint["channel_versions"] = {**checkpoint["channel_versions"], MESSAGES: version}
    # The new version is no write: whoever had seen the old one has seen it.
    checkpoint["versions_seen"] = {
        node: {**seen, MESSAGES: version} if seen.get(MESSAGES) == before else seen
        for node, seen in checkpoint["versions_seen"].items()
    }
    return checkpoint


def _metadata(found: CheckpointTuple) -> CheckpointMetadata:
    """The metadata without what says that the messages are a delta channel."""
    fields: dict[str, Any] = {k: v for k, v in found.metadata.items() if k != MODE_KEY}
    counters = {k: v for k, v in fields.pop(COUNTERS, {}).items() if k != MESSAGES}
    if counters:
        fields[COUNTERS] = counters
    return cast(CheckpointMetadata, fields)


def _parent(found: CheckpointTuple) -> RunnableConfig:
    """The config for a put in the checkpoint's place."""
    if found.parent_config is not None:
        return found.parent_config
    configurable = dict(found.config["configurable"])
    # After a prune the parent is hidden, and other delta channels are still rebuilt from it.
    parent = configurable.pop(HIDDEN_PARENT, None)
    configurable.pop("checkpoint_id")
    return {"configurable": {**configurable, **({"checkpoint_id": parent} if parent else {})}}


def _overtaken(thread_id: str) -> ConversionError:
    return ConversionError(
        f"another process wrote thread {thread_id!r} while it was converted; stop what runs in "
        "delta mode and repeat the command"
    )
