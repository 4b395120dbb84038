"""The messages of one thread, as of a checkpoint or of every step, without its classes.

A channel counts as one of messages if a value or a write of it is a message or a list that
holds one; where values are encrypted, if it is called `messages`. What the graph stored as its
value, or the compactor as its snapshot, is taken as it is. Otherwise the channel is a delta
channel, and its writes are replayed by the rules of `logstore.analytics.messages`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from logstore.analytics.branches import Branch, branches
from logstore.analytics.messages import MessageList, Plain, holds_messages
from logstore.errors import FormatError
from logstore.modes import COUNTERS
from logstore.reader import ThreadRead
from logstore.records import Record
from logstore.structural import decode
from logstore.values import ValueDecoder
from logstore.walk import snapshot_stands, walk

DEFAULT_CHANNEL = "messages"
_KEPT_BYTES = 32 << 20
"""So many bytes of decoded values are kept of one thread; patches need earlier ones."""
_UNDATED = ""
Writes = Sequence[tuple[str, Record]]
"""Writes to a channel, oldest first, each with the checkpoint that first shows it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A message in a channel, and from when to when it stood there."""

    message: Plain
    position: int
    """Its place in the list, from 0."""
    first: Record
    """The checkpoint that it first stood in."""
    last: Record
    """The last one, of those looked at."""


@dataclass(frozen=True, slots=True)
class ChannelMessages:
    """The messages of a channel on a branch."""

    branch: Branch
    channel: str
    entries: tuple[Entry, ...]


class Transcript:
    """Reads the messages of one thread."""

    def __init__(self, read: ThreadRead, decoder: ValueDecoder) -> None:
        """Read from what was read of a thread."""
        self._view = read.view
        self._late = read.late
        self._decoder = decoder
        self._loaded_bytes = 0
        self._plain: dict[int, Any] = {}

    def channels(self, *, history: bool, every_branch: bool) -> Iterator[ChannelMessages]:
        """The channels of messages.

        Args:
            history: every message that ever stood there; else those as of the branch's leaf.
            every_branch: all branches; else the head's.

        Raises:
            FormatError: a value of a channel of messages cannot be decoded.
            ReadError: something that a value is rebuilt from is missing.
        """
        for branch in branches(self._view, every=every_branch):
            writes = branch.writes(self._view)
            for name in self._view.versions(branch.leaf):
                mine = writes.get(name, ())
                if self._counts(branch, name, mine):
                    entries = self._all(branch, name) if history else self._last(branch, name, mine)
                    yield ChannelMessages(branch, name, tuple(entries))

    # -- which channels --------------------------------------------------------------

    def _counts(self, branch: Branch, name: str, writes: Writes) -> bool:
        value = self._value(branch.leaf, name)
        records = [*([] if value is None else [value]), *(write for _, write in writes)]
        return any(self._may_hold(record, name) for record in records)

    def _may_hold(self, record: Record, name: str) -> bool:
        type_, data = self._load(record)
        if "+" in type_:
            return name == DEFAULT_CHANNEL
        if b"content" not in data:
            return False
        try:
            return holds_messages(self._decode(record))
        except FormatError:
            return False

    # -- as of a checkpoint ------------------------------------------------------------

    def _last(self, branch: Branch, name: str, writes: Writes) -> Iterator[Entry]:
        tracked = MessageList()
        for at, write in writes:
            tracked.apply(self._decode(write), at)
        leaf = branch.leaf
        value = self._value(leaf, name)
        if value is not None:
            tracked.replace(self._decode(value), _UNDATED)
        elif not self._is_delta(branch, name):
            return
        elif self._ends_early(branch, name):
            walked = walk(self._view, leaf, [name], self._late)[name]
            if walked.seed is not None:
                rebuilt = MessageList()
                rebuilt.replace(self._decode(walked.seed), _UNDATED)
                for write in walked.writes:
                    rebuilt.apply(self._decode(write), _UNDATED)
                tracked.replace([held.message for held in rebuilt.held.values()], _UNDATED)
        firsts = self._dated(branch, name, tracked)
        for position, (key, held) in enumerate(tracked.held.items()):
            yield Entry(held.message, position, firsts[key], leaf)

    def _ends_early(self, branch: Branch, name: str) -> bool:
        """Whether a walk back may end before the root, or miss an ancestor."""
        if branch.path[0].parent_checkpoint_id is not None:
            return True
        return any(self._value(checkpoint, name) is not None for checkpoint in branch.path)

    def _dated(self, branch: Branch, name: str, found: MessageList) -> dict[Any, Record]:
        """The checkpoints that messages first stood in.

        Those that no write brought are looked for in the values that the graph stored: a run
        that saves at its exit only stores no writes.
        """
        by_id = {
            record.checkpoint_id: shown
            for record, shown in zip(branch.path, branch.shown, strict=True)
        }
        firsts = {key: by_id.get(held.since, branch.leaf) for key, held in found.held.items()}
        undated = {key for key, held in found.held.items() if held.since == _UNDATED}
        earlier = zip(branch.path[:-1], branch.shown, strict=False)
        for checkpoint, shown in reversed(list(earlier)):
            if not undated:
                break
            stored = self._view.stored_value(checkpoint, name)
            if stored is not None:
                there = MessageList()
                there.replace(self._decode(stored), checkpoint.checkpoint_id)
                undated &= there.held.keys()
                firsts.update(dict.fromkeys(undated, shown))
        return firsts

    # -- of every step -----------------------------------------------------------------

    def _all(self, branch: Branch, name: str) -> Iterator[Entry]:
        state = MessageList()
        standing: dict[Any, Entry] = {}
        for number, checkpoint in enumerate(branch.path):
            self._step(branch, name, number, state)
            if not branch.shows(number):
                continue
            now: dict[Any, Entry] = {}
            for position, (key, held) in enumerate(state.held.items()):
                before = standing.pop(key, None)
                if before is not None and before.message == held.message:
                    now[key] = Entry(before.message, before.position, before.first, checkpoint)
                    continue
                if before is not None:
                    yield before
                now[key] = Entry(held.message, position, checkpoint, checkpoint)
            yield from standing.values()
            standing = now
        yield from standing.values()

    def _step(self, branch: Branch, name: str, number: int, state: MessageList) -> None:
        """Bring a list from one checkpoint of the path to the next."""
        checkpoint = branch.path[number]
        value = self._value(checkpoint, name)
        if value is not None:
            state.replace(self._decode(value), checkpoint.checkpoint_id)
        elif name not in self._view.versions(checkpoint) or not self._is_delta(branch, name):
            state.replace(None, checkpoint.checkpoint_id)
        elif number:
            for write in self._view.writes_before(checkpoint):
                if write.channel == name:
                    state.apply(self._decode(write), checkpoint.checkpoint_id)

    # -- values ------------------------------------------------------------------------

    def _value(self, checkpoint: Record, name: str) -> Record | None:
        """What was stored as the channel's value at a checkpoint, by the graph or for it."""
        stored = self._view.stored_value(checkpoint, name)
        if stored is not None:
            return stored
        snapshot = self._view.snapshot(checkpoint.checkpoint_ns, checkpoint.checkpoint_id, name)
        if snapshot and snapshot_stands(self._view, checkpoint, name, self._late):
            return snapshot
        return None

    def _is_delta(self, branch: Branch, name: str) -> bool:
        """LangGraph counts the updates of delta channels in the metadata, and only of these."""
        return any(name in _counted(checkpoint) for checkpoint in reversed(branch.path))

    def _decode(self, record: Record) -> Any:
        if id(record) not in self._plain:
            type_, data = self._load(record)
            self._plain[id(record)] = decode(type_, data)
        return self._plain[id(record)]

    def _load(self, record: Record) -> tuple[str, bytes]:
        ((type_, data),) = self._decoder.load([record])
        self._loaded_bytes += len(data)
        if self._loaded_bytes > _KEPT_BYTES:
            self._decoder.forget()
            self._plain.clear()
            self._loaded_bytes = 0
        return type_, data


def _counted(checkpoint: Record) -> Any:
    metadata = checkpoint.metadata or ""
    return (json.loads(metadata).get(COUNTERS) or {}) if COUNTERS in metadata else {}
