"""Recovering a partition manifest that was lost."""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from compactor.copies import read_copy, replace_copy
from compactor.plan import manifest_etag
from compactor.publishing.publish import LostJob
from logstore.errors import CorruptObjectError
from logstore.keys import SegmentName, partition_manifest_key, run_prefix
from logstore.manifest import PartitionManifest, RunEntry
from logstore.objects.base import ObjectInfo
from logstore.records import Kind
from logstore.store import LogStore
from logstore.tail import StartAgain

logger = logging.getLogger(__name__)
Position = tuple[str, int]
"""A writer and a place in its lane: what names a segment."""


def recovered_manifest(store: LogStore, partition: int, job: str) -> PartitionManifest | None:
    """A partition manifest to go on from, if the one in place is lost.

    It is lost if it cannot be read, does not exist although runs or a copy do, is older than its
    copy, or older than a run: a run of the generation after next was made when a newer manifest
    existed. What is recovered becomes the copy, so that a job which began from the lost one
    deletes nothing any more.

    Args:
        store: the store.
        partition: the partition.
        job: the job that recovers it.

    Returns:
        The manifest, or None if the one in place is sound.

    Raises:
        CorruptObjectError: a run cannot be read, so it is not known whether it counts.
        StartAgain: another job went on meanwhile.
    """
    return _Recovery(store, partition).run(f"{job}.{partition}.{secrets.token_hex(4)}")


class _Recovery:
    def __init__(self, store: LogStore, partition: int) -> None:
        self._store = store
        self._partition = partition
        self._copy, self._copy_etag = read_copy(store, partition)
        self._there: PartitionManifest | None = None
        """The manifest in place, if there is one that can be read."""
        try:
            found, self._etag = store.reader.partition_manifest(partition)
            self._there = found if self._etag else None
        except CorruptObjectError as error:
            logger.warning("%s; it is made anew", error)
            self._etag = manifest_etag(store, partition)
        listed = store.objects.list(run_prefix(partition))
        self._runs = {info.key: info for page in listed for info in page.objects}

    def run(self, job: str) -> PartitionManifest | None:
        unnamed = self._unnamed_by(self._there)
        newest = max((run.generation for run in unnamed), default=-1)
        if not self._is_lost(newest):
            return None
        if manifest_etag(self._store, self._partition) != self._etag:
            raise StartAgain
        base = self._last_known() or self._of_all_runs()
        recovered = replace(base, generation=max(base.generation, newest), job=job)
        try:
            replace_copy(self._store, recovered, self._copy_etag)
        except LostJob:
            raise StartAgain from None
        return recovered

    def _is_lost(self, newest: int) -> bool:
        """Whether the manifest in place is; `newest` is the greatest generation of other runs."""
        if self._there is None:
            return bool(self._etag or self._copy or newest >= 0)
        generation = self._there.generation
        copied = self._copy.generation if self._copy else -1
        return generation < copied or generation + 1 < newest

    def _unnamed_by(self, manifest: PartitionManifest | None) -> list[RunEntry]:
        named: Collection[str] = ()
        if manifest is not None:
            named = {run.key for run in manifest.runs} | manifest.retired.keys()
        return [self._described(info) for key, info in self._runs.items() if key not in named]

    def _described(self, info: ObjectInfo) -> RunEntry:
        return self._store.runs.describe(info.key, info.size)

    # -- from the copy -------------------------------------------------------------

    def _last_known(self) -> PartitionManifest | None:
        """The newest version that there is; None if it does not tell of all records.

        Everything that was deleted since a copy was stored is listed in it.
        """
        if self._copy is None:
            return None
        base = max(filter(None, (self._copy, self._there)), key=lambda found: found.generation)
        gone = {run.key for run in base.runs} - self._runs.keys()
        if gone or self._unknown_to(base):
            logger.warning(
                "partition %d: the copy of its manifest names runs that are gone, or does not know "
                "segments that are; all runs that there are count",
                self._partition,
            )
            return None
        left_over = dict.fromkeys(run.key for run in self._unnamed_by(base))
        return replace(base, retired={**base.retired, **left_over})

    def _unknown_to(self, base: PartitionManifest) -> set[Position]:
        """Segments of which only a newer run tells: someone has deleted them from the log."""
        newer = [run for run in self._unnamed_by(base) if run.generation > base.generation]
        listed = map(SegmentName.parse, self._store.log.list(self._partition).arrived)
        known = {(name.writer, name.seq) for name in listed}
        unknown = self._positions(newer) - known
        return unknown - self._positions(base.runs) if unknown else unknown

    def _positions(self, runs: Sequence[RunEntry]) -> set[Position]:
        found: set[Position] = set()
        for run in runs:
            for rows in self._store.runs.columns(run, ["kind", "writer", "seq"]):
                names = rows.group_by(["kind", "writer", "seq"]).aggregate([]).to_pylist()
                found |= {(n["writer"], n["seq"]) for n in names if n["kind"] != Kind.SNAPSHOT}
        return found

    # -- without one -----------------------------------------------------------------

    def _of_all_runs(self) -> PartitionManifest:
        """A manifest that names every run.

        Runs that were replaced, or never committed, hold records that are in others too, and
        merging is a set union.
        """
        if self._runs:
            logger.warning(
                "%s is lost and so is its copy; it is made of all runs that there are. Until it is "
                "in place no other job may run",
                partition_manifest_key(self._partition),
            )
        runs = _apart([self._described(info) for info in self._runs.values()])
        generation = max((run.generation for run in runs), default=0)
        return PartitionManifest(self._partition, generation=generation, runs=runs)


def _apart(runs: Sequence[RunEntry]) -> tuple[RunEntry, ...]:
    """Runs, with those of one place in one sequence on their own.

    A run that was written anew alone has the place of the one that it replaced; of both together
    no sorted sequence can be made.
    """
    places = Counter((run.sequence, run.part) for run in runs)
    return tuple(
        run if places[(run.sequence, run.part)] == 1 else replace(run, sequence="", part=0)
        for run in runs
    )
