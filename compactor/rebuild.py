"""Rebuilding: every derived object anew, from segments and runs alone.

A rebuild is a job that publishes threads from their whole history, believing no manifest and no
snapshot of earlier jobs, and commits as every job does: readers, writers and other jobs go on
meanwhile. Snapshots that it does not make again are taken back by `void` records.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from langgraph.checkpoint.serde.base import SerializerProtocol

from compactor.folding.channels import ChannelTable
from compactor.folding.fold import Folder
from compactor.folding.thinning import Place
from compactor.job import Job, PartitionJob
from compactor.keeping.tables import KeptChange, dropped
from compactor.memory import MemoryBudget
from compactor.plan import Plan, make_plan, manifest_etag, plan_from
from compactor.publishing.digest import Digest
from compactor.publishing.publish import Publisher, PublishResult
from compactor.publishing.threads import by_thread
from compactor.publishing.uploads import Uploads
from compactor.recover import recovered_manifest
from compactor.report import Outcome, PartitionReport
from logstore.errors import CorruptObjectError
from logstore.keys import snapshot_manifest_key
from logstore.manifest import PartitionManifest, SnapshotManifest
from logstore.reader import ManifestVersion, ThreadRead, until_stable
from logstore.records import SCHEMA, Encoding, Kind, Record, merge
from logstore.store import LogStore, Settings
from logstore.view import ThreadView

logger = logging.getLogger(__name__)
_TRIES = 5
"""A rebuild that lost to another job begins again, at most so often."""


class RebuildJob(Job):
    """Rebuilds the derived objects of a store, or of some of its threads."""

    def __init__(
        self,
        store: LogStore,
        table: ChannelTable,
        serde: SerializerProtocol,
        threads: Collection[str] = (),
        *,
        memory: MemoryBudget | None = None,
    ) -> None:
        """Rebuild in `store`.

        Args:
            store: an open store.
            table: the channels whose snapshots are made anew; those of others stay.
            serde: the saver's serde.
            threads: only these; all by default.
            memory: what it may hold.
        """
        super().__init__(store, table, serde, memory=memory)
        self._threads = frozenset(threads)

    def _partition(self, settings: Settings, partition: int, until: float) -> PartitionReport:
        for _ in range(_TRIES):
            report = self._attempt(settings, partition)
            if report.outcome != Outcome.LOST:
                break
        if report.segments_left and report.outcome == Outcome.COMMITTED:
            # What one commit could not take concerns threads that are published as usual.
            usual = Job(self._store, self._table, self._serde, memory=self._memory)
            report = report.then(usual.run([partition]).partitions[0])
        return report

    def _begin(self, settings: Settings, partition: int) -> PartitionJob:
        recovered = until_stable(partial(recovered_manifest, self._store, partition, self.id))
        if recovered is None:
            plan = until_stable(lambda: make_plan(self._store, settings, partition, self._limit))
        else:
            etag = manifest_etag(self._store, partition)
            plan = until_stable(
                lambda: plan_from(self._store, settings, recovered, etag, self._limit)
            )
        return _PartitionRebuild(
            self._store,
            plan,
            self._table,
            self._serde,
            self.id,
            threads=self._threads,
            recovered=recovered is not None,
            memory=self._memory,
        )


class _PartitionRebuild(PartitionJob):
    """A rebuild in one partition."""

    def __init__(
        self,
        store: LogStore,
        plan: Plan,
        table: ChannelTable,
        serde: SerializerProtocol,
        job: str,
        *,
        threads: Collection[str],
        recovered: bool,
        memory: MemoryBudget,
    ) -> None:
        super().__init__(store, plan, table, serde, job, memory=memory)
        self._threads = threads
        self._rebuilder = Rebuilder(
            store, plan, table, self._folder, self._job, keep_unknown=not recovered
        )

    def _is_idle(self, manifest: PartitionManifest) -> bool:
        return False

    def _change_kept(self, following: PartitionManifest, folder: Path) -> KeptChange:
        return dropped(following.kept)

    def _to_publish(self, fresh: pa.Table) -> list[tuple[str, pa.Table]]:
        found = dict(by_thread(fresh))
        for run in self._plan.manifest.runs:
            for table in self._store.runs.columns(run, ["thread_id"]):
                for thread_id in table["thread_id"].unique().to_pylist():
                    if self._wants(thread_id):
                        found.setdefault(thread_id, SCHEMA.empty_table())
        return sorted(found.items())

    def _wants(self, thread_id: str) -> bool:
        return not self._threads or thread_id in self._threads

    def _publish(self, thread_id: str, records: Sequence[Record]) -> PublishResult:
        publisher = self._rebuilder if self._wants(thread_id) else self._publisher
        return publisher.publish(thread_id, records)


class Rebuilder(Publisher):
    """Publishes threads from their whole history, as if no job had ever published them."""

    def __init__(
        self,
        store: LogStore,
        plan: Plan,
        table: ChannelTable,
        folder: Folder,
        job: str,
        *,
        keep_unknown: bool,
    ) -> None:
        """Publish for a job that began from `plan`.

        Args:
            store, plan, table, folder, job: as of every publisher.
            keep_unknown: keep the snapshots of channels whose reducer nobody named. Those
                of jobs that may never have committed are not to be kept.
        """
        super().__init__(store, plan, table, folder, job, whole=True)
        self._keep_unknown = keep_unknown

    def _current(self, thread_id: str) -> ManifestVersion:
        """The thread's manifest; a damaged one counts as empty."""
        try:
            found = super()._current(thread_id)
            if found.manifest.thread_id == thread_id:
                return found
            etag = found.etag
        except CorruptObjectError as error:
            logger.warning("%s; it is made anew", error)
            key = snapshot_manifest_key(self._plan.partition, thread_id)
            etag = self._store.objects.get(key).etag
        return ManifestVersion(SnapshotManifest(thread_id), etag)

    def _advance(
        self,
        old: SnapshotManifest,
        records: Sequence[Record],
        result: PublishResult,
        uploads: Uploads,
    ) -> SnapshotManifest:
        now = self._plan.listing.date
        merged = dict.fromkeys(self._plan.manifest.merged, now)
        blank = SnapshotManifest(
            old.thread_id,
            # A lost manifest's number is not known; it grows with those of the partition's.
            generation=max(old.generation, self._plan.generation),
            merged={**merged, **old.merged},
            retired={**dict.fromkeys(old.object_keys, now), **old.retired},
        )
        return super()._advance(blank, records, result, uploads)

    def _settle(
        self, read: ThreadRead, old: SnapshotManifest, result: PublishResult, uploads: Uploads
    ) -> tuple[list[Record], Digest]:
        former = [r for r in merge(read.view.records).values() if self._is_remade(r)]
        own = [r for r in read.view.records if not self._is_remade(r)]
        bare = replace(read, view=ThreadView(read.view.thread_id, own))
        entries, kept = super()._settle(bare, old, result, uploads)
        work = result.work
        made = {_place(r) for r in work.made} | work.unreached
        for snapshot in former:
            if snapshot.encoding != Encoding.VOID and _place(snapshot) not in made:
                work.made.append(self._void(snapshot))
        return entries, kept

    def _is_remade(self, record: Record) -> bool:
        if record.kind != Kind.SNAPSHOT:
            return False
        spec = self._table.spec(record.thread_id, record.checkpoint_ns, record.channel or "")
        return spec is not None or not self._keep_unknown


def _place(snapshot: Record) -> Place:
    return snapshot.checkpoint_ns, snapshot.checkpoint_id, snapshot.channel or ""
