"""What a compaction job did, for people and programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """How a partition's job ended."""

    COMMITTED = "committed"
    """Its result is in the partition manifest."""
    IDLE = "idle"
    """There was nothing to do, and nothing was written."""
    LOST = "lost"
    """Another job committed first; the next job does what is left."""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """What the job did in one partition."""

    partition: int
    outcome: Outcome = Outcome.IDLE
    segments_merged: int = 0
    runs_merged: int = 0
    runs_written: int = 0
    rows_written: int = 0
    bytes_read: int = 0
    run_bytes_written: int = 0
    bytes_written: int = 0
    """Of runs, snapshot objects, kept tables and manifests."""
    snapshots: int = 0
    """Snapshots made."""
    voided: int = 0
    """Snapshots below which a late write was found; those that could be were made anew."""
    segments_left: int = 0
    """Segments that were left to the next job when the time was up."""
    retired: int = 0
    """Snapshots that the retention policy does not keep any more."""
    manifests: int = 0
    """Snapshot manifests updated."""
    segments_deleted: int = 0
    runs_deleted: int = 0
    hiding: int = 0
    """Threads whose hidden rows wait to be dropped."""
    threads_kept: int = 0
    """Threads whose rows in the kept tables were made."""
    rows_dropped: int = 0
    """Rows of hidden checkpoints that nothing needs any more."""
    objects_deleted: int = 0
    """Snapshot objects, files of kept tables and orphans deleted."""
    waiting: int = 0
    """Objects that were merged, replaced or left over, and wait for their grace."""
    unfolded: dict[str, str] = field(default_factory=dict)
    """Channels without snapshots, and why."""
    changed: dict[str, str] = field(default_factory=dict)
    """Channels with snapshots that another reducer made than today's, which are not built on."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Segments that could not be read and stay where they are, and why."""

    def then(self, later: PartitionReport) -> PartitionReport:
        """What both jobs did, one after the other."""
        changes: dict[str, Any] = {
            name: getattr(self, name) + getattr(later, name)
            for name in self.__slots__
            if isinstance(getattr(self, name), int) and name not in _LATEST
        }
        for name in _NOTES:
            changes[name] = {**getattr(self, name), **getattr(later, name)}
        return replace(later, **changes)


_LATEST = frozenset(("partition", "segments_left", "hiding", "waiting"))
"""Numbers that tell of the end, and are not added up."""
_NOTES = ("unfolded", "changed", "unreadable")


@dataclass(frozen=True, slots=True)
class Report:
    """What the job did in all partitions."""

    uri: str
    partitions: tuple[PartitionReport, ...]
    seconds: float
    unfinished: tuple[int, ...] = ()
    """Partitions that were left to the next job when the time was up."""

    def total(self, name: str) -> int:
        """The sum of a counter over the partitions."""
        return sum(getattr(part, name) for part in self.partitions)

    @property
    def unfolded(self) -> dict[str, str]:
        """Channels without snapshots, and why."""
        return _joined(part.unfolded for part in self.partitions)

    @property
    def changed(self) -> dict[str, str]:
        """Channels with snapshots that another reducer made, and which."""
        return _joined(part.changed for part in self.partitions)

    @property
    def unreadable(self) -> dict[str, str]:
        """Segments that could not be read, and why."""
        return _joined(part.unreadable for part in self.partitions)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)


def _joined(parts: Iterable[dict[str, str]]) -> dict[str, str]:
    return {key: value for part in parts for key, value in part.items()}
