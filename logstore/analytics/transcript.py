"""The messages of one thread, as of a checkpoint or of every step, without its classes.

A channel counts as one of messages if a value or a write of it is a message or a list that
holds one; where values are encrypted, if it is called `messages`. What the graph stored as its
value, or the compactor as its snapshot, is taken as it is. Otherwise the channel is a delta
channel, and its writes are replayed by the rules of `logstore.analytics.messages`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from logstore.analytics.branches import Branch, branches
from logstore.analytics.messages import MessageList, Place, holds_messages
from logstore.analytics.spoken import MessageReader
from logstore.errors import FormatError
from logstore.modes import COUNTERS
from logstore.reader import ThreadRead
from logstore.records import Record
from logstore.walk import snapshot_stands, walk

DEFAULT_CHANNEL = "messages"
_UNDATED = ""
Writes = Sequence[tuple[str, Record]]
"""Writes to a channel, oldest first, each with the checkpoint that first shows it."""


class Entry(NamedTuple):
    """A message in a channel, and from when to when it stood there."""

    place: Place
    """Where it is read from."""
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
    """Finds the messages of one thread: which ones stand where, not what they say."""

    def __init__(self, read: ThreadRead, reader: MessageReader) -> None:
        """Look at what was read of a thread, and at its values through a reader."""
        self._view = read.view
        self._late = read.late
        self._reader = reader

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
        # The first write mostly tells, and is small.
        if any(self._may_hold(write, name) for _, write in writes):
            return True
        value = self._value(branch.leaf, name)
        return value is not None and self._may_hold(value, name)

    def _may_hold(self, record: Record, name: str) -> bool:
        type_, data = self._reader.load(record)
        if "+" in type_:
            return name == DEFAULT_CHANNEL
        if b"content" not in data:
            return False
        try:
            return holds_messages(self._reader.decode(record))
        except FormatError:
            return False

    # -- as of a checkpoint ------------------------------------------------------------

    def _last(self, branch: Branch, name: str, writes: Writes) -> Iterator[Entry]:
        tracked = MessageList()
        for at, write in writes:
            tracked.apply(self._reader.said(write), at)
        leaf = branch.leaf
        value = self._value(leaf, name)
        if value is not None:
            tracked.replace(self._reader.said(value), _UNDATED)
        elif not self._is_delta(branch, name):
            return
        elif self._ends_early(branch, name):
            walked = walk(self._view, leaf, [name], self._late)[name]
            if walked.seed is not None:
                rebuilt = MessageList()
                rebuilt.replace(self._reader.said(walked.seed), _UNDATED)
                for write in walked.writes:
                    rebuilt.apply(self._reader.said(write), _UNDATED)
                tracked.adopt(rebuilt, _UNDATED)
        firsts = self._dated(branch, name, tracked)
        for position, (key, held) in enumerate(tracked.held.items()):
            yield Entry(held.place, position, firsts[key], leaf)

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
                there.replace(self._reader.said(stored), checkpoint.checkpoint_id)
                undated &= there.held.keys()
                firsts.update(dict.fromkeys(undated, shown))
        return firsts

    # -- of every step -----------------------------------------------------------------

    def _all(self, branch: Branch, name: str) -> Iterator[Entry]:
        state = MessageList()
        standing: dict[Any, Entry] = {}
        touched: set[Any] = set()
        last = branch.leaf
        for number, checkpoint in enumerate(branch.path):
            touched.update(self._step(branch, name, number, state))
            if branch.shows(number):
                yield from self._passed(standing, state, touched, checkpoint, last)
                touched.clear()
                last = checkpoint
        for entry in standing.values():
            yield entry._replace(last=last)

    def _passed(
        self,
        standing: dict[Any, Entry],
        state: MessageList,
        touched: Collection[Any],
        checkpoint: Record,
        last: Record,
    ) -> Iterator[Entry]:
        """Bring what stands to a checkpoint; gives what has stood until the last one."""
        positions = state.positions(touched)
        for key in touched:
            before, now = standing.get(key), state.held.get(key)
            if before is not None and now is not None and self._same(before.place, now.place):
                standing[key] = before._replace(place=now.place)
                continue
            if before is not None:
                yield standing.pop(key)._replace(last=last)
            if now is not None:
                standing[key] = Entry(now.place, positions[key], checkpoint, checkpoint)

    def _same(self, one: Place, other: Place) -> bool:
        return one == other or self._reader.message(one) == self._reader.message(other)

    def _step(self, branch: Branch, name: str, number: int, state: MessageList) -> Collection[Any]:
        """Bring a list from one checkpoint of the path to the next; the keys it may concern."""
        checkpoint = branch.path[number]
        value = self._value(checkpoint, name)
        if value is not None:
            before = state.held.keys()
            state.replace(self._reader.said(value), checkpoint.checkpoint_id)
            return before | state.held.keys()
        if name not in self._view.versions(checkpoint) or not self._is_delta(branch, name):
            return state.clear().keys()
        touched: set[Any] = set()
        for write in self._view.writes_before(checkpoint) if number else ():
            if write.channel == name:
                said = self._reader.said(write)
                touched.update(state.apply(said, checkpoint.checkpoint_id))
        return touched

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


def _counted(checkpoint: Record) -> Any:
    metadata = checkpoint.metadata or ""
    return (json.loads(metadata).get(COUNTERS) or {}) if COUNTERS in metadata else {}
