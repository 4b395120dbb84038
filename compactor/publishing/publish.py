"""Bringing the snapshot manifests of the touched threads up to date.

For each thread: read its manifest, unite it with what the job merges, decide, and
compare-and-swap; after each lost race decide anew. What a manifest gets is always decided
from all that it held before, so that of two jobs neither can take back what the other put.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from compactor.folding.channels import ChannelTable
from compactor.folding.fold import Folder
from compactor.folding.snapshots import SnapshotMaker, SnapshotWork
from compactor.lost_objects import LostObjectError, LostObjects
from compactor.plan import Plan, manifest_etag
from compactor.publishing import large_values
from compactor.publishing.digest import Digest, digest
from compactor.publishing.large_values import LargeValues, is_of_record
from compactor.publishing.uploads import Uploads
from logstore.errors import (
    ConditionFailedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from logstore.keys import snapshot_manifest_key
from logstore.late import late_records
from logstore.manifest import RunEntry, SnapshotManifest
from logstore.reader import ManifestVersion, ThreadRead, arrived_before, positions_of
from logstore.records import Encoding, Kind, Record, ValueRef, united
from logstore.store import LogStore
from logstore.tail import StartAgain, to_us
from logstore.view import HeadScope, NeedsHistory, ThreadView

NAME_AGE_S = 3600.0
"""So long a merged segment's name stays in the manifest, and as long as a LIST shows it."""
_TRIES = 20


class LostJob(Exception):
    """Another job committed first; this one must stop before it does harm."""


@dataclass
class PublishResult:
    """What publishing one thread did."""

    work: SnapshotWork = field(default_factory=SnapshotWork)
    tombstones: tuple[Record, ...] = ()
    """The thread's tombstones: what they delete is not written again."""
    thread_id: str = ""
    hides: bool = False
    """Whether rows of the thread are hidden."""
    complete: bool = False
    """Whether that is known of all its rows, or only of those that its head needs."""
    bytes_written: int = 0


