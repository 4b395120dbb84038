"""Checking the shape of delta channels in a store, and the cadence that their data shows.

The cadence K is compiled into graphs and stored nowhere, so two processes may disagree on it
without an error. What they wrote shows it: at a snapshot in line, the parent's counter plus
one is the writer's K, and a counter that reached n without a snapshot says that its writer's K
is greater than n. LangGraph also takes snapshots out of turn (the first of a thread, at forks
and updates, after an `Overwrite`, after many supersteps); they tell nothing about K.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
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
_EXAMPLES = 3
_REPEATED = 2
"""A distance between snapshots that was met only once is no cadence."""


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


@dataclass(slots=True)
class Finding:
    """Something that is not as it should be, or worth knowing."""

    text: str
    problem: bool
    times: int = 0
    examples: list[str] = field(default_factory=list)
    """A few of the places: thread, namespace and checkpoint."""


@dataclass(slots=True)
class Examination:
    """What the doctor found."""

    uri: str
    threads: int = 0
    delta_threads: int = 0
    """Threads whose head of the root graph is one of delta mode."""
    unmarked_threads: int = 0
    """Of these, those that bear no mark."""
    configured_mode: str | None = None
    channels: list[ChannelExam] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def problems(self) -> list[Finding]:
        """The findings that need doing something about."""
        return [finding for finding in self.findings if finding.problem]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)


def examine(
    store: LogStore,
    reads: Iterable[ThreadRead],
    *,
    mode: str | None = None,
    snapshot_frequency: int | None = None,
) -> Examination:
    """Look at threads' delta channels.

    Args:
        store: where the threads are from.
        reads: complete reads of threads.
        mode: the configured channel mode, if it is known.
        snapshot_frequency: the configured K for the root graph's messages, if it is known.

    Raises:
        LogStoreError: an object cannot be read.
    """
    doctor = _Doctor(store, snapshot_frequency)
    found = Examination(store.uri, configured_mode=mode)
    for read in reads:
        found.threads += 1
        head = read.view.head("")
        if head is not None and _is_delta(head):
            found.delta_threads += 1
            found.unmarked_threads += not _marked(head)
        for ns in read.view.namespaces():
            doctor.look_at(read, ns)
    found.channels = doctor.channels()
    for exam in found.channels:
        _judge(exam, doctor)
    if mode == "full" and found.delta_threads:
        doctor.note(
            f"{found.delta_threads} threads are in delta mode, and full is configured: they "
            "are refused until `logstore convert` has materialised them",
            problem=True,
        )
    found.findings = sorted(doctor.findings.values(), key=lambda f: not f.problem)
    return found


def _judge(exam: ChannelExam, doctor: _Doctor) -> None:
    """Compare what was seen with what is configured, and with itself."""
    name = f"{exam.namespace or 'root'}: {exam.channel}"
    seen, k = exam.seen, exam.configured
    told = ", ".join(f"{distance} ({times} times)" for distance, times in seen.items())
    above = bool(seen) and exam.unbroken >= max(seen)
    if len(seen) > 1 or above:
        more = f", and {exam.unbroken} updates went by without one" if above else ""
        doctor.note(
            f"{name}: processes with different cadences write this channel: a snapshot in line "
            f"every {told} updates{more}. The cadence must be the same for all of them",
            problem=True,
        )
    if k is not None and any(distance != k for distance in seen):
        doctor.note(f"{name}: the configured cadence is {k}, the data shows {told}", problem=True)
    if k is not None and not seen and exam.unbroken >= k:
        doctor.note(
            f"{name}: the configured cadence is {k}, and {exam.unbroken} updates went by without "
            "a snapshot in line: its writers have a greater one, as they should if the compactor "
            "makes the snapshots",
            problem=False,
        )
    if k is not None and exam.replay > k:
        doctor.note(
            f"{name}: reads replay up to {exam.replay} updates, more than the configured {k}: "
            "run the compactor with the reducer of the channel",
            problem=False,
        )


class _Doctor:
    """Looks at one namespace of one thread after the other."""

    def __init__(self, store: LogStore, snapshot_frequency: int | None) -> None:
        self.findings: dict[str, Finding] = {}
        self._store = store
        self._k = snapshot_frequency
        self._exams: dict[tuple[str, str], ChannelExam] = {}
        self._max_supersteps = int(
            os.environ.get("LANGGRAPH_DELTA_MAX_SUPERSTEPS_SINCE_SNAPSHOT", "5000")
        )

    def channels(self) -> list[ChannelExam]:
        return [exam for _, exam in sorted(self._exams.items())]

    def note(self, text: str, *, problem: bool, where: str | None = None) -> None:
        finding = self.findings.setdefault(text, Finding(text, problem))
        finding.times += 1
        if where is not None and len(finding.examples) < _EXAMPLES:
            finding.examples.append(where)

    def look_at(self, read: ThreadRead, ns: str) -> None:
        history = _Namespace(self._store, read, ns)
        for channel in sorted(history.delta_channels()):
            path = "|".join(part.split(":")[0] for part in ns.split("|") if not part.isdigit())
            exam = self._exams.get((path, channel))
            if exam is None:
                k = self._k if (path, channel) == ("", MESSAGES) else None
                exam = self._exams[(path, channel)] = ChannelExam(path, channel, configured=k)
            _ChannelLook(history, channel, exam, self, self._max_supersteps).run()
        for record in history.records:
            self._check_mode(history, record)

    def _check_mode(self, history: _Namespace, record: Record) -> None:
        parent = history.parent(record)
        if parent is None or not _is_delta(parent) or _is_delta(record):
            return
        if history.brings_value(record, MESSAGES) or MESSAGES not in history.versions(record):
            return  # converted, or no messages to lose
        self.note(
            "a checkpoint of full mode stands on one of delta mode and does not hold the "
            "messages: a full-mode process wrote without the guard of `logstore.modes`",
            problem=True,
            where=_where(record),
        )


class _Namespace:
    """The checkpoints of one namespace of a thread."""

    def __init__(self, store: LogStore, read: ThreadRead, ns: str) -> None:
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
        return self.view.versions(record)

    def parent(self, record: Record) -> Record | None:
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


class _ChannelLook:
    """Goes through one delta channel of one namespace of a thread."""

    def __init__(
        self,
        history: _Namespace,
        channel: str,
        exam: ChannelExam,
        doctor: _Doctor,
        max_supersteps: int,
    ) -> None:
        self._history = history
        self._channel = channel
        self._exam = exam
        self._doctor = doctor
        self._max_supersteps = max_supersteps
        self._to_replay: dict[str, int] = defaultdict(int)

    def run(self) -> None:
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
            if _marked(record) and self._channel == MESSAGES:
                self._problem("a delta checkpoint brings the whole list of messages", record)
        elif made is not None:
            exam.compacted += 1
            self._compactor_distance(record)
        elif stored is None:
            exam.bare += 1
        # A value that came later was put by a conversion, or late.
        if stored is not None and made is not None and stored.arrived < made.arrived:
            self._problem("the compactor made a snapshot where the graph stored a value", record)
        self._check_counters(record, inline)

    def _check_counters(self, record: Record, inline: bool | None) -> None:
        now, before = self._counted(record), self._counted(self._history.parent(record))
        self._exam.unbroken = max(self._exam.unbroken, now[0])
        if inline is None and (now[0] < before[0] or now[1] < before[1]):
            self._problem(
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

    def _problem(self, text: str, record: Record) -> None:
        self._doctor.note(text, problem=True, where=_where(record))


# -- what records say ----------------------------------------------------------------


def _metadata(record: Record | None) -> Mapping[str, Any]:
    if record is None or not record.metadata:
        return {}
    found: Mapping[str, Any] = json.loads(record.metadata)
    return found


def _counters(record: Record | None) -> Mapping[str, Any]:
    return _metadata(record).get(COUNTERS) or {}


def _marked(record: Record) -> bool:
    return _metadata(record).get(MODE_KEY) == "delta"


def _is_delta(record: Record) -> bool:
    return _marked(record) or MESSAGES in _counters(record)


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


def _where(record: Record) -> str:
    ns = f", namespace {record.checkpoint_ns!r}" if record.checkpoint_ns else ""
    return f"thread {record.thread_id!r}{ns}, checkpoint {record.checkpoint_id}"
