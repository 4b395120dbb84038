"""One compaction job, as its steps: plan, collect, publish, merge, commit.

Safety rests on compare-and-swap alone. Two jobs at once, or one that slept for a day, can
waste work; they cannot lose or double anything.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from langgraph.checkpoint.serde.base import SerializerProtocol

from compactor.channels import ChannelTable
from compactor.fold import Folder
from compactor.merge import merge_tables, write_run
from compactor.plan import Plan, Tier, choose_tier, deleted_threads, last_commit, make_plan, orphans
from compactor.publish import LostJob, Publisher, PublishResult
from compactor.rebase import chains_to_rebase, rebase_thread
from compactor.report import Outcome, PartitionReport, Report
from compactor.sweep import SWEEP_INTERVAL_S, Swept, sweep
from logstore.errors import (
    ConditionFailedError,
    InvalidOptionError,
    ObjectNotFoundError,
    OutcomeUnknownError,
)
from logstore.keys import partition_manifest_key, run_key
from logstore.lanes import store_once
from logstore.manifest import PartitionManifest, RunEntry
from logstore.reader import until_stable
from logstore.records import Record
from logstore.segment import records_to_table, table_to_records
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
        """
        self.id = f"job{secrets.token_hex(8)}"
        self._store = store
        self._table = table
        self._serde = serde
        self._parallel = parallel
        self._purge = purge
        self._max_runtime_s = max_runtime_s

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
        report = self._attempt(settings, partition)
        while report.segments_left and report.outcome == Outcome.COMMITTED:
            if time.monotonic() >= until:
                break
            report = report.then(self._attempt(settings, partition))
        return report

    def _attempt(self, settings: Settings, partition: int) -> PartitionReport:
        try:
            return self._begin(settings, partition).run(self._parallel)
        except (LostJob, StartAgain):
            logger.info("partition %d: another job committed first", partition)
            return PartitionReport(partition, Outcome.LOST)

    def _begin(self, settings: Settings, partition: int) -> PartitionJob:
        plan = until_stable(lambda: make_plan(self._store, settings, partition))
        batch = plan if self._max_runtime_s is None else plan.oldest(BATCH_SEGMENTS)
        job = PartitionJob(self._store, batch, self._table, self._serde, self.id, purge=self._purge)
        job.segments_left = len(plan.tail.segments) - len(batch.tail.segments)
        return job


def _known(uri: str, settings: Settings, partitions: Collection[int] | None) -> list[int]:
    wanted = range(settings.partitions) if partitions is None else sorted(set(partitions))
    for partition in wanted:
        if not 0 <= partition < settings.partitions:
            raise InvalidOptionError(
                f"the store {uri} has partitions 0 to {settings.partitions - 1}, not {partition}"
            )
    return list(wanted)


