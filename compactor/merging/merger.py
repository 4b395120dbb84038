"""The merging part of a job: from segments, snapshots and runs to new runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

import pyarrow as pa

from compactor.memory import MemoryBudget
from compactor.merging.deleted import whole_tombstones
from compactor.merging.merge import merge_streams
from compactor.merging.output import RunWriter
from compactor.merging.placing import ValuePlacer
from compactor.merging.rebase import REBASE_COLUMNS, rebase_thread, threads_to_rebase
from compactor.merging.spill import SortedChunks, ThreadRows, pieces
from compactor.plan import Plan, Tier, choose_tier, deleted_threads
from compactor.publishing.publish import Publisher
from logstore.manifest import RunEntry
from logstore.segment import records_to_table, table_to_records
from logstore.store import LogStore

_REBASED_AT_A_TIME = 64


@dataclass(frozen=True)
class MergeOutput:
    """What merging wants to commit."""

    tier: Tier
    merged: tuple[RunEntry, ...] = ()
    rewritten: Mapping[str, tuple[RunEntry, ...]] = field(default_factory=dict)
    """For each run that was written anew alone: what takes its place, if anything is left."""
    bytes_read: int = 0
    object_bytes: int = 0
    """Of the values that were stored beside the runs."""

    @property
    def runs(self) -> list[RunEntry]:
        """All runs that were written."""
        return [*self.merged, *(run for runs in self.rewritten.values() for run in runs)]

    def applied_to(self, runs: Sequence[RunEntry]) -> tuple[RunEntry, ...]:
        """The live runs after the commit."""
        gone = self.replaced
        return (*(run for run in runs if run.key not in gone), *self.runs)

    @property
    def replaced(self) -> set[str]:
        """The keys of the runs whose rows are in others now."""
        return {run.key for run in (*self.tier.inputs, *self.tier.rewritten)}


class Merger:
    """Merges what one commit takes."""

    def __init__(
        self,
        store: LogStore,
        plan: Plan,
        publisher: Publisher,
        job: str,
        folder: Path,
        budget: MemoryBudget,
    ) -> None:
        """Merge for a job that began from `plan`, with temporary files in `folder`."""
        self._store = store
        self._plan = plan
        self._publisher = publisher
        self._folder = folder
        self._budget = budget
        self._job = job

    def run(self, made: SortedChunks) -> MergeOutput:
        """Write the new runs, which nothing names yet.

        Args:
            made: the job's snapshots and tombstones.

        Raises:
            StartAgain: an input is gone: another job has committed.
        """
        fresh = self._plan.fresh
        if not fresh.num_rows and made.is_empty:
            return MergeOutput(Tier((), 0))
        tier = choose_tier(self._plan.manifest, self._store.runs, deleted_threads(fresh))
        rebased = self._rebased(tier, made)
        share = self._budget.window // (len(tier.sequences) + 2)
        streams = [
            pieces(fresh, share),
            *made.streams(share),
            *rebased.streams(share),
            *(self._rows(runs, share) for runs in tier.sequences),
        ]
        writer = self._writer(tier.level, max_bytes=self._budget.run)
        placer = ValuePlacer(self._store, self._plan)
        for window in merge_streams(streams):
            writer.add(placer.placed(window))
        tombstones = whole_tombstones(fresh)
        read = sum(run.size for run in (*tier.inputs, *tier.rewritten))
        return MergeOutput(
            tier,
            tuple(writer.close()),
            {run.key: tuple(self._rewritten(run, tombstones)) for run in tier.rewritten},
            fresh.nbytes + read,
            placer.bytes_written,
        )

    def _rows(self, runs: Sequence[RunEntry], max_bytes: int) -> Iterator[pa.Table]:
        return chain.from_iterable(self._store.runs.batches(run, max_bytes) for run in runs)

    def _columns(self, runs: Sequence[RunEntry]) -> Iterator[pa.Table]:
        return chain.from_iterable(self._store.runs.columns(run, REBASE_COLUMNS) for run in runs)

    def _rewritten(self, run: RunEntry, tombstones: pa.Table) -> list[RunEntry]:
        """A run without what new tombstones hide; it keeps its place among the tiers."""
        writer = self._writer(run.level, max_bytes=None, place=(run.sequence, run.part))
        for window in merge_streams([self._rows([run], self._budget.window)], tombstones):
            writer.add(window)
        return writer.close()

    def _writer(
        self, level: int, *, max_bytes: int | None, place: tuple[str, int] | None = None
    ) -> RunWriter:
        return RunWriter(
            self._store.objects,
            self._folder,
            self._plan.partition,
            level,
            self._plan.generation,
            self._job,
            max_bytes=max_bytes,
            place=place,
        )

    def _rebased(self, tier: Tier, made: SortedChunks) -> SortedChunks:
        """New copies of rows: the values of long chains of patches, numbered and patched anew."""
        share = self._budget.window
        fresh = self._plan.fresh
        columns = [
            pieces(fresh.select(REBASE_COLUMNS), share),
            *(_selected(stream) for stream in made.streams(share)),
            *(self._columns(runs) for runs in tier.sequences),
        ]
        new = ThreadRows(iter([fresh]))
        snapshots = ThreadRows(merge_streams(made.streams(share)))
        inputs = {run.key for run in tier.inputs}
        rebased = SortedChunks(self._folder, self._budget.chunk)
        for thread_id in threads_to_rebase(columns):
            rows = pa.concat_tables([new.of(thread_id), snapshots.of(thread_id)])
            read = self._publisher.whole_thread(thread_id, table_to_records(rows))
            decoder = self._publisher.lost.decoder(read)
            records = rebase_thread(read, inputs, decoder, self._budget.chunk)
            while batch := list(islice(records, _REBASED_AT_A_TIME)):
                rebased.add(records_to_table(batch))
        return rebased


def _selected(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    return (table.select(REBASE_COLUMNS) for table in tables)
