"""Reading one thread: the head from its snapshot manifest, the rest from runs; both and the tail.

The order of requests is what makes a read safe. A reader skips a segment of the log only
if a manifest that it read *after* the LIST names it as merged. The other way round a
segment that was merged and deleted in between would be missed in silence; a missing
object, on the other hand, is a loud "no such key", and the read starts again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from logstore.cache import ByteCache, VersionedCache
from logstore.clock import Elapsed
from logstore.errors import MissingDataError, ObjectNotFoundError
from logstore.keys import partition_manifest_key, snapshot_manifest_key
from logstore.late import Late, late_records
from logstore.lineage import Lineage
from logstore.manifest import PartitionManifest, RunEntry, SnapshotManifest
from logstore.objects.base import ObjectStore
from logstore.records import Kind, Record, Tombstone, weight
from logstore.runs import RunReader
from logstore.tail import Listing, LogReader, StartAgain, Tail
from logstore.values import Lost, Patched, ValueDecoder, ValueReader
from logstore.view import HeadScope, NeedsHistory, ThreadView

T = TypeVar("T")
_TRIES = 12


@dataclass(frozen=True)
class ManifestVersion:
    """A snapshot manifest as it was read; an absent one has no ETag."""

    manifest: SnapshotManifest
    etag: str | None


class ReadVersion(NamedTuple):
    """What a thread was read from: of the same version, the same records.

    A record comes in with a segment. One that landed since is in the tail, or a manifest has
    merged it since, and has another ETag.
    """

    manifest: str | None
    """The ETag of the snapshot manifest."""
    tail: frozenset[tuple[str, int]]
    """The unmerged segments, and when they arrived."""

    @classmethod
    def of(cls, found: ManifestVersion, tail: Tail) -> ReadVersion:
        """The version of a head read."""
        return cls(found.etag, frozenset((key, tail.arrived[key]) for key in tail.segments))


@dataclass(frozen=True)
class ThreadRead:
    """What a read of a thread found."""

    view: ThreadView
    late: Late
    """What is newer than every snapshot in the view."""
    runs: Mapping[str, RunEntry]
    """The runs that the view's records refer to."""
    listing: Listing
    pending: Sequence[Record]
    """This process's acknowledged records that were not stored when the LIST began."""
    positions: Mapping[str, int]
    """For each writer: the greatest lane position with stored records of the thread."""
    version: ReadVersion | None = None
    """By which what follows from the read may be kept; None if it may not be kept."""
    seen: Elapsed = field(default_factory=Elapsed)
    """Since it was read, or found to be so still."""

    @property
    def size(self) -> int:
        """Bytes in memory, about."""
        return sum(map(weight, self.view.records))