@dataclass(frozen=True)
class _Output:
    """What a job wants to commit."""

    tier: Tier
    run: RunEntry | None
    bytes_read: int


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
    ) -> None:
        """Carry out `plan`; `purge` as in `Job`."""
        self.segments_left = 0
        """How many of the log's segments the plan leaves to the next job."""
        self._purge = purge
        settings = plan.settings
        self._grace_s = settings.short_grace_s if purge else settings.long_grace_s
        self._store = store
        self._plan = plan
        # A job object may run again: what it commits must not be taken for an earlier commit.
        self._job = f"{job}.{plan.partition}.{secrets.token_hex(4)}"
        self._folder = Folder(serde, self._job, plan.generation, store.stamp)
        self._publisher = Publisher(store, plan, table, self._folder, self._job)

    def run(self, parallel: int = 8) -> PartitionReport:
        """Do it.

        Raises:
            LostJob: another job committed first.
        """
        plan = self._plan
        report = PartitionReport(
            plan.partition, unreadable=dict(plan.unreadable), segments_left=self.segments_left
        )
        manifest, report = self._collect(report)
        sweeps = self._sweeps()
        condemned = orphans(self._store, plan) if plan.tail.segments or sweeps else []
        if self._is_idle(manifest) and not sweeps:
            return report
        if sweeps:
            manifest = replace(manifest, swept=plan.listing.date)
        fresh = plan.fresh_table()
        results = self._publish(fresh, parallel)
        made = [r for result in results for r in (*result.work.made, *result.tombstones)]
        output = self._merge(fresh, made)
        report = _count(report, plan, results, output)
        committed = self._next_manifest(manifest, output, condemned, report)
        size = self._commit(committed)
        if condemned:
            self._store.objects.delete(condemned)
        swept = sweep(self._store.objects, plan, self._job, self._grace_s) if sweeps else Swept()
        return replace(
            report,
            outcome=Outcome.COMMITTED,
            bytes_written=report.bytes_written + size,
            objects_deleted=report.objects_deleted + len(condemned) + swept.deleted,
            waiting=len(committed.merged) + len(committed.retired) + swept.waiting,
        )

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
        whoever commits next. An entry leaves the manifest only after its DELETE.
        """
        manifest, expired = self._plan.manifest, self._plan.expired(self._grace_s)
        gone = [*expired.merged, *expired.retired, *manifest.condemned]
        if gone:
            self._store.objects.delete(gone)
        report = replace(
            report,
            segments_deleted=len(expired.merged),
            runs_deleted=len(expired.retired),
            objects_deleted=len(manifest.condemned),
        )
        left = replace(
            manifest,
            merged={k: t for k, t in manifest.merged.items() if k not in expired.merged},
            retired={k: t for k, t in manifest.retired.items() if k not in expired.retired},
            condemned=(),
        )
        return left, report

    # -- publishing --------------------------------------------------------------

    def _publish(self, fresh: pa.Table, parallel: int) -> list[PublishResult]:
        threads = self._to_publish(fresh)
        with ThreadPoolExecutor(parallel, "compactor") as pool:
            return list(pool.map(lambda item: self._publisher_of(item[0]).publish(*item), threads))

    def _to_publish(self, fresh: pa.Table) -> list[tuple[str, list[Record]]]:
        """The threads to publish, each with its new records."""
        return by_thread(fresh)

    def _publisher_of(self, thread_id: str) -> Publisher:
        return self._publisher

    # -- merging -----------------------------------------------------------------

    def _merge(self, fresh: pa.Table, made: Sequence[Record]) -> _Output:
        plan = self._plan
        if not fresh.num_rows and not made:
            return _Output(Tier((), 0), None, 0)
        tier = choose_tier(plan.manifest, self._store.runs, deleted_threads(fresh))
        tables = [fresh, records_to_table(made)]
        tables += [self._store.runs.whole(run) for run in tier.inputs]
        merged = self._rebased(merge_tables(tables), fresh)
        read = fresh.nbytes + sum(run.size for run in tier.inputs)
        if not merged.num_rows:
            return _Output(tier, None, read)
        body = write_run(merged, {"job": self._job, "generation": plan.generation})
        key = run_key(plan.partition, tier.level, secrets.token_hex(12))
        store_once(self._store.objects, key, body)
        threads = merged["thread_id"]
        bounds = pc.min_max(threads)
        run = RunEntry(
            key=key,
            level=tier.level,
            rows=merged.num_rows,
            size=len(body),
            first_thread=bounds["min"].as_py(),
            last_thread=bounds["max"].as_py(),
            generation=plan.generation,
        )
        return _Output(tier, run, read)

    def _rebased(self, merged: pa.Table, fresh: pa.Table) -> pa.Table:
        """The table with long chains of patches numbered and patched anew."""
        threads = pa.array(sorted(chains_to_rebase(merged)), pa.string())
        if not len(threads):
            return merged
        mask = pc.is_in(merged["thread_id"], threads)
        new = dict(by_thread(fresh.filter(pc.is_in(fresh["thread_id"], threads))))
        parts = [merged.filter(pc.invert(mask))]
        for thread_id, rows in by_thread(merged.filter(mask)):
            read = self._publisher.whole_thread(thread_id, [*new.get(thread_id, ()), *rows])
            decoder = self._store.reader.decoder(read)
            parts.append(records_to_table(rebase_thread(read, rows, decoder)))
        return merge_tables(parts)

    # -- committing --------------------------------------------------------------

    def _next_manifest(
        self,
        left: PartitionManifest,
        output: _Output,
        condemned: Sequence[str],
        report: PartitionReport,
    ) -> PartitionManifest:
        replaced = {run.key for run in output.tier.inputs}
        runs = [run for run in left.runs if run.key not in replaced]
        if output.run is not None:
            runs.append(output.run)
        return PartitionManifest(
            partition=left.partition,
            generation=self._plan.generation,
            job=self._job,
            runs=tuple(runs),
            merged={**left.merged, **dict.fromkeys(self._plan.tail.segments)},
            retired={**left.retired, **dict.fromkeys(replaced)},
            condemned=tuple(condemned),
            unfolded=report.unfolded if report.manifests else left.unfolded,
            changed=report.changed if report.manifests else left.changed,
            swept=left.swept,
            totals=_totals(left, report),
        )

    def _commit(self, manifest: PartitionManifest) -> int:
        """Commit by compare-and-swap. Whatever the outcome, this job's runs stay.

        A lost answer may hide a commit that went through; deleting the runs of a supposed
        loser would then delete live ones.
        """
        key = partition_manifest_key(manifest.partition)
        body = manifest.encode()
        try:
            self._store.objects.compare_and_swap(key, body, self._plan.etag)
        except (ConditionFailedError, OutcomeUnknownError):
            found, _ = self._store.reader.partition_manifest(manifest.partition)
            if found.job != self._job:
                raise LostJob from None
        return len(body)


def by_thread(table: pa.Table) -> list[tuple[str, list[Record]]]:
    """A table's records by thread."""
    ordered = table.take(pc.sort_indices(table["thread_id"]))
    threads = ordered["thread_id"].combine_chunks()
    found: list[tuple[str, list[Record]]] = []
    start = 0
    if not table.num_rows:
        return found
    for end in pc.run_end_encode(threads).run_ends.to_pylist():
        part = ordered.slice(start, end - start)
        found.append((threads[start].as_py(), table_to_records(part)))
        start = end
    return found


