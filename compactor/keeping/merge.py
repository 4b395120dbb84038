"""Merging batches of kept tables, and taking threads out of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from compactor.keeping.files import TableTarget
from compactor.plan import FAN_OUT, holds_any
from logstore.analytics.kept import (
    BATCH,
    INDEX,
    INDEX_SCHEMA,
    KeptSource,
    newest,
    schema_of_file,
)
from logstore.analytics.sources import GROUP, ROW, SOURCE, aligned
from logstore.manifest import KEPT, KeptBatch, RunEntry
from logstore.runs import RunReader

_ORDER = [("thread_id", "ascending"), *((name, "ascending") for name in (SOURCE, GROUP, ROW))]


@dataclass(frozen=True)
class BatchMerger:
    """Changes the batches of a partition below a new one."""

    runs: RunReader
    target: TableTarget
    indices: Sequence[pa.Table]
    """The new batch's, and those of `batches`."""
    batches: Sequence[KeptBatch]
    """The newest first."""

    def run(self, gone: Sequence[str]) -> list[KeptBatch]:
        """The batches in the place of the old ones.

        Args:
            gone: threads of which the new batch tells, and that nothing else may hold.

        Raises:
            StartAgain: a file is gone.
        """
        count, level = full_levels(self.batches)
        merged = self._merged(count, level) if count else []
        return [*merged, *(self._without(batch, gone) for batch in self.batches[count:])]

    # -- merging -----------------------------------------------------------------

    def _merged(self, count: int, level: int) -> list[KeptBatch]:
        """The first batches as one, with what the new batch supersedes left out."""
        known = newest(self.indices[: count + 1])
        index = known.filter(pc.greater(known[BATCH], 0)).sort_by("thread_id")
        if not index.num_rows:
            return []
        writer = self.target.writer(INDEX)
        writer.add(index.select(INDEX_SCHEMA.names))
        files = {INDEX: writer.close()}
        for name in KEPT:
            files[name] = self._merged_rows(name, index, count)
        return [KeptBatch(level, self.target.generation, files)]

    def _merged_rows(self, name: str, index: pa.Table, count: int) -> tuple[RunEntry, ...]:
        sources = []
        for number, batch in enumerate(self.batches[:count], 1):
            mine = index.filter(pc.and_(pc.equal(index[BATCH], number), index[name]))
            here = self.indices[number]["thread_id"]
            others = here.filter(pc.invert(pc.is_in(here, mine["thread_id"])))
            without = pa.concat_arrays([pa.array([], pa.string()), *others.chunks])
            sources.append(KeptSource(batch.files.get(name, ()), name, self.runs, without))
        writer = self.target.writer(name)
        columns = schema_of_file(name).names
        for table in aligned(sources, columns):
            writer.add(table.sort_by(_ORDER).select(columns))
        return writer.close()

    # -- taking threads out ------------------------------------------------------

    def _without(self, batch: KeptBatch, gone: Sequence[str]) -> KeptBatch:
        files = {
            name: files if name == INDEX else tuple(self._rewritten(name, files, gone))
            for name, files in batch.files.items()
        }
        return batch if files == batch.files else replace(batch, files=files)

    def _rewritten(
        self, name: str, files: Sequence[RunEntry], gone: Sequence[str]
    ) -> Iterator[RunEntry]:
        for file in files:
            if not holds_any(file, self.runs, gone):
                yield file
                continue
            writer = self.target.writer(name)
            source = KeptSource((file,), name, self.runs, pa.array(gone, pa.string()))
            for group in range(source.groups):
                for table in source.batches(group, schema_of_file(name).names):
                    writer.add(table)
            yield from writer.close()


def full_levels(batches: Sequence[KeptBatch]) -> tuple[int, int]:
    """How many of the newest batches to merge, and the level of what comes of them.

    A level that is full is merged upwards, so that each row is rewritten O(log N) times.
    """
    count = level = 0
    while (same := sum(batch.level == level for batch in batches)) + (level > 0) >= FAN_OUT:
        count += same
        level += 1
    return count, level
