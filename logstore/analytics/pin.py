"""Pinning a partition: one version of its manifest, and the tail that goes with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from logstore.analytics.kept import PartitionKept
from logstore.analytics.sources import SOURCE, RunSource, Source, TailSource, threads_of
from logstore.analytics.visibility import DeletionVectors, deletion_vectors
from logstore.errors import MissingDataError, ObjectNotFoundError, SnapshotExpiredError
from logstore.index import read_partition
from logstore.manifest import PartitionManifest, RunEntry
from logstore.reader import ThreadRead, late_writes, until_stable
from logstore.records import SCHEMA, Record
from logstore.segment import cast_table, with_arrival
from logstore.store import LogStore
from logstore.tail import Listing, StartAgain, Tail
from logstore.view import ThreadView


@contextmanager
def expiring(uri: str) -> Iterator[None]:
    """Turn "no such object" into the error of a snapshot that has outlived what it pins.

    Raises:
        SnapshotExpiredError: an object that was pinned is gone.
    """
    try:
        yield
    except (StartAgain, ObjectNotFoundError, FileNotFoundError) as error:
        raise expired(uri, str(error.__cause__ or error)) from error


def expired(uri: str, what: str) -> SnapshotExpiredError:
    """The error of a snapshot that has outlived what it pins."""
    return SnapshotExpiredError(
        f"the snapshot of {uri} has expired: {what}. Compaction replaced that object and its "
        "grace is over; nothing was counted without it. Take a fresh snapshot with refresh() "
        "and repeat the query; a store with a longer grace for runs keeps snapshots longer"
    )


@dataclass(frozen=True)
class PinnedPartition:
    """A partition as one version of its manifest and one LIST before it show it."""

    store: LogStore
    manifest: PartitionManifest
    listing: Listing
    tail: pa.Table
    """The records of the tail, sorted by thread."""
    spool: Path
    """A directory for what the log or memory may not keep."""

    @property
    def number(self) -> int:
        """The partition's number."""
        return self.manifest.partition

    @cached_property
    def runs(self) -> dict[str, RunEntry]:
        """The live runs by key."""
        return {run.key: run for run in self.manifest.runs}

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The runs in the manifest's order, and the tail last."""
        runs = (RunSource(run, self.store.runs) for run in self.manifest.runs)
        return (*runs, TailSource(self.tail))

    @cached_property
    def hidden(self) -> DeletionVectors:
        """The rows that do not show, by source and row group; found once."""
        with expiring(self.store.uri):
            return deletion_vectors(self.sources, self.kept.doubtful)

    @cached_property
    def kept(self) -> PartitionKept:
        """The tables that the compactor keeps of it."""
        in_tail = pc.unique(self.tail["thread_id"])
        return PartitionKept(self.manifest.kept, self.store.runs, in_tail)

    @property
    def tail_segments(self) -> int:
        """How many segments of the listed log no compaction has merged."""
        return len(self.listing.arrived.keys() - self.manifest.merged.keys())

    @property
    def hidden_in_runs(self) -> DeletionVectors:
        """The same without the tail."""
        tail = len(self.sources) - 1
        return {place: rows for place, rows in self.hidden.items() if place[0] != tail}

    @cached_property
    def visible_tail(self) -> pa.Table:
        """The records of the tail that show."""
        tail = len(self.sources) - 1
        rows = [
            self.sources[tail].position(group) + row
            for (source, group), hidden in self.hidden.items()
            for row in hidden.to_pylist()
            if source == tail
        ]
        if not rows:
            return self.tail
        everything = pa.array(range(self.tail.num_rows), pa.int64())
        shown = pc.invert(pc.is_in(everything, pa.array(rows, pa.int64())))
        batches = (batch.filter(shown.slice(at, len(batch))) for at, batch in _offsets(self.tail))
        return spooled(batches, SCHEMA, self.spool / f"visible-{self.number:04d}")

    def reads(self, threads: pa.Array | None = None) -> Iterator[ThreadRead]:
        """Each thread with all of its records, ascending.

        Args:
            threads: only these; all by default.

        Raises:
            SnapshotExpiredError: a run is gone.
        """
        tail = len(self.sources) - 1
        with expiring(self.store.uri):
            for thread_id, rows, records in threads_of(self.sources, threads):
                in_tail = pc.equal(rows[SOURCE], tail).to_pylist()
                fresh = [record for record, new in zip(records, in_tail, strict=True) if new]
                yield self._read(thread_id, records, fresh)

    def read(self, thread_id: str) -> ThreadRead:
        """One thread with all of its records.

        Raises:
            SnapshotExpiredError: a run is gone.
        """
        with expiring(self.store.uri):
            wanted = pa.array([thread_id])
            fresh = [r for _, _, found in threads_of(self.sources[-1:], wanted) for r in found]
            runs = [run for run in self.manifest.runs if run.may_hold(thread_id)]
            stored = [record for run in runs for record in self.store.runs.rows(run, thread_id)]
            return self._read(thread_id, [*stored, *fresh], fresh)

    def _read(self, thread_id: str, records: list[Record], fresh: list[Record]) -> ThreadRead:
        view = ThreadView(thread_id, records)
        return ThreadRead(view, late_writes(fresh), self.runs, self.listing, (), {})


def pin(store: LogStore, partition: int, spool: Path) -> PinnedPartition:
    """Pin a partition.

    Args:
        store: the store.
        partition: the partition's number.
        spool: a directory for the tail, which the log may lose with the next compaction.

    Raises:
        MissingDataError: a segment was lost.
        CorruptObjectError: a segment or the manifest cannot be read.
    """

    read = until_stable(lambda: read_partition(store, partition))
    if read.tail.gone and not read.exists:
        raise MissingDataError(
            f"a segment in partition {partition} of {store.uri} builds on another one that "
            "does not exist, and no manifest holds its records. If an object was deleted by "
            "hand, restore it from a version or copy of the bucket"
        )
    table = spooled(_sorted(read.tail).to_batches(), SCHEMA, spool / f"tail-{partition:04d}")
    return PinnedPartition(store, read.manifest, read.listing, table, spool)


def spooled(batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: Path) -> pa.Table:
    """Batches as a table in a memory-mapped file, which the system may drop from memory."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def _offsets(table: pa.Table) -> Iterator[tuple[int, pa.RecordBatch]]:
    at = 0
    for batch in table.to_batches():
        yield at, batch
        at += len(batch)


def _sorted(tail: Tail) -> pa.Table:
    """The records of a tail, by thread."""
    tables = [
        cast_table(with_arrival(segment.table, tail.arrived[key]), SCHEMA)
        for key, segment in tail.segments.items()
    ]
    return pa.concat_tables([SCHEMA.empty_table(), *tables]).sort_by([("thread_id", "ascending")])