def _count(
    report: PartitionReport, plan: Plan, results: Sequence[PublishResult], output: _Output
) -> PartitionReport:
    unfolded: dict[str, str] = {}
    changed: dict[str, str] = {}
    for result in results:
        unfolded.update(result.work.unfolded)
        changed.update(result.work.changed)
    run_size = output.run.size if output.run else 0
    return replace(
        report,
        segments_merged=len(plan.tail.segments),
        runs_merged=len(output.tier.inputs),
        runs_written=1 if output.run else 0,
        rows_written=output.run.rows if output.run else 0,
        bytes_read=output.bytes_read,
        bytes_written=run_size + sum(r.bytes_written for r in results),
        snapshots=sum(m.encoding != "void" for r in results for m in r.work.made),
        voided=sum(r.work.voided for r in results),
        retired=sum(r.work.retired for r in results),
        manifests=len(results),
        objects_deleted=report.objects_deleted + sum(r.objects_deleted for r in results),
        unfolded=unfolded,
        changed=changed,
    )


def _totals(left: PartitionManifest, report: PartitionReport) -> dict[str, int]:
    """The partition's sums over all jobs, this one's counted in."""
    counted = {
        "jobs": 1,
        "segments_merged": report.segments_merged,
        "bytes_read": report.bytes_read,
        "bytes_written": report.bytes_written,
        "snapshots": report.snapshots,
    }
    return {name: left.totals.get(name, 0) + number for name, number in counted.items()}