class ThreadReader:
    """Reads threads of one store."""

    def __init__(
        self,
        objects: ObjectStore,
        executor: Executor,
        log: LogReader,
        runs: RunReader,
        values: ValueReader,
        lineage: Lineage,
        manifests: ByteCache[ManifestVersion],
        reads: VersionedCache[ThreadRead],
        short_grace_s: float,
        acknowledged: Callable[[str], Sequence[Record]],
        observe: Callable[[Listing], None],
    ) -> None:
        """Join the parts that a read needs.

        Args:
            objects: the object store.
            executor: for parallel requests.
            log: reads segments.
            runs: reads runs.
            values: reads values.
            lineage: is told what was read.
            manifests: snapshot manifests by key.
            reads: reads of threads, to be given out again while their version stands.
            short_grace_s: the least time between a commit and the deletion of the segments
                that it merged.
            acknowledged: gives this process's acknowledged records that are not stored yet.
            observe: is told of each listing.
        """
        self._objects = objects
        self._executor = executor
        self._log = log
        self._runs = runs
        self._values = values
        self._lineage = lineage
        self._manifests = manifests
        self._reads = reads
        self._short_grace_s = short_grace_s
        self._acknowledged = acknowledged
        self._observe = observe

    # -- the head ----------------------------------------------------------------

    def head(self, thread_id: str, partition: int) -> ThreadRead:
        """Read the head: two serial round trips cold, one warm.

        The view that results raises `NeedsHistory` where it does not reach.
        """
        return until_stable(lambda: self._head(thread_id, partition))

    def _head(self, thread_id: str, partition: int) -> ThreadRead:
        pending = self._acknowledged(thread_id)
        begun = Elapsed()
        manifest_job = self._executor.submit(self.snapshot_manifest, thread_id, partition)
        listing = self._log.list(partition)
        elapsed_s = begun.seconds()
        self._observe(listing)
        version = manifest_job.result()
        recheck = None
        if elapsed_s >= self._short_grace_s / 4:
            # A segment is deleted one grace after the commit that follows the manifest's
            # change, at the earliest. Only a LIST that ended long after the manifest was
            # asked for can miss one that the manifest does not hold.
            recheck = self._executor.submit(self.snapshot_manifest, thread_id, partition)
        objects = self._values.prefetch(version.manifest.object_keys)
        tail = self._log.read(listing, version.manifest.merged, thread_id)
        if recheck is not None and recheck.result().etag != version.etag:
            version = recheck.result()
            tail = self._log.read(listing, version.manifest.merged, thread_id)
        while tail.gone:
            again = self.snapshot_manifest(thread_id, partition)
            if again.etag is None:
                raise _lost_segment(thread_id)
            if again.etag == version.etag:
                break
            version = again
            tail = self._log.read(listing, version.manifest.merged, thread_id)
        for wait in objects:
            wait()
        return self._head_read(thread_id, version, tail, pending, listing)

    def _head_read(
        self,
        thread_id: str,
        found: ManifestVersion,
        tail: Tail,
        pending: Sequence[Record],
        listing: Listing,
    ) -> ThreadRead:
        manifest = found.manifest
        self._lineage.read(thread_id, tail.builds_on(thread_id), manifest.merged)
        version = None if pending else ReadVersion.of(found, tail)
        known = self._reads.get((thread_id, "head"), version)
        if known is not None:
            return replace(known, listing=listing, seen=Elapsed())
        stored = tail.records(thread_id)
        positions = positions_of(stored, manifest.positions)
        fresh = [*stored, *pending]
        scope = manifest.scope if manifest.generation else None
        try:
            # A late copy of a segment whose name the manifest has forgotten, or a segment
            # that was given up: only the runs tell.
            # After a delete what it did not see may be a loser, which no manifest keeps.
            if scope is not None and (arrived_before(stored, manifest) or deletes_thread(stored)):
                raise NeedsHistory
            view = ThreadView(thread_id, [*manifest.records, *fresh], scope)
        except NeedsHistory:
            view = ThreadView(thread_id, (), HeadScope(blind=True))
        late = late_records(view, fresh)
        read = ThreadRead(view, late, {}, listing, pending, positions, version)
        self._reads.put((thread_id, "head"), version, read, read.size)
        return read

    def snapshot_manifest(self, thread_id: str, partition: int) -> ManifestVersion:
        """Read a thread's snapshot manifest, or hear that the cached version is current."""
        key = snapshot_manifest_key(partition, thread_id)
        cached = self._manifests.get(key)
        if cached is not None and cached.etag is not None:
            found = self._objects.get_if_changed(key, cached.etag)
            if found is None:
                return cached
        else:
            try:
                found = self._objects.get(key)
            except ObjectNotFoundError:
                return ManifestVersion(SnapshotManifest(thread_id), None)
        version = ManifestVersion(SnapshotManifest.decode(key, found.data), found.etag)
        self._manifests.put(key, version, len(found.data) * 4)
        return version

    # -- the whole history ---------------------------------------------------------

    def beyond(self, head: ThreadRead, partition: int) -> ThreadRead:
        """Read all records of a thread whose head was just read; its LIST serves.

        Raises:
            MissingDataError: a segment was lost.
        """
        thread_id = head.view.thread_id
        known = self._reads.get((thread_id, "whole"), head.version)
        if known is not None:
            return known
        read = self.history(thread_id, partition, head.listing, head.pending)
        read = replace(read, version=None if read.pending else head.version)
        self._reads.put((thread_id, "whole"), read.version, read, read.size)
        return read

    def history(
        self,
        thread_id: str,
        partition: int,
        listing: Listing | None = None,
        pending: Sequence[Record] = (),
        *,
        with_holes: bool = False,
    ) -> ThreadRead:
        """Read all records of a thread, values left where they are.

        Args:
            thread_id: the thread.
            partition: its partition.
            listing: a LIST that was made before this call; None for a new one.
            pending: this process's records that were not stored when that LIST began.
            with_holes: answer although a segment was lost, for people who look for what is left.

        Raises:
            MissingDataError: a segment was lost.
        """

        def attempt() -> ThreadRead:
            nonlocal listing
            unstored = [*pending, *self._acknowledged(thread_id)]
            listed = listing or self._log.list(partition)
            listing = None
            return self._history(thread_id, partition, listed, unstored, with_holes)

        return until_stable(attempt)

    def _history(
        self,
        thread_id: str,
        partition: int,
        listing: Listing,
        pending: Sequence[Record],
        with_holes: bool,
    ) -> ThreadRead:
        manifest, etag = self.partition_manifest(partition)
        tail = self._log.read(listing, manifest.merged.keys(), thread_id)
        if tail.gone:
            if etag is None and not with_holes:
                raise _lost_segment(thread_id)
            if self.partition_manifest(partition)[1] != etag:
                raise StartAgain
        self._lineage.read(thread_id, tail.builds_on(thread_id), manifest.merged)
        tailing = tail.records(thread_id)
        fresh = [*tailing, *pending]
        runs = [run for run in manifest.runs if run.may_hold(thread_id)]
        stored = self._log.map(lambda run: self._runs.rows(run, thread_id), runs)
        records = [record for rows in stored for record in rows]
        view = ThreadView(thread_id, [*records, *fresh])
        return ThreadRead(
            view,
            late_records(view, fresh),
            {run.key: run for run in runs},
            listing,
            pending,
            positions_of([*records, *tailing], {}),
        )

    def partition_manifest(self, partition: int) -> tuple[PartitionManifest, str | None]:
        """Read a partition manifest and its ETag; an absent one is empty."""
        key = partition_manifest_key(partition)
        try:
            found = self._objects.get(key)
        except ObjectNotFoundError:
            return PartitionManifest(partition), None
        manifest = PartitionManifest.decode(key, found.data)
        return manifest.dated(found.modified), found.etag

    def snapshot_object(self, key: str) -> bytes:
        """The value in a snapshot object.

        Raises:
            StartAgain: it is gone; a newer manifest names another.
            CorruptObjectError: it is damaged.
        """
        return self._values.object(key)

    def decoder(
        self, read: ThreadRead, patched: Patched | None = None, lost: Lost | None = None
    ) -> ValueDecoder:
        """Decodes the values of a read's records. See `ValueReader.decoder`."""
        return self._values.decoder(read.view, read.runs, patched, lost)


