"""What `compactor verify` found: typed, and each with the way out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from logstore.records import Record

RESTORE = "restore the object from a version or copy of the bucket"
REBUILD = "run `compactor rebuild` on the store, with the --graph or --config of its jobs"


class Problem(StrEnum):
    """What is wrong."""

    UNREADABLE = "unreadable"
    """An object or value is damaged: it cannot be decoded, or fails its checksum."""
    MISSING_OBJECT = "missing object"
    """A manifest or segment names an object that does not exist."""
    MISSING_RECORD = "missing record"
    """What a value or a walk needs is in no object."""
    UNNAMED_OBJECT = "unnamed object"
    """Nothing names an object, and it is older than the grace of what is about to be named."""
    FOREIGN_OBJECT = "foreign object"
    """An object's key is none of a store."""
    STALE_MANIFEST = "stale manifest"
    """A manifest tells of less than what is stored, or of something else."""
    WRONG_SNAPSHOT = "wrong snapshot"
    """A snapshot is not the value of LangGraph's own walk."""
    WRONG_ROWS = "wrong rows"
    """A kept table has other rows of a thread than its values give."""
    BROKEN_LAW = "broken law"
    """A reducer gives different values for the same writes."""
    CHANGED_REDUCER = "changed reducer"
    """A snapshot was made by another reducer than today's."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    problem: Problem
    detail: str
    """What was found, and what was expected."""
    remedy: str
    key: str | None = None
    """The object that it is about."""
    thread_id: str | None = None
    namespace: str | None = None
    checkpoint_id: str | None = None
    channel: str | None = None


@dataclass(frozen=True)
class Checked:
    """What was looked at in a partition or a thread, and what was found."""

    objects: int = 0
    threads: int = 0
    checkpoints: int = 0
    values: int = 0
    """Values that were decoded and compared with their checksum."""
    snapshots: int = 0
    """The compactor's snapshots."""
    proved: int = 0
    """Those of them that equal LangGraph's own walk."""
    heads: int = 0
    """Heads whose read through the snapshot manifest equals that through the whole history."""
    findings: tuple[Finding, ...] = ()
    unproved: Mapping[str, str] = field(default_factory=dict)
    """What could not be proved, by channel, and why."""

    def __add__(self, other: Checked) -> Checked:
        """Both together."""
        return Checked(
            objects=self.objects + other.objects,
            threads=self.threads + other.threads,
            checkpoints=self.checkpoints + other.checkpoints,
            values=self.values + other.values,
            snapshots=self.snapshots + other.snapshots,
            proved=self.proved + other.proved,
            heads=self.heads + other.heads,
            findings=(*self.findings, *other.findings),
            unproved={**self.unproved, **other.unproved},
        )


@dataclass
class ThreadLedger:
    """What is found out about one thread."""

    thread_id: str
    values: int = 0
    proved: int = 0
    heads: int = 0
    unproved: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def fail(
        self,
        problem: Problem,
        detail: str,
        remedy: str,
        key: str | None = None,
        at: Record | None = None,
        channel: str | None = None,
    ) -> None:
        """Note what is wrong.

        Args:
            problem: its kind.
            detail: what was found, and what was expected.
            remedy: the way out.
            key: the object that it is about.
            at: a record, whose namespace, checkpoint and channel it is about.
            channel: the channel, if the record has none.
        """
        self.findings.append(
            Finding(
                problem,
                detail,
                remedy,
                key,
                self.thread_id,
                None if at is None else at.checkpoint_ns,
                None if at is None else at.checkpoint_id,
                channel if at is None else at.channel or channel,
            )
        )

    def doubt(self, at: Record, channel: str) -> None:
        """Note that nothing is proved of a channel, because nobody named its reducer."""
        label = f"{at.checkpoint_ns or 'root'}: {channel}"
        self.unproved[label] = "no --graph or --config names its reducer"


@dataclass(frozen=True)
class Verification:
    """What a verification of a store gave."""

    uri: str
    checked: Checked
    seconds: float

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong."""
        return self.checked.findings

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data."""
        checked = asdict(self.checked)
        return {"uri": self.uri, "seconds": self.seconds, **checked}