class Publisher:
    """Publishes the threads of one partition's job."""

    def __init__(
        self,
        store: LogStore,
        plan: Plan,
        table: ChannelTable,
        folder: Folder,
        job: str,
        *,
        whole: bool = False,
    ) -> None:
        """Publish for a job that began from `plan`; `whole` decides from whole histories only."""
        self._whole = whole
        self._store = store
        self._plan = plan
        self._table = table
        self._folder = folder
        self._job = job
        self.lost = LostObjects(store, plan)

    def publish(self, thread_id: str, records: Sequence[Record]) -> PublishResult:
        """Bring one thread's manifest up to date.

        Args:
            thread_id: the thread.
            records: all its records in the segments that the job merges.

        Raises:
            LostJob: another job has committed this partition meanwhile.
            UnavailableError: too many races were lost.
        """
        uploads = Uploads(self._store.objects, self._plan.settings.long_grace_s / 4)
        try:
            return self._publish(thread_id, records, uploads)
        finally:
            uploads.discard_unused()

    def _publish(
        self, thread_id: str, records: Sequence[Record], uploads: Uploads
    ) -> PublishResult:
        key = snapshot_manifest_key(self._plan.partition, thread_id)
        for number in range(_TRIES):
            version = self._current(thread_id)
            result = PublishResult()
            manifest = self._advance(version.manifest, records, result, uploads)
            body = manifest.encode()
            uploads.sending(manifest.object_keys)
            try:
                self._store.objects.compare_and_swap(key, body, version.etag)
            except (ConditionFailedError, OutcomeUnknownError):
                now = self._current(thread_id)
                if now.manifest.job != manifest.job:
                    time.sleep(random.uniform(0, 0.02 * 2 ** min(number, 5)))
                    continue
            result.bytes_written += len(body)
            return result
        raise UnavailableError(
            f"the snapshot manifest {key} changed {_TRIES} times in a row under this job; too "
            "many compactors work on one store. Nothing is lost; the next job goes on"
        )

    def _current(self, thread_id: str) -> ManifestVersion:
        return self._store.reader.snapshot_manifest(thread_id, self._plan.partition)

    # -- deciding ----------------------------------------------------------------

    def _advance(
        self,
        old: SnapshotManifest,
        records: Sequence[Record],
        result: PublishResult,
        uploads: Uploads,
    ) -> SnapshotManifest:
        try:
            read = self._head_read(old, records)
            entries, kept = self._settle(read, old, result, uploads)
        except NeedsHistory:
            read = self._full_read(old, records)
            entries, kept = self._settle(read, old, result, uploads)
            self._check_runs()
        result.thread_id = old.thread_id
        result.hides = any(True for _ in read.view.hidden_rows())
        result.complete = read.view.complete
        result.tombstones = tuple(t._replace(value=None) for t in read.view.tombstones)
        now = self._plan.listing.date
        return SnapshotManifest(
            thread_id=old.thread_id,
            generation=old.generation + 1,
            job=f"{self._job}-{secrets.token_hex(4)}",
            merged=self._merged(old, now),
            positions=read.positions,
            heads=kept.heads,
            evicted=kept.evicted,
            records=tuple(entries),
            retired=self._retired(old, entries, now),
        )

    def _settle(
        self, read: ThreadRead, old: SnapshotManifest, result: PublishResult, uploads: Uploads
    ) -> tuple[list[Record], Digest]:
        """What the manifest gets, with its values at hand.

        Raises:
            NeedsHistory: the read was one of the head and does not reach far enough.
        """
        result.work, kept = self._decide(read, old)
        plan, load = self._plan, self._store.reader.snapshot_object
        large = LargeValues(plan.partition, uploads, load, plan.manifest.condemned)
        large.learn((*read.view.records, *old.records))
        entries, written = self._settle_values(kept.records, read, large)
        result.bytes_written += written
        return entries, kept

    def _decide(self, read: ThreadRead, old: SnapshotManifest) -> tuple[SnapshotWork, Digest]:
        maker = SnapshotMaker(
            read.view,
            read.late,
            self._table,
            self._folder,
            self.lost.decoder(read),
            to_us(self._plan.listing.date),
        )
        work = maker.run()
        return work, digest(read.view, read.late, self._table, old)

    def _void(self, snapshot: Record) -> Record:
        return self._folder.void(snapshot, to_us(self._plan.listing.date))

    def _head_read(self, old: SnapshotManifest, records: Sequence[Record]) -> ThreadRead:
        """The thread as its manifest and the job's segments tell it.

        Raises:
            NeedsHistory: the manifest has merged some of these segments already. A job that
                never committed did that: what else it made, the runs do not have. Or one of
                them is a late copy, or a delete: only the runs have what lost a clash. Or a
                write came to a checkpoint that had children, or such a checkpoint was put anew:
                that counts for their branches too.
        """
        if (
            self._whole
            or old.merged.keys() & self._plan.tail.segments.keys()
            or arrived_before(records, old)
            or (old.generation and any(r.kind == Kind.TOMBSTONE for r in records))
        ):
            raise NeedsHistory
        scope = old.scope if old.generation else None
        if scope is not None and any(_is_below_head(r, scope) for r in records):
            raise NeedsHistory
        view = ThreadView(old.thread_id, [*old.records, *records], scope)
        positions = positions_of(records, old.positions)
        return ThreadRead(view, late_records(view, records), {}, self._plan.listing, (), positions)

    def _check_runs(self) -> None:
        """Make sure that the runs still count: a cache answers for them when they are gone.

        Raises:
            LostJob: another job has committed.
        """
        if manifest_etag(self._store, self._plan.partition) != self._plan.etag:
            raise LostJob

    def _full_read(self, old: SnapshotManifest, records: Sequence[Record]) -> ThreadRead:
        """The thread as the runs, the job's segments, and the manifest's others tell it."""
        read = self.whole_thread(old.thread_id, [*records, *self._named_by(old)])
        return replace(read, positions=united(read.positions, old.positions))

    def whole_thread(self, thread_id: str, fresh: Sequence[Record]) -> ThreadRead:
        """The thread as the runs and some newer records tell it.

        Raises:
            LostJob: a run is gone, so another job has committed.
        """
        runs = [run for run in self._plan.manifest.runs if run.may_hold(thread_id)]
        try:
            stored = [r for run in runs for r in self._store.runs.rows(run, thread_id)]
        except StartAgain as error:
            raise LostJob from error
        by_key: Mapping[str, RunEntry] = {run.key: run for run in runs}
        view = ThreadView(thread_id, [*stored, *fresh])
        positions = positions_of([*stored, *fresh], {})
        late = late_records(view, fresh)
        return ThreadRead(view, late, by_key, self._plan.listing, (), positions)

    def _named_by(self, old: SnapshotManifest) -> list[Record]:
        """Records of segments that another job put into the manifest and did not commit yet.

        A segment that is gone was committed: by a generation that this job has read, or by
        a newer one, and then this job has lost.
        """
        plan = self._plan
        known = plan.tail.segments.keys() | plan.manifest.merged.keys()
        found: list[Record] = []
        for key in old.merged.keys() - known:
            try:
                segment = self._store.log.fetch(key)
                arrived = plan.listing.arrived.get(key)
                if arrived is None:
                    arrived = to_us(self._store.objects.get(key).modified)
                found.extend(segment.records(old.thread_id, arrived))
            except ObjectNotFoundError:
                if manifest_etag(self._store, plan.partition) != plan.etag:
                    raise LostJob from None
        return found

    def _merged(self, old: SnapshotManifest, now: float) -> dict[str, float]:
        listed = self._plan.listing.arrived
        kept = {
            key: since
            for key, since in old.merged.items()
            if key in listed or now - since < NAME_AGE_S
        }
        for key, segment in self._plan.tail.segments.items():
            if segment.name.may_hold(old.thread_id):
                kept.setdefault(key, now)
        return kept

    # -- values ------------------------------------------------------------------

    def _settle_values(
        self, records: Sequence[Record], read: ThreadRead, large: LargeValues
    ) -> tuple[list[Record], int]:
        """Load values that lie in runs, undo patches, and find a place for large values.

        Writes whose checkpoint is not visible stay as they are: what they were made against
        may be hidden.
        """
        whole = [r for r in records if _has_value(r) and _is_shown(r, read)]
        values = self._decoded(whole, read)
        placed, written = _placed([r for r in whole if id(r) in values], values, read, large)
        lost = {id(record) for record in whole if id(record) not in values}
        settled = [
            placed.get(id(record))
            or self._at_hand(record, values.get(id(record)), read, id(record) in lost)
            for record in records
        ]
        return settled, written

    def _decoded(self, records: Sequence[Record], read: ThreadRead) -> dict[int, bytes]:
        """The records' values by the records' identity, without those that are lost."""
        decoder = self.lost.decoder(read)
        found: dict[int, bytes] = {}
        for record in records:
            try:
                found[id(record)] = decoder.load([record])[0][1]
            except LostObjectError:
                continue
        return found

    def _at_hand(
        self, record: Record, value: bytes | None, read: ThreadRead, is_lost: bool
    ) -> Record:
        """A record with its value, if that was loaded, and without a `ValueRef`.

        One whose value is lost stays the patch that it is, for when the base is back.
        """
        if value is not None:
            return record._replace(
                value=value,
                encoding=Encoding.RAW,
                base_channel=None,
                base_version=None,
                dictionary=None,
            )
        if not isinstance(record.value, ValueRef):
            return record
        is_needed = is_lost or record.kind == Kind.WRITE or record.encoding == Encoding.OBJECT
        if not is_needed:
            return record._replace(value=None)
        return record._replace(
            value=self._store.runs.values(read.runs, [record.value])[record.value]
        )

    def _retired(
        self, old: SnapshotManifest, entries: Sequence[Record], now: float
    ) -> dict[str, float]:
        """The objects that the manifest named until lately. Runs may name them still."""
        limit = now - self._plan.settings.long_grace_s
        used = {r.base_version for r in entries if r.encoding == Encoding.OBJECT}
        retired = {key: since for key, since in old.retired.items() if since > limit}
        retired.update(dict.fromkeys(old.object_keys, now))
        return {key: since for key, since in retired.items() if key not in used}


