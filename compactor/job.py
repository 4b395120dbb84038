"""One compaction job, as its steps: plan, collect, publish, merge, commit.

Safety rests on compare-and-swap alone. Two jobs at once, or one that slept for a day, can
waste work; they cannot lose or double anything.
"""

from __future__ import annotations

import logging
import secrets
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from langgraph.checkpoint.serde.base import SerializerProtocol

from compactor.backlog import BatchLimit
from compactor.cleaning.dropping import HIDDEN_GRACE_S, Dropper, threads_due
from compactor.cleaning.sweep import SWEEP_INTERVAL_S, Sweep, Swept
from compactor.commit import commit
from compactor.copies import keep_copy
from compactor.folding.channels import ChannelTable
from compactor.folding.fold import Folder
from compactor.keeping.tables import Keeper, KeptChange, check_keep
from compactor.memory import MemoryBudget
from compactor.merging.merger import MergeOutput, Merger
from compactor.merging.spill import SortedChunks
from compactor.plan import (
    Plan,
    deleted_threads,
    last_commit,
    make_plan,
    orphans,
    plan_without_segments,
)
from compactor.publishing.publish import LostJob, Publisher, PublishResult
from compactor.publishing.threads import Published, by_thread, publish_threads
from compactor.report import Outcome, PartitionReport, Report
from logstore.errors import (
    InvalidOptionError,
    ObjectNotFoundError,
)
from logstore.keys import is_run_key
from logstore.manifest import HiddenRows, PartitionManifest
from logstore.memory import return_freed
from logstore.reader import until_stable
from logstore.records import Record
from logstore.store import LogStore, Settings
from logstore.tail import StartAgain

logger = logging.getLogger(__name__)
Progress = Callable[[PartitionReport], None]
BATCH_SEGMENTS = 500
"""A job whose time is limited commits after so many segments."""


