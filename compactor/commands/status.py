"""What compaction has done to a store, and what waits for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from logstore.errors import ObjectNotFoundError
from logstore.keys import partition_manifest_key
from logstore.manifest import PartitionManifest, RunEntry
from logstore.store import LogStore


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The state of one partition."""

    partition: int
    generation: int
    last_commit: str | None
    """When the last job committed, by the store's clock (ISO 8601); None for never."""
    tail_segments: int
    oldest_tail: str | None
    """When the oldest segment of the tail arrived."""
    levels: dict[int, int]
    """Runs by level."""
    rows: int
    run_bytes: int
    rewrites: float
    """How many times compaction has written each byte that the runs hold now. Size tiers bound it
    by one and the logarithm of the jobs, base the fan-out; deletes and re-basing add to it."""
    waiting: int
    """Objects that are merged or replaced, and wait for their grace to pass."""
    unfolded: dict[str, str]
    """Channels that the last job made no snapshots of, and why."""
    hidden: dict[str, str]
    """The threads whose hidden rows wait to be dropped, and why they were kept, if a job has
    looked."""
    changed: dict[str, str]
    """Channels in which it met snapshots of another reducer, and which."""
    kept: tuple[str, ...]
    """The tables that are kept for analytics."""
    kept_bytes: int
    """Of their files."""
    stale: int
    """How many threads at most wait for a job that makes their rows."""
    totals: dict[str, int]
    """Sums over all jobs."""


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """The state of all partitions."""

    uri: str
    partitions: tuple[PartitionStatus, ...]

    def to_dict(self) -> dict[str, Any]:
        """The status as plain data."""
        return asdict(self)


def read_status(store: LogStore) -> StoreStatus:
    """Read the partition manifests and list the logs.

    Raises:
        ObjectNotFoundError: there is no store.
    """
    settings = store.settings()
    if settings is None:
        raise ObjectNotFoundError(
            f"there is no store at {store.uri}; check the URI, or create one with `logstore init`"
        )
    found = tuple(_partition(store, number) for number in range(settings.partitions))
    return StoreStatus(store.uri, found)


def _partition(store: LogStore, partition: int) -> PartitionStatus:
    key = partition_manifest_key(partition)
    manifest, modified = PartitionManifest(partition), None
    try:
        data = store.objects.get(key)
        manifest, modified = PartitionManifest.decode(key, data.data), data.modified
    except ObjectNotFoundError:
        pass
    listing = store.log.list(partition)
    tail = [arrived for key, arrived in listing.arrived.items() if key not in manifest.merged]
    return PartitionStatus(
        partition=partition,
        generation=manifest.generation,
        last_commit=None if modified is None else _iso(modified),
        tail_segments=len(tail),
        oldest_tail=_iso(min(tail) / 1e6) if tail else None,
        levels=dict(sorted(Counter(run.level for run in manifest.runs).items())),
        rows=sum(run.rows for run in manifest.runs),
        run_bytes=sum(run.size for run in manifest.runs),
        waiting=len(manifest.merged) + len(manifest.retired) + len(manifest.condemned),
        unfolded=dict(manifest.unfolded),
        hidden={thread_id: rows.reason for thread_id, rows in manifest.hidden.items()},
        changed=dict(manifest.changed),
        rewrites=_ratio(manifest.totals.get("run_bytes_written", 0), manifest.runs),
        kept=manifest.kept.tables,
        kept_bytes=sum(file.size for file in manifest.kept.files.values()),
        stale=manifest.kept.stale,
        totals=dict(manifest.totals),
    )


def _ratio(written: int, runs: Sequence[RunEntry]) -> float:
    held = sum(run.size for run in runs)
    return round(written / held, 2) if held else 0.0


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
