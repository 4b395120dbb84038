"""Keeping the tables of messages and of tool calls up to date, with each commit of a job.

A job that keeps them makes the rows of each thread that it touched; one that does not marks
them as stale. Either way the next manifest lists a new batch that tells of these threads, in
front of the earlier ones, so that rows which no longer count never show. See FORMAT.md, 9.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from compactor.memory import MemoryBudget
from compactor.plan import Plan, manifest_etag
from compactor.publishing.publish import LostJob
from logstore.errors import FormatError, InvalidOptionError, SnapshotExpiredError
from logstore.manifest import KEPT, KeptTables, PartitionManifest
from logstore.store import LogStore
from logstore.tail import StartAgain

logger = logging.getLogger(__name__)


def check_keep(names: Collection[str]) -> frozenset[str]:
    """The names of tables to keep.

    Raises:
        InvalidOptionError: one of them cannot be kept.
    """
    unknown = sorted(set(names) - set(KEPT))
    if unknown:
        raise InvalidOptionError(
            f"there is no table {unknown[0]!r} to keep; tables that can be kept are "
            f"{' and '.join(KEPT)}"
        )
    return frozenset(names)


@dataclass(frozen=True)
class KeptChange:
    """What becomes of a partition's kept tables."""

    kept: KeptTables
    replaced: frozenset[str] = frozenset()
    """The keys of files that no longer count."""
    bytes_written: int = 0
    threads: int = 0
    """How many threads' rows were made."""

    def applied_to(self, manifest: PartitionManifest) -> PartitionManifest:
        """A manifest that is about to be committed, with the change."""
        retired = {**manifest.retired, **dict.fromkeys(sorted(self.replaced))}
        return replace(manifest, kept=self.kept, retired=retired)


def dropped(kept: KeptTables) -> KeptChange:
    """All of the tables given up; the next job that keeps them makes them anew."""
    return KeptChange(KeptTables(), frozenset(kept.files))


@dataclass
class Keeper:
    """Keeps the tables of one partition in one commit."""

    store: LogStore
    plan: Plan
    job: str
    keep: frozenset[str]
    """The tables to keep; without any, what is kept is only marked as stale."""
    memory: MemoryBudget = field(default_factory=MemoryBudget)

    @property
    def _old(self) -> KeptTables:
        return self.plan.manifest.kept

    @property
    def is_due(self) -> bool:
        """Whether there are rows to make although nothing else may be to do."""
        old, keep = self._old, self.keep
        if not keep or not self.plan.manifest.runs:
            return False
        return not old.batches or old.stale > 0 or not keep.issubset(old.tables)

    def run(
        self,
        following: PartitionManifest,
        touched: Collection[str],
        gone: Sequence[str],
        folder: Path,
    ) -> KeptChange:
        """Write what the next manifest lists.

        What cannot be read of the tables is no reason to stop a job: then they are given up.

        Args:
            following: the next manifest; its runs are written.
            touched: the threads that the commit changes.
            gone: those of them of which the commit removes rows from the runs.
            folder: for temporary files.

        Raises:
            LostJob: another job has committed.
        """
        if not self.keep and not self._old.batches:
            return KeptChange(KeptTables())
        try:
            # Only who keeps tables pays for loading what makes them.
            from compactor.keeping.batch import Batches

            batches = Batches(self.store, self.plan, self.job, self.keep, self.memory)
            return batches.change(following, touched, gone, folder)
        except (StartAgain, SnapshotExpiredError, FormatError) as error:
            if manifest_etag(self.store, self.plan.partition) != self.plan.etag:
                raise LostJob from error
            logger.warning(
                "partition %d: its kept tables cannot be brought up to date and are given up: %s",
                self.plan.partition,
                error,
            )
            return dropped(self._old)