class Job:
    """A compaction job over the partitions of one store."""

    def __init__(
        self,
        store: LogStore,
        table: ChannelTable,
        serde: SerializerProtocol,
        *,
        parallel: int = 8,
        purge: bool = False,
        max_runtime_s: float | None = None,
        memory: MemoryBudget | None = None,
        hidden_grace_s: float = HIDDEN_GRACE_S,
        keep: Collection[str] = (),
    ) -> None:
        """Compact `store`, folding what `table` names with `serde`.

        Args:
            store: an open store.
            table: the channels that may be folded.
            serde: the saver's serde.
            parallel: how many threads' manifests are updated at a time.
            purge: keep what was replaced for the short grace only, and look for what was left
                over at once.
            max_runtime_s: begin nothing after so many seconds; what was done is committed,
                and the next job goes on with the partitions that have waited longest.
            memory: what it may hold; `store` is best opened with its `store_options`.
            hidden_grace_s: how long hidden checkpoints are kept at least.
            keep: the tables to keep for analytics, of `messages` and `tool_calls`.

        Raises:
            InvalidOptionError: another table is to be kept.
        """
        self.id = f"job{secrets.token_hex(8)}"
        self._store = store
        self._table = table
        self._serde = serde
        self._parallel = parallel
        self._purge = purge
        self._max_runtime_s = max_runtime_s
        self._memory = memory or MemoryBudget()
        self._hidden_grace_s = hidden_grace_s
        self._keep = check_keep(keep)

    def run(
        self, partitions: Collection[int] | None = None, progress: Progress | None = None
    ) -> Report:
        """Compact all partitions, or the ones given.

        Raises:
            InvalidOptionError: the store has no such partition.
            ObjectNotFoundError: there is no store.
        """
        begun = time.monotonic()
        settings = self._store.settings()
        if settings is None:
            raise ObjectNotFoundError(
                f"there is no store at {self._store.uri}; check the URI, or create one with "
                "`logstore init`"
            )
        waiting = self._in_order(_known(self._store.uri, settings, partitions))
        until = float("inf") if self._max_runtime_s is None else begun + self._max_runtime_s
        reports: list[PartitionReport] = []
        while waiting and (not reports or time.monotonic() < until):
            reports.append(self._partition(settings, waiting.pop(0), until))
            if progress is not None:
                progress(reports[-1])
        unfinished = sorted([*waiting, *(r.partition for r in reports if r.segments_left)])
        reports.sort(key=lambda report: report.partition)
        elapsed_s = time.monotonic() - begun
        return Report(self._store.uri, tuple(reports), elapsed_s, tuple(unfinished))

    def _in_order(self, partitions: Sequence[int]) -> list[int]:
        """Those first that have waited longest, if there may not be time for all."""
        if self._max_runtime_s is None:
            return list(partitions)
        return sorted(partitions, key=lambda number: last_commit(self._store, number) or 0.0)

    def _partition(self, settings: Settings, partition: int, until: float) -> PartitionReport:
        """Commit after commit, until one has merged all segments that it found."""
        report = self._attempt(settings, partition)
        while report.segments_left and report.outcome == Outcome.COMMITTED:
            if time.monotonic() >= until:
                break
            report = report.then(self._attempt(settings, partition))
        if report.outcome == Outcome.LOST or not report.hiding or time.monotonic() >= until:
            return report
        return report.then(self._drop(settings, partition, report))

    def _drop(self, settings: Settings, partition: int, report: PartitionReport) -> PartitionReport:
        """Drop what was hidden long enough; what another job committed meanwhile can wait."""
        nothing = PartitionReport(
            partition, report.outcome, hiding=report.hiding, waiting=report.waiting
        )
        plan = until_stable(lambda: plan_without_segments(self._store, settings, partition))
        # A writer may have seen something just before it was hidden, and build on it yet.
        grace_s = max(self._hidden_grace_s, settings.short_grace_s)
        threads = threads_due(plan, grace_s)
        if not threads:
            return nothing
        dropper = Dropper(self._store, plan, self._table, self._serde, self.id, self._memory)
        try:
            return dropper.run(threads, grace_s)
        except (LostJob, StartAgain):
            logger.info("partition %d: another job committed first", partition)
            return nothing
        finally:
            return_freed()

    def _attempt(self, settings: Settings, partition: int) -> PartitionReport:
        job = self._begin(settings, partition)
        try:
            return job.run(self._parallel)
        except StartAgain as error:
            job.check_lost(error)
        except LostJob:
            pass
        finally:
            return_freed()
        logger.info("partition %d: another job committed first", partition)
        return PartitionReport(partition, Outcome.LOST)

    def _begin(self, settings: Settings, partition: int) -> PartitionJob:
        plan = until_stable(lambda: make_plan(self._store, settings, partition, self._limit))
        return PartitionJob(
            self._store,
            plan,
            self._table,
            self._serde,
            self.id,
            purge=self._purge,
            memory=self._memory,
            keep=self._keep,
        )

    @property
    def _limit(self) -> BatchLimit:
        """How much one commit takes."""
        segments = None if self._max_runtime_s is None else BATCH_SEGMENTS
        return BatchLimit(self._memory.batch, segments)


def _known(uri: str, settings: Settings, partitions: Collection[int] | None) -> list[int]:
    wanted = range(settings.partitions) if partitions is None else sorted(set(partitions))
    for partition in wanted:
        if not 0 <= partition < settings.partitions:
            raise InvalidOptionError(
                f"the store {uri} has partitions 0 to {settings.partitions - 1}, not {partition}"
            )
    return list(wanted)


