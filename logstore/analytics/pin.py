"""Pinning a partition: one version of its manifest, and the tail that goes with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from logstore.analytics.kept import PartitionKept
from logstore.analytics.pruning import ThreadSpans
from logstore.analytics.sources import SOURCE, RunSource, threads_of
from logstore.analytics.spool import TailSpool
from logstore.analytics.visibility import DeletionVectors, Visibility, visibility
from logstore.errors import MissingDataError, ObjectNotFoundError, SnapshotExpiredError
from logstore.index import PartitionRead, read_partition
from logstore.late import late_records
from logstore.manifest import PartitionManifest, RunEntry
from logstore.reader import ThreadRead, until_stable
from logstore.records import SCHEMA, Record
from logstore.store import LogStore
from logstore.tail import Listing, StartAgain
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
    tail: tuple[RunEntry, ...]
    """The spooled files with the records of the tail."""
    folder: Path
    """Where more can be spooled."""

    @property
    def number(self) -> int:
        """The partition's number."""
        return self.manifest.partition

    @cached_property
    def runs(self) -> dict[str, RunEntry]:
        """The live runs by key."""
        return {run.key: run for run in self.manifest.runs}

    @cached_property
    def files(self) -> dict[str, RunEntry]:
        """The runs in the manifest's order, then the files of the tail, by key."""
        return {**self.runs, **{file.key: file for file in self.tail}}

    @cached_property
    def sources(self) -> tuple[RunSource, ...]:
        """A source for each file."""
        return tuple(RunSource(file, self.store.runs) for file in self.files.values())

    @cached_property
    def largest(self) -> int:
        """Bytes of the largest value, by the statistics of the files."""
        return max((source.largest for source in self.sources), default=0)

    @cached_property
    def spans(self) -> ThreadSpans:
        """Its threads, and from when to when they went."""
        return ThreadSpans(self.number, self.sources)

    @cached_property
    def _visibility(self) -> Visibility:
        with expiring(self.store.uri):
            return visibility(self.sources, self.kept.doubtful)

    @property
    def hidden(self) -> DeletionVectors:
        """The rows that do not show as they are stored, by source and row group; found once."""
        return self._visibility.hidden

    @cached_property
    def boundaries(self) -> tuple[RunEntry, ...]:
        """Spooled files with those of them that show, but without their hidden parent."""
        spool = TailSpool(self.folder, self.number)
        parent = SCHEMA.get_field_index("parent_checkpoint_id")
        with expiring(self.store.uri):
            for (source, group), rows in self._visibility.boundaries.items():
                table = self.sources[source].read(group, SCHEMA.names).take(rows)
                none = pa.nulls(table.num_rows, SCHEMA.field(parent).type)
                spool.take(table.set_column(parent, SCHEMA.field(parent), none))
        return spool.close()

    @cached_property
    def kept(self) -> PartitionKept:
        """The tables that the compactor keeps of it."""
        threads = (
            pc.unique(table["thread_id"]).cast(pa.string())
            for file in self.tail
            for table in self.store.runs.columns(file, ["thread_id"])
        )
        in_tail = pc.unique(pa.concat_arrays([pa.array([], pa.string()), *threads]))
        return PartitionKept(self.manifest.kept, self.store.runs, in_tail)

    @property
    def tail_segments(self) -> int:
        """How many segments of the listed log no compaction has merged."""
        return len(self.listing.arrived.keys() - self.manifest.merged.keys())

    def reads(self, threads: pa.Array | None = None) -> Iterator[ThreadRead]:
        """Each thread with all of its records, ascending.

        Args:
            threads: only these; all by default.

        Raises:
            SnapshotExpiredError: a run is gone.
        """
        with expiring(self.store.uri):
            for thread_id, rows, records in threads_of(self.sources, threads):
                in_tail = pc.greater_equal(rows[SOURCE], len(self.runs)).to_pylist()
                fresh = [record for record, new in zip(records, in_tail, strict=True) if new]
                yield self._read(thread_id, records, fresh)

    def read(self, thread_id: str) -> ThreadRead:
        """One thread with all of its records.

        Raises:
            SnapshotExpiredError: a run is gone.
        """
        with expiring(self.store.uri):
            stored, fresh = (
                [
                    record
                    for file in files
                    if file.may_hold(thread_id)
                    for record in self.store.runs.rows(file, thread_id)
                ]
                for files in (self.runs.values(), self.tail)
            )
            return self._read(thread_id, [*stored, *fresh], fresh)

    def _read(self, thread_id: str, records: list[Record], fresh: list[Record]) -> ThreadRead:
        view = ThreadView(thread_id, records)
        return ThreadRead(view, late_records(view, fresh), self.files, self.listing, (), {})


def pin(store: LogStore, partition: int, folder: Path) -> PinnedPartition:
    """Pin a partition.

    Args:
        store: the store, with `SpooledObjects` of the folder.
        partition: the partition's number.
        folder: where the tail is spooled.

    Raises:
        MissingDataError: a segment was lost.
        CorruptObjectError: a segment or the manifest cannot be read.
    """

    def attempt() -> tuple[PartitionRead, tuple[RunEntry, ...]]:
        spool = TailSpool(folder, partition)
        return read_partition(store, partition, spool.add), spool.close()

    read, tail = until_stable(attempt)
    if read.tail.gone and not read.exists:
        raise MissingDataError(
            f"a segment in partition {partition} of {store.uri} builds on another one that "
            "does not exist, and no manifest holds its records. If an object was deleted by "
            "hand, restore it from a version or copy of the bucket"
        )
    return PinnedPartition(store, read.manifest, read.listing, tail, folder)
