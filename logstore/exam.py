"""Looking at one delta channel in one namespace of a thread: how its values are stored.

The cadence K is compiled into graphs and stored nowhere. The data shows it: at a snapshot in
line, the parent's counter plus one is the writer's K, and a counter that reached n without a
snapshot says that its writer's K is greater than n. LangGraph also takes snapshots out of turn
(the first of a thread, at forks and updates, after an `Overwrite`, after many supersteps);
they tell nothing about K.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgpack

from logstore.modes import COUNTERS, MESSAGES, MODE_KEY
from logstore.reader import ThreadRead
from logstore.records import Record
from logstore.store import LogStore
from logstore.structural import CLASS, decode

_OVERWRITE = "langgraph.types.Overwrite"
_SNAPSHOT_EXTENSION = 7
"""LangGraph's MessagePack extension for a `_DeltaSnapshot`."""
_REPEATED = 2
"""A distance between snapshots that was met only once is no cadence."""

Complain = Callable[[str, Record], None]
"""Takes a problem, and the checkpoint at which it was found."""


@dataclass(slots=True)
class ChannelExam:
    """A delta channel in one namespace, over all threads."""

    namespace: str
    """Without task ids."""
    channel: str
    threads: int = 0
    checkpoints: int = 0
    whole: int = 0
    """Checkpoints that brought the whole value, as full mode does."""
    inline: int = 0
    """Checkpoints that brought a snapshot of the graph's own."""
    compacted: int = 0
    """Checkpoints at which the compactor made one."""
    bare: int = 0
    """Checkpoints with nothing: their value is replayed."""
    cadence: dict[int, int] = field(default_factory=dict)
    """Updates from one snapshot in line to the next, and how often."""
    out_of_turn: int = 0
    """Snapshots in line that no cadence made."""
    unbroken: int = 0
    """The most updates that a writer counted without making a snapshot."""
    compactor_cadence: dict[int, int] = field(default_factory=dict)
    """Updates from any snapshot to the compactor's next, and how often."""
    replay: int = 0
    """The most updates that a read of one of the checkpoints replays."""
    configured: int | None = None
    """K in the application's configuration."""

    @property
    def seen(self) -> dict[int, int]:
        """The cadences of writers: distances that were met more than once."""
        return {k: n for k, n in sorted(self.cadence.items()) if n >= _REPEATED}


class Namespace:
    """The checkpoints of one namespace of a thread."""

    def __init__(self, store: LogStore, read: ThreadRead, ns: str) -> None:
        """Look at a namespace in a complete read of a thread of `store`."""
        self.view, self.ns = read.view, ns
        self._load = store.reader.decoder(read).load
        found = (read.view.checkpoint(ns, id_) for id_ in read.view.checkpoint_ids(ns))
        self.records = [record for record in found if record is not None]

    def delta_channels(self) -> set[str]:
        """The channels that are counted as deltas, and those whose value is a snapshot."""
        found = {channel for record in self.records for channel in _counters(record)}
        newest: dict[str, Record] = {}
        for record in self.records:
            for channel in self.versions(record):
                if channel not in found and not _internal(channel):
                    stored = self.view.stored_value(record, channel)
                    if stored is not None:
                        newest[channel] = stored
        shapes = self.are_snapshots(list(newest.values()), encrypted=False)
        snapshots = zip(newest, shapes, strict=True)
        return found | {channel for channel, is_snapshot in snapshots if is_snapshot}

    def versions(self, record: Record) -> Mapping[str, str]:
        """The checkpoint's channel versions, encoded."""
        return self.view.versions(record)

    def parent(self, record: Record) -> Record | None:
        """The checkpoint's parent, if it is shown."""
        if record.parent_checkpoint_id is None:
            return None
        return self.view.checkpoint(self.ns, record.parent_checkpoint_id)

    def updated(self, record: Record, channel: str) -> bool:
        """Whether the channel's version is not the parent's."""
        parent = self.parent(record)
        before = self.versions(parent).get(channel) if parent else None
        return self.versions(record).get(channel) != before

    def brings_value(self, record: Record, channel: str) -> bool:
        """Whether the checkpoint came with a value of its own."""
        return self.updated(record, channel) and self.view.stored_value(record, channel) is not None

    def are_snapshots(self, values: Sequence[Record], *, encrypted: bool) -> list[bool]:
        """Whether each value is a `_DeltaSnapshot`; `encrypted` says what those count as."""
        return [
            encrypted if "+" in type_ else _is_snapshot(type_, data)
            for type_, data in self._load(values)
        ]

    def overwritten(self, checkpoint: Record, channel: str) -> bool:
        """Whether a write at the checkpoint, or its child's own input, replaced the value."""
        writes = self.view.writes(self.ns, checkpoint.checkpoint_id)
        mine = [write for write in writes if write.channel == channel]
        return any(_is_overwrite(decode(*typed)) for typed in self._load(mine))

    @cached_property
    def children(self) -> Counter[str | None]:
        """How many children each checkpoint has, copies not counted."""
        return Counter(r.parent_checkpoint_id for r in self.records if r.source != "fork")


