"""Making a commit's batch of kept tables, and putting it in front of the earlier ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from compactor.keeping.files import TableTarget
from compactor.keeping.merge import BatchMerger
from compactor.keeping.rows import RowMaker
from compactor.keeping.tables import KeptChange
from compactor.memory import MemoryBudget
from compactor.plan import Plan
from logstore.analytics.kept import INDEX, INDEX_SCHEMA, newest, read_index
from logstore.analytics.pin import PinnedPartition
from logstore.manifest import KEPT, KeptBatch, KeptTables, PartitionManifest, RunEntry
from logstore.store import LogStore


@dataclass(frozen=True)
class _NewBatch:
    """What a commit puts in front of the earlier batches."""

    files: Mapping[str, tuple[RunEntry, ...]]
    index: pa.Table
    made: int
    """How many threads' rows were made."""


@dataclass(frozen=True)
class Batches:
    """The batches of a partition, on the way from one manifest to the next."""

    store: LogStore
    plan: Plan
    job: str
    keep: frozenset[str]
    """The tables to keep; without any, threads are only marked."""
    memory: MemoryBudget

    @property
    def _old(self) -> KeptTables:
        return self.plan.manifest.kept

    def change(
        self,
        following: PartitionManifest,
        touched: Collection[str],
        gone: Sequence[str],
        folder: Path,
    ) -> KeptChange:
        """Write what the next manifest lists. See `Keeper.run`.

        Raises:
            StartAgain: a run or a file is gone.
            SnapshotExpiredError: likewise.
            CorruptObjectError: one cannot be read.
        """
        old = self._old
        threads = self._threads(following, touched)
        if not len(threads):
            if not self.keep or not old.batches:
                return KeptChange(old)
            return KeptChange(replace(old, tables=tuple(sorted(self.keep)), stale=0))
        target = TableTarget(
            self.store.objects,
            folder,
            self.plan.partition,
            self.plan.generation,
            self.job,
            self.memory.run // 4,
        )
        new = (
            self._kept(following, threads, target, folder)
            if self.keep
            else _marked(threads, target)
        )
        indices = [new.index, *self._indices]
        merger = BatchMerger(self.store.runs, target, indices, old.batches)
        batch = KeptBatch(0, self.plan.generation, new.files)
        batches = (batch, *merger.run(gone))
        if self.keep:
            kept = KeptTables(tuple(sorted(self.keep)), batches)
        else:
            kept = KeptTables(old.tables, batches, old.stale + len(threads))
        return _difference(old, kept, new.made)

    def _kept(
        self, following: PartitionManifest, threads: pa.Array, target: TableTarget, folder: Path
    ) -> _NewBatch:
        """The rows of threads, as a reader of the next manifest would make them."""
        pinned = PinnedPartition(self.store, following, self.plan.listing, (), folder)
        maker = RowMaker(pinned, target, self.keep)
        files = maker.run(threads, self._known)
        return _NewBatch(files, maker.index, maker.threads)

    # -- which threads -----------------------------------------------------------

    def _threads(self, following: PartitionManifest, touched: Collection[str]) -> pa.Array:
        """The threads that the new batch tells of, ascending."""
        parts = [pa.array(touched, pa.string())]
        if not self._old.batches:
            parts += self._threads_of(following.runs)
        elif self.keep:
            parts += self._waiting().chunks
        threads = pc.unique(pa.concat_arrays(parts))
        return threads.take(pc.sort_indices(threads))

    def _threads_of(self, runs: Sequence[RunEntry]) -> list[pa.Array]:
        return [
            pc.unique(chunk)
            for run in runs
            for table in self.store.runs.columns(run, ["thread_id"])
            for chunk in table["thread_id"].chunks
        ]

    def _waiting(self) -> pa.ChunkedArray:
        """The threads whose rows were never made, or not those of a table that is kept now."""
        known = self._known
        missing = pa.scalar(False)
        some = pc.equal(known["records"], 0)
        for name in KEPT:
            some = pc.or_(some, known[name])
            if name in self.keep:
                missing = pc.or_(missing, pc.invert(known[name]))
        return known["thread_id"].filter(pc.and_(some, missing))

    @cached_property
    def _indices(self) -> list[pa.Table]:
        return [read_index(self.store.runs, batch) for batch in self._old.batches]

    @cached_property
    def _known(self) -> pa.Table:
        return newest(self._indices)


def _marked(threads: pa.Array, target: TableTarget) -> _NewBatch:
    """An index that knows nothing of threads but their names, so that older rows do not count."""
    count = len(threads)
    nothing = [pa.repeat(pa.scalar(0, pa.int64()), count)]
    nothing += [pa.repeat(pa.scalar(False), count)] * (len(INDEX_SCHEMA) - 2)
    index = pa.Table.from_arrays([threads, *nothing], schema=INDEX_SCHEMA)
    writer = target.writer(INDEX)
    writer.add(index)
    return _NewBatch({INDEX: writer.close()}, index, 0)


def _difference(old: KeptTables, kept: KeptTables, threads: int) -> KeptChange:
    before, after = old.files, kept.files
    written = sum(file.size for key, file in after.items() if key not in before)
    return KeptChange(kept, frozenset(before.keys() - after.keys()), written, threads)