def _placed(
    records: Sequence[Record], values: Mapping[int, bytes], read: ThreadRead, large: LargeValues
) -> tuple[dict[int, Record], int]:
    """Find a place for large values, those of records first: what jobs made may need them.

    Returns:
        The records by their identity, and the bytes that were stored.
    """
    placed: dict[int, Record] = {}
    written = 0
    found = [r for r in records if len(values[id(r)]) > large_values.LARGE_BYTES]
    if not all(map(is_of_record, found)):
        # A snapshot holds most often what came in with this job's records.
        fresh = (r for r in read.view.records if is_of_record(r) and r.encoding == Encoding.RAW)
        for record in fresh:
            if isinstance(record.value, bytes) and len(record.value) > large_values.LARGE_BYTES:
                written += large.keep(record, record.value)[1]
    for record in sorted(found, key=is_of_record, reverse=True):
        placed[id(record)], size = large.keep(record, values[id(record)])
        written += size
    return placed, written


def _is_below_head(record: Record, scope: HeadScope) -> bool:
    """Whether a write is at a checkpoint that had children when the manifest was made, or a
    checkpoint may have been there before, with others above it or another parent."""
    ns, checkpoint_id = record.checkpoint_ns, record.checkpoint_id
    if record.kind == Kind.CHECKPOINT:
        parent = record.parent_checkpoint_id
        is_moved = scope.settled.get((ns, checkpoint_id), parent) != parent
        return is_moved or scope.may_lack(ns, checkpoint_id)
    if record.kind != Kind.WRITE or (ns, checkpoint_id) not in scope.settled:
        return False
    return checkpoint_id != scope.head_ids.get(ns)


def _has_value(record: Record) -> bool:
    return record.encoding in (Encoding.RAW, Encoding.PATCH)


def _is_shown(record: Record, read: ThreadRead) -> bool:
    if record.kind != Kind.WRITE:
        return record.kind != Kind.TOMBSTONE
    return read.view.ancestor(record.checkpoint_ns, record.checkpoint_id) is not None
