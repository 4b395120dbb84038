"""How much a store holds: objects and bytes by kind, tails by partition, threads."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from logstore.cli.catalog import Catalog
from logstore.errors import LogStoreError
from logstore.keys import COPIES, LOG, MANIFESTS, RUNS, SNAPSHOTS, TABLES, VALUES
from logstore.objects.base import ObjectStore
from logstore.store import LogStore, Settings

KINDS = (LOG, RUNS, VALUES, MANIFESTS, COPIES, SNAPSHOTS, TABLES)


@dataclass(slots=True)
class KindSize:
    """The objects of one kind."""

    objects: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """One partition."""

    partition: int
    generation: int
    """How often a compaction was committed here."""
    runs: int
    run_rows: int
    run_bytes: int
    tail_segments: int
    """Segments that no compaction has merged."""
    oldest_tail_s: float | None
    """The age of the oldest of them, seconds."""
    waiting: int
    """Objects that were merged or replaced and wait for their deletion."""
    unfolded: dict[str, str]
    """Channels that got no snapshots from the last compaction, and why."""


@dataclass(slots=True)
class StoreStats:
    """A whole store."""

    uri: str
    settings: Settings
    kinds: dict[str, KindSize] = field(default_factory=dict)
    partitions: list[PartitionStats] = field(default_factory=list)
    threads: int | None = None
    """None if they could not be counted."""
    problems: list[str] = field(default_factory=list)
    """What could not be read, and why."""

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)


def measure(objects: ObjectStore) -> dict[str, KindSize]:
    """The objects and bytes of a store by kind, as the listings tell."""
    found = {kind: KindSize() for kind in KINDS}
    for kind, size in found.items():
        for page in objects.list(f"{kind}/"):
            size.objects += len(page.objects)
            size.bytes += sum(info.size for info in page.objects)
    return found


def read_stats(store: LogStore, settings: Settings) -> StoreStats:
    """Look at all of a store; what cannot be read is told among the problems."""
    stats = StoreStats(store.uri, settings, measure(store.objects))
    for number in range(settings.partitions):
        try:
            stats.partitions.append(_partition(store, number))
        except LogStoreError as error:
            stats.problems.append(str(error))
    try:
        stats.threads = Catalog(store).count()
    except LogStoreError as error:
        stats.problems.append(f"threads cannot be counted: {error}")
    return stats


def _partition(store: LogStore, number: int) -> PartitionStats:
    listing = store.log.list(number)
    manifest, _ = store.reader.partition_manifest(number)
    tail = [arrived for key, arrived in listing.arrived.items() if key not in manifest.merged]
    return PartitionStats(
        partition=number,
        generation=manifest.generation,
        runs=len(manifest.runs),
        run_rows=sum(run.rows for run in manifest.runs),
        run_bytes=sum(run.size for run in manifest.runs),
        tail_segments=len(tail),
        oldest_tail_s=max(listing.date - min(tail) / 1_000_000, 0.0) if tail else None,
        waiting=len(manifest.merged) + len(manifest.retired) + len(manifest.condemned),
        unfolded=dict(manifest.unfolded),
    )