class PartitionJob:
    """A job in one partition."""

    def __init__(
        self,
        store: LogStore,
        plan: Plan,
        table: ChannelTable,
        serde: SerializerProtocol,
        job: str,
        *,
        purge: bool = False,
        memory: MemoryBudget | None = None,
        keep: frozenset[str] = frozenset(),
    ) -> None:
        """Carry out `plan`; `purge`, `memory` and `keep` as in `Job`."""
        self._memory = memory or MemoryBudget()
        self._purge = purge
        settings = plan.settings
        self._grace_s = settings.short_grace_s if purge else settings.long_grace_s
        self._store = store
        self._plan = plan
        # A job object may run again: what it commits must not be taken for an earlier commit.
        self._job = f"{job}.{plan.partition}.{secrets.token_hex(4)}"
        self._folder = Folder(serde, self._job, plan.generation, store.stamp)
        self._publisher = Publisher(store, plan, table, self._folder, self._job)
        self._keeper = Keeper(store, plan, self._job, keep, self._memory)

    def run(self, parallel: int = 8) -> PartitionReport:
        """Do it.

        Raises:
            LostJob: another job committed first.
        """
        plan = self._plan
        report = PartitionReport(
            plan.partition,
            unreadable=dict(plan.unreadable),
            segments_left=plan.left,
            hiding=len(plan.manifest.hidden),
        )
        manifest, report = self._collect(report)
        sweeps = self._sweeps()
        condemned: list[str] = []
        if plan.tail.segments or sweeps:
            condemned = orphans(self._store, plan, tables=sweeps)
        idle = self._is_idle(manifest) and not sweeps
        if idle and not self._keeper.is_due:
            return report
        if sweeps or not manifest.generation:  # before the first commit there is nothing to find
            manifest = replace(manifest, swept=plan.listing.date)
        with tempfile.TemporaryDirectory(prefix="compactor-") as folder:
            published, output = self._publish_and_merge(Path(folder), parallel)
            report = replace(report, unreadable={**report.unreadable, **self._publisher.lost.found})
            report = _count(report, plan, published, output)
            committed = self._next_manifest(manifest, output, condemned, published, report)
            change = self._change_kept(committed, Path(folder))
        if idle and change.kept == manifest.kept:
            return report
        committed = change.applied_to(committed)
        swept = Swept()
        if sweeps:
            swept = Sweep(self._store, plan, committed, self._job, self._grace_s).run()
            committed = replace(committed, condemned=(*committed.condemned, *swept.gone))
        size = change.bytes_written + commit(self._store, committed, plan.etag)
        if committed.condemned:
            self._store.objects.delete(committed.condemned)
        return replace(
            report,
            outcome=Outcome.COMMITTED,
            bytes_written=report.bytes_written + size,
            threads_kept=change.threads,
            objects_deleted=report.objects_deleted + len(committed.condemned),
            hiding=len(committed.hidden),
            waiting=len(committed.merged) + len(committed.retired) + swept.waiting,
        )

    def check_lost(self, error: StartAgain) -> None:
        """Tell an object that another job deleted from one that is missing.

        Raises:
            LostObjectError: no other job has committed.
        """
        lost = self._publisher.lost.judge(error)
        if lost is not None:
            raise lost from error

    def _sweeps(self) -> bool:
        """Whether to look for snapshot objects that are left over."""
        manifest, now = self._plan.manifest, self._plan.listing.date
        due = now - manifest.swept >= SWEEP_INTERVAL_S
        return self._purge or (due and manifest.generation > 0)

    def _is_idle(self, manifest: PartitionManifest) -> bool:
        """Whether there is nothing to commit; `manifest` is without what was collected."""
        return not self._plan.tail.segments and manifest == self._plan.manifest

    # -- garbage -----------------------------------------------------------------

    def _collect(self, report: PartitionReport) -> tuple[PartitionManifest, PartitionReport]:
        """Delete what the manifest has listed for longer than its grace.

        What a committed manifest lists as merged or replaced stays so: deleting it is safe
        whoever commits next. An entry leaves the manifest only after its DELETE. A copy of the
        manifest is stored before, so that its loss can take nothing with it.
        """
        manifest, expired = self._plan.manifest, self._plan.expired(self._grace_s)
        gone = [*expired.merged, *expired.retired, *manifest.condemned]
        runs = [key for key in expired.retired if is_run_key(key)]
        if gone:
            keep_copy(self._store, self._plan)
            self._store.objects.delete(gone)
        report = replace(
            report,
            segments_deleted=len(expired.merged),
            runs_deleted=len(runs),
            objects_deleted=len(expired.retired) - len(runs) + len(manifest.condemned),
        )
        left = replace(
            manifest,
            merged={k: t for k, t in manifest.merged.items() if k not in expired.merged},
            retired={k: t for k, t in manifest.retired.items() if k not in expired.retired},
            condemned=(),
        )
        return left, report

    # -- publishing and merging ----------------------------------------------------

    def _publish_and_merge(self, folder: Path, parallel: int) -> tuple[Published, MergeOutput]:
        made = SortedChunks(folder, self._memory.chunk)
        threads = self._to_publish(self._plan.fresh)
        published = publish_threads(self._publish, threads, made, parallel, self._memory.publishing)
        return_freed()
        merger = Merger(self._store, self._plan, self._publisher, self._job, folder, self._memory)
        return published, merger.run(made)

    def _to_publish(self, fresh: pa.Table) -> Iterable[tuple[str, pa.Table]]:
        """The threads to publish, each with its new rows."""
        return by_thread(fresh)

    def _publish(self, thread_id: str, records: Sequence[Record]) -> PublishResult:
        return self._publisher.publish(thread_id, records)

    # -- committing --------------------------------------------------------------

    def _change_kept(self, following: PartitionManifest, folder: Path) -> KeptChange:
        """What becomes of the tables that are kept."""
        fresh = self._plan.fresh
        touched = fresh["thread_id"].unique().to_pylist()
        return self._keeper.run(following, touched, deleted_threads(fresh), folder)

    def _next_manifest(
        self,
        left: PartitionManifest,
        output: MergeOutput,
        condemned: Sequence[str],
        published: Published,
        report: PartitionReport,
    ) -> PartitionManifest:
        return PartitionManifest(
            partition=left.partition,
            generation=self._plan.generation,
            job=self._job,
            runs=output.applied_to(left.runs),
            merged={**left.merged, **dict.fromkeys(self._plan.tail.segments)},
            retired={**left.retired, **dict.fromkeys(sorted(output.replaced))},
            condemned=tuple(condemned),
            hidden=_hidden(left, published),
            unfolded=report.unfolded if report.manifests else left.unfolded,
            changed=report.changed if report.manifests else left.changed,
            swept=left.swept,
            kept=left.kept,
            totals=_totals(left, report),
        )


