"""What is in a store, from the index columns of all its segments and runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from logstore.manifest import PartitionManifest
from logstore.reader import until_stable
from logstore.records import Kind
from logstore.segment import with_arrival
from logstore.store import LogStore
from logstore.tail import Keep, Listing, StartAgain, Tail

_CHECKPOINTS = ["thread_id", "checkpoint_ns", "checkpoint_id", "kind"]
_RUNS = ["thread_id", "kind", "run_id"]


@dataclass(frozen=True)
class PartitionRead:
    """All records of a partition: the runs of one version of its manifest, and its tail."""

    manifest: PartitionManifest
    exists: bool
    """Whether the partition was ever compacted."""
    listing: Listing
    tail: Tail


def read_partition(store: LogStore, partition: int, keep: Keep | None = None) -> PartitionRead:
    """LIST the log, GET the manifest after it, fetch what that has not merged.

    Args:
        store: the store.
        partition: the partition's number.
        keep: as in `LogReader.read`.

    Raises:
        StartAgain: compaction moved things meanwhile.
        CorruptObjectError: a segment or the manifest cannot be read.
    """
    listing = store.log.list(partition)
    manifest, etag = store.reader.partition_manifest(partition)
    tail = store.log.read(listing, manifest.merged.keys(), None, keep=keep)
    if tail.gone and store.reader.partition_manifest(partition)[1] != etag:
        raise StartAgain
    return PartitionRead(manifest, etag is not None, listing, tail)


class StoreIndex:
    """Looks through whole partitions, reading no values."""

    def __init__(self, store: LogStore) -> None:
        """Look through `store`."""
        self._store = store

    def checkpoints(self) -> Iterator[tuple[str, str, str]]:
        """All checkpoints' thread ids, namespaces and ids, deleted ones and repetitions included.

        Those too that this process has acknowledged and not stored yet.
        """
        for partition in range(self._partitions()):
            found = set(self._store.acknowledged_checkpoints(partition))
            for table in self.tables(partition, _CHECKPOINTS)[1]:
                kept = table.filter(pc.equal(table["kind"], Kind.CHECKPOINT.value))
                columns = (kept[name].to_pylist() for name in _CHECKPOINTS[:3])
                found.update(zip(*columns, strict=True))
            yield from found

    def threads_of_runs(self, run_ids: Collection[str]) -> set[str]:
        """The threads in which one of the runs has stored something."""
        wanted = pa.array(sorted(run_ids), pa.string())
        found: set[str] = set()
        for partition in range(self._partitions()):
            for table in self.tables(partition, _RUNS)[1]:
                kept = table.filter(pc.is_in(table["run_id"], wanted))
                found.update(pc.unique(kept["thread_id"]).to_pylist())
        return found

    def tables(self, partition: int, columns: Sequence[str]) -> tuple[Listing, list[pa.Table]]:
        """Some columns of all records of a partition, and the LIST they were found by.

        A record may be in two of the tables; what was deleted may be in them yet.

        Raises:
            MissingDataError: an object stays missing that a manifest names.
        """
        return until_stable(partial(self._tables, partition, columns))

    def _partitions(self) -> int:
        settings = self._store.settings()
        return settings.partitions if settings else 0

    def _tables(self, partition: int, columns: Sequence[str]) -> tuple[Listing, list[pa.Table]]:
        read = read_partition(self._store, partition)
        tables = [
            with_arrival(segment.table, read.tail.arrived[key]).select(columns)
            for key, segment in read.tail.segments.items()
        ]
        for run in read.manifest.runs:
            tables.extend(self._store.runs.columns(run, columns))
        return read.listing, tables