class ChannelLook:
    """Goes through one delta channel of one namespace of a thread."""

    def __init__(
        self,
        history: Namespace,
        channel: str,
        exam: ChannelExam,
        complain: Complain,
        max_supersteps: int,
    ) -> None:
        """Look at a channel.

        Args:
            history: the namespace.
            channel: the channel's name.
            exam: what is known of the channel so far; it is added to.
            complain: is told of problems.
            max_supersteps: after so many LangGraph takes a snapshot out of turn.
        """
        self._history = history
        self._channel = channel
        self._exam = exam
        self._complain = complain
        self._max_supersteps = max_supersteps
        self._to_replay: dict[str, int] = defaultdict(int)

    def run(self) -> None:
        """Look at each checkpoint that has the channel."""
        history, exam = self._history, self._exam
        exam.threads += 1
        versioned = [r for r in history.records if self._channel in history.versions(r)]
        exam.checkpoints += len(versioned)
        brought = [r for r in versioned if history.brings_value(r, self._channel)]
        stored = [history.view.stored_value(r, self._channel) for r in brought]
        values = [value for value in stored if value is not None]
        # A delta channel's own values are snapshots, unless the thread came from full mode.
        shapes = history.are_snapshots(values, encrypted=True)
        inline = {r.checkpoint_id: s for r, s in zip(brought, shapes, strict=True)}
        for record in versioned:
            self._look(record, inline.get(record.checkpoint_id))

    def _look(self, record: Record, inline: bool | None) -> None:
        """Look at a checkpoint; `inline`: its own value is a snapshot, is none, is not there."""
        exam, view = self._exam, self._history.view
        made = view.snapshot(record.checkpoint_ns, record.checkpoint_id, self._channel)
        stored = view.stored_value(record, self._channel)
        self._count_replay(record, stored is not None or made is not None)
        if inline:
            exam.inline += 1
            self._inline_distance(record)
        elif inline is not None:
            exam.whole += 1
            if is_marked(record) and self._channel == MESSAGES:
                self._complain("a delta checkpoint brings the whole list of messages", record)
        elif made is not None:
            exam.compacted += 1
            self._compactor_distance(record)
        elif stored is None:
            exam.bare += 1
        # A value that came later was put by a conversion, or late.
        if stored is not None and made is not None and stored.arrived < made.arrived:
            self._complain("the compactor made a snapshot where the graph stored a value", record)
        self._check_counters(record, inline)

    def _check_counters(self, record: Record, inline: bool | None) -> None:
        now, before = self._counted(record), self._counted(self._history.parent(record))
        self._exam.unbroken = max(self._exam.unbroken, now[0])
        if inline is None and (now[0] < before[0] or now[1] < before[1]):
            self._complain(
                f"the counters of {self._channel} went back without a snapshot: a graph that "
                "does not have it as a delta channel wrote here",
                record,
            )

    def _count_replay(self, record: Record, at_hand: bool) -> None:
        before = self._to_replay[record.parent_checkpoint_id or ""]
        updated = self._history.updated(record, self._channel)
        found = 0 if at_hand else before + updated
        self._to_replay[record.checkpoint_id] = found
        self._exam.replay = max(self._exam.replay, found)

    def _inline_distance(self, record: Record) -> None:
        exam, parent = self._exam, self._history.parent(record)
        if parent is None or self._out_of_turn(record, parent):
            exam.out_of_turn += 1
            return
        distance = self._counted(parent)[0] + 1
        exam.cadence[distance] = exam.cadence.get(distance, 0) + 1

    def _out_of_turn(self, record: Record, parent: Record) -> bool:
        history = self._history
        supersteps = self._counted(parent)[1] + 1
        return (
            record.source in ("fork", "update")
            or _steps(parent, record) != 1
            or supersteps >= self._max_supersteps
            or history.children[parent.checkpoint_id] > 1
            or history.overwritten(parent, self._channel)
        )

    def _compactor_distance(self, record: Record) -> None:
        parent = self._history.parent(record)
        if parent is None or _steps(parent, record) != 1:
            return
        (_, before), (_, now) = self._counted(parent), self._counted(record)
        if now // self._max_supersteps > before // self._max_supersteps:
            return
        distance = self._to_replay[parent.checkpoint_id] + 1
        cadence = self._exam.compactor_cadence
        cadence[distance] = cadence.get(distance, 0) + 1

    def _counted(self, record: Record | None) -> tuple[int, int]:
        updates, supersteps = _counters(record).get(self._channel, (0, 0))
        return int(updates), int(supersteps)


# -- what records say ----------------------------------------------------------------


def _metadata(record: Record | None) -> Mapping[str, Any]:
    if record is None or not record.metadata:
        return {}
    found: Mapping[str, Any] = json.loads(record.metadata)
    return found


def _counters(record: Record | None) -> Mapping[str, Any]:
    return _metadata(record).get(COUNTERS) or {}


def is_marked(record: Record) -> bool:
    """Whether a checkpoint bears the mark of delta mode."""
    return _metadata(record).get(MODE_KEY) == "delta"


def is_delta(record: Record) -> bool:
    """Whether a checkpoint is marked, or counts its messages as a delta channel's."""
    return is_marked(record) or MESSAGES in _counters(record)


def _steps(parent: Record, record: Record) -> int | None:
    """Supersteps between two checkpoints: with `durability="exit"` more than one."""
    return None if parent.step is None or record.step is None else record.step - parent.step


def _internal(channel: str) -> bool:
    return channel.startswith(("__", "branch:"))


def _is_snapshot(type_: str, data: bytes) -> bool:
    if type_ != "msgpack":
        return False
    value = msgpack.unpackb(data, ext_hook=msgpack.ExtType, strict_map_key=False)
    return isinstance(value, msgpack.ExtType) and value.code == _SNAPSHOT_EXTENSION


def _is_overwrite(value: Any) -> bool:
    return isinstance(value, dict) and (
        value.get(CLASS) == _OVERWRITE or value.keys() == {"__overwrite__"}
    )
