"""Checking the shape of delta channels in a store, and the cadence that their data shows.

Two processes may disagree on the cadence K without an error; `logstore.exam` tells how what
they wrote shows it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from logstore.exam import ChannelExam, ChannelLook, Namespace, is_delta, is_marked
from logstore.modes import MESSAGES
from logstore.reader import ThreadRead
from logstore.records import Record
from logstore.store import LogStore

_EXAMPLES = 3


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
        if head is not None and is_delta(head):
            found.delta_threads += 1
            found.unmarked_threads += not is_marked(head)
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
        history = Namespace(self._store, read, ns)
        for channel in sorted(history.delta_channels()):
            path = "|".join(part.split(":")[0] for part in ns.split("|") if not part.isdigit())
            exam = self._exams.get((path, channel))
            if exam is None:
                k = self._k if (path, channel) == ("", MESSAGES) else None
                exam = self._exams[(path, channel)] = ChannelExam(path, channel, configured=k)
            ChannelLook(history, channel, exam, self._problem, self._max_supersteps).run()
        for record in history.records:
            self._check_mode(history, record)

    def _check_mode(self, history: Namespace, record: Record) -> None:
        parent = history.parent(record)
        if parent is None or not is_delta(parent) or is_delta(record):
            return
        if history.brings_value(record, MESSAGES) or MESSAGES not in history.versions(record):
            return  # converted, or no messages to lose
        self._problem(
            "a checkpoint of full mode stands on one of delta mode and does not hold the "
            "messages: a full-mode process wrote without the guard of `logstore.guard`",
            record,
        )

    def _problem(self, text: str, record: Record) -> None:
        self.note(text, problem=True, where=_where(record))


def _where(record: Record) -> str:
    ns = f", namespace {record.checkpoint_ns!r}" if record.checkpoint_ns else ""
    return f"thread {record.thread_id!r}{ns}, checkpoint {record.checkpoint_id}"