def _hidden(left: PartitionManifest, published: Published) -> dict[str, HiddenRows]:
    """The threads whose hidden rows wait to be dropped, those that were published included."""
    found = {t: rows for t, rows in left.hidden.items() if t not in published.shown_whole}
    return {**dict.fromkeys(published.hiding, HiddenRows(None)), **found}


def _count(
    report: PartitionReport, plan: Plan, published: Published, output: MergeOutput
) -> PartitionReport:
    return replace(
        report,
        segments_merged=len(plan.tail.segments),
        runs_merged=len(output.replaced),
        runs_written=len(output.runs),
        rows_written=sum(run.rows for run in output.runs),
        bytes_read=output.bytes_read,
        run_bytes_written=sum(run.size for run in output.runs),
        bytes_written=sum(run.size for run in output.runs)
        + output.object_bytes
        + published.bytes_written,
        snapshots=published.snapshots,
        voided=published.voided,
        retired=published.retired,
        manifests=published.manifests,
        unfolded=published.unfolded,
        changed=published.changed,
    )


def _totals(left: PartitionManifest, report: PartitionReport) -> dict[str, int]:
    """The partition's sums over all jobs, this one's counted in."""
    counted = {
        "jobs": 1,
        "segments_merged": report.segments_merged,
        "bytes_read": report.bytes_read,
        "bytes_written": report.bytes_written,
        "run_bytes_written": report.run_bytes_written,
        "snapshots": report.snapshots,
    }
    return {name: left.totals.get(name, 0) + number for name, number in counted.items()}