def until_stable(attempt: Callable[[], T]) -> T:
    """Repeat a read while compaction moves things under it.

    Raises:
        MissingDataError: an object stays missing that a manifest names.
    """
    for number in range(_TRIES):
        try:
            return attempt()
        except StartAgain as error:
            cause = error.__cause__
            time.sleep(random.uniform(0, 0.01 * 2 ** min(number, 6)))
    raise MissingDataError(
        f"a manifest or a run names an object that does not exist ({cause}); {_TRIES} reads in "
        "a row met the same. If an object was deleted by hand, restore it from a version or copy "
        "of the bucket"
    )


def _lost_segment(thread_id: str) -> MissingDataError:
    return MissingDataError(
        f"a segment of thread {thread_id!r} builds on another one that does not exist, and no "
        "snapshot manifest holds its records. If an object was deleted by hand, restore it from "
        "a version or copy of the bucket"
    )


def arrived_before(records: Iterable[Record], manifest: SnapshotManifest) -> bool:
    """Whether a manifest has merged later segments of a record's writer than the record's.

    Lanes are in order, so the record's own segment was merged too, or it was given up.
    """
    return any(r.seq <= manifest.positions.get(r.writer, -1) for r in records)


def deletes_thread(records: Iterable[Record]) -> bool:
    """Whether one of the records deletes the whole thread."""
    return any(r.kind == Kind.TOMBSTONE and Tombstone.from_record(r).is_whole for r in records)


def positions_of(records: Iterable[Record], known: Mapping[str, int]) -> dict[str, int]:
    """For each writer the greatest lane position among records and what was known."""
    positions = dict(known)
    for record in records:
        if record.kind != Kind.SNAPSHOT:
            positions[record.writer] = max(positions.get(record.writer, -1), record.seq)
    return positions
