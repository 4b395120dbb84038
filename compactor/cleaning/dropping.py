"""The commit that drops what was hidden long enough: runs written anew without it.

It comes after a job's other commits, takes no segments, and changes only the runs that hold the
threads in question. See FORMAT.md, section 8.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from langgraph.checkpoint.serde.base import SerializerProtocol

from compactor.cleaning.drop import Drop, plan_drop
from compactor.commit import commit
from compactor.folding.channels import ChannelTable
from compactor.folding.fold import Folder
from compactor.keeping.tables import Keeper, KeptChange
from compactor.memory import MemoryBudget
from compactor.merging.merge import merge_tables
from compactor.merging.output import RunWriter
from compactor.merging.placing import ValuePlacer
from compactor.plan import Plan, holds_any
from compactor.publishing.publish import Publisher
from compactor.report import Outcome, PartitionReport
from logstore.keys import SegmentName
from logstore.manifest import HiddenRows, PartitionManifest, RunEntry
from logstore.reader import ThreadRead
from logstore.records import Record, RowName, ValueRef, name_of_row
from logstore.segment import records_to_table, table_to_records
from logstore.store import LogStore
from logstore.view import ThreadView

HIDDEN_GRACE_S = 86_400.0
"""What is hidden is dropped so long after at the earliest: a fork from it may be under way."""


def threads_due(plan: Plan, grace_s: float) -> list[str]:
    """The threads that hid something long enough ago, and of which no segment waits.

    Args:
        plan: of the partition; its segments are not merged by this commit.
        grace_s: how long what is hidden stays.
    """
    now = plan.listing.date
    waiting = [SegmentName.parse(key) for key in plan.listing.arrived.keys() - plan.manifest.merged]
    return [
        thread_id
        for thread_id, rows in sorted(plan.manifest.hidden.items())
        if rows.since is not None
        and rows.since + grace_s <= now
        and not any(name.may_hold(thread_id) for name in waiting)
    ]


@dataclass(frozen=True)
class _Rewrite:
    """What becomes of the rows of a partition."""

    gone: frozenset[RowName]
    changed: Mapping[RowName, Record]


class _PublisherAfter(Publisher):
    """Publishes a thread as it is after a drop that is about to be committed."""

    def __init__(
        self,
        drop: Drop,
        store: LogStore,
        plan: Plan,
        table: ChannelTable,
        folder: Folder,
        job: str,
    ) -> None:
        super().__init__(store, plan, table, folder, job, whole=True)
        self._drop = drop

    def whole_thread(self, thread_id: str, fresh: Sequence[Record]) -> ThreadRead:
        read = super().whole_thread(thread_id, fresh)
        records = [*self._drop.applied_to(read.view.records), *self._drop.seeds]
        return replace(read, view=ThreadView(thread_id, records))


class Dropper:
    """Drops hidden rows of a partition, in one commit."""

    def __init__(
        self,
        store: LogStore,
        plan: Plan,
        table: ChannelTable,
        serde: SerializerProtocol,
        job: str,
        memory: MemoryBudget,
    ) -> None:
        """Begin from a plan that takes no segments.

        Args:
            store: the store.
            plan: what `plan_without_segments` gave.
            table: the channels that may be folded.
            serde: the saver's serde.
            job: the job's id.
            memory: what it may hold.
        """
        self._store = store
        self._plan = plan
        self._table = table
        self._memory = memory
        self._job = f"{job}.{plan.partition}.{secrets.token_hex(4)}"
        self._folder = Folder(serde, self._job, plan.generation, store.stamp)
        self._publisher = Publisher(store, plan, table, self._folder, self._job, whole=True)
        # What is kept of the threads is marked as stale; the next job makes it anew.
        self._keeper = Keeper(store, plan, self._job, frozenset(), memory)

    def run(self, threads: Sequence[str], grace_s: float) -> PartitionReport:
        """Drop what can go of some threads.

        Args:
            threads: what `threads_due` gave.
            grace_s: how long what is hidden stays.

        Raises:
            LostJob: another job committed first.
            StartAgain: a run is gone: another job has committed.
        """
        added: list[Record] = []
        drops = {thread_id: self._decide(thread_id, grace_s, added) for thread_id in threads}
        rewrite = _Rewrite(
            frozenset().union(*(drop.gone for drop in drops.values())),
            {name: record for drop in drops.values() for name, record in drop.changed.items()},
        )
        touched = [thread_id for thread_id, drop in drops.items() if drop.gone]
        with tempfile.TemporaryDirectory(prefix="compactor-") as folder:
            runs = self._rewritten(Path(folder), rewrite, touched)
            extra = self._of_added(Path(folder), added)
            following = self._following(drops, runs, extra)
            changed = {*touched, *(record.thread_id for record in added)}
            kept = self._keeper.run(following, changed, touched, Path(folder))
        return self._commit(kept.applied_to(following), runs, extra, kept, len(rewrite.gone))

    def _decide(self, thread_id: str, grace_s: float, added: list[Record]) -> Drop:
        """What goes of a thread; what stands for it is put into `added`."""
        made = self._publisher.publish(thread_id, ()).work.made
        read = self._publisher.whole_thread(thread_id, made)
        decoder = self._publisher.lost.decoder(read)
        before = round((self._plan.listing.date - grace_s) * 1e6)
        drop = plan_drop(read.view, self._table, decoder, before)
        added.extend((*drop.applied_to(made), *drop.seeds))
        if drop.gone:
            # No later job may find in the manifest what the runs do not have.
            after = _PublisherAfter(
                drop, self._store, self._plan, self._table, self._folder, self._job
            )
            added.extend(after.publish(thread_id, made).work.made)
        return drop

    # -- rewriting ---------------------------------------------------------------

    def _rewritten(
        self, folder: Path, rewrite: _Rewrite, threads: Sequence[str]
    ) -> dict[str, tuple[RunEntry, ...]]:
        """For each run that holds one of the threads: what takes its place."""
        return {
            run.key: tuple(self._rewrite_run(folder, run, rewrite, threads))
            for run in self._plan.manifest.runs
            if holds_any(run, self._store.runs, threads)
        }

    def _rewrite_run(
        self, folder: Path, run: RunEntry, rewrite: _Rewrite, threads: Sequence[str]
    ) -> list[RunEntry]:
        writer = self._writer(folder, run.level, (run.sequence, run.part))
        placer = self._placer()
        for rows in self._store.runs.batches(run, self._memory.window):
            writer.add(placer.placed(_without_dropped(rows, rewrite, threads)))
        return writer.close()

    def _of_added(self, folder: Path, added: Sequence[Record]) -> list[RunEntry]:
        if not added:
            return []
        writer = self._writer(folder, 0, None)
        writer.add(self._placer().placed(merge_tables([records_to_table(added)])))
        return writer.close()

    def _placer(self) -> ValuePlacer:
        return ValuePlacer(self._store, self._plan)

    def _writer(self, folder: Path, level: int, place: tuple[str, int] | None) -> RunWriter:
        return RunWriter(
            self._store.objects,
            folder,
            self._plan.partition,
            level,
            self._plan.generation,
            self._job,
            max_bytes=None,
            place=place,
        )

    # -- committing --------------------------------------------------------------

    def _following(
        self,
        drops: Mapping[str, Drop],
        runs: Mapping[str, tuple[RunEntry, ...]],
        extra: Sequence[RunEntry],
    ) -> PartitionManifest:
        """The next manifest, but for the kept tables."""
        manifest = self._plan.manifest
        hidden = dict(manifest.hidden)
        for thread_id, drop in drops.items():
            if drop.later or drop.kept_because:
                hidden[thread_id] = HiddenRows(None, drop.kept_because)
            else:
                del hidden[thread_id]
        left = (new for run in manifest.runs for new in runs.get(run.key, (run,)))
        return replace(
            manifest,
            generation=self._plan.generation,
            job=self._job,
            runs=(*left, *extra),
            retired={**manifest.retired, **dict.fromkeys(runs)},
            hidden=hidden,
        )

    def _commit(
        self,
        following: PartitionManifest,
        runs: Mapping[str, tuple[RunEntry, ...]],
        extra: Sequence[RunEntry],
        kept: KeptChange,
        rows: int,
    ) -> PartitionReport:
        written = [*(new for entries in runs.values() for new in entries), *extra]
        size = kept.bytes_written + commit(self._store, following, self._plan.etag)
        return PartitionReport(
            following.partition,
            Outcome.COMMITTED,
            runs_merged=len(runs),
            runs_written=len(written),
            rows_written=sum(run.rows for run in written),
            bytes_written=size + sum(run.size for run in written),
            hiding=len(following.hidden),
            rows_dropped=rows,
            waiting=len(following.merged) + len(following.retired),
        )


def _without_dropped(rows: pa.Table, rewrite: _Rewrite, threads: Sequence[str]) -> pa.Table:
    """Rows of a run without those that go, the changed ones in the place of others."""
    mask = pc.is_in(rows["thread_id"], pa.array(threads, pa.string()))
    others = rows.filter(pc.invert(mask))
    if others.num_rows == rows.num_rows:
        return rows
    kept = [
        _changed(record, rewrite)
        for record in table_to_records(rows.filter(mask))
        if name_of_row(record) not in rewrite.gone
    ]
    return merge_tables([others, records_to_table(kept)])


def _changed(record: Record, rewrite: _Rewrite) -> Record:
    changed = rewrite.changed.get(name_of_row(record))
    if changed is None:
        return record
    if isinstance(changed.value, ValueRef):
        return changed._replace(value=record.value)
    return changed
