"""Sweeping: deleting the objects with large values that nothing names any more.

A snapshot manifest names objects, and so do rows of runs; publishing retires what a manifest
names no longer, a merge drops rows, and a job that was killed leaves objects behind. All of
it is found here by listing the objects.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import pyarrow.compute as pc

from compactor.plan import Plan
from logstore.errors import (
    ConditionFailedError,
    CorruptObjectError,
    ObjectNotFoundError,
    OutcomeUnknownError,
)
from logstore.keys import manifest_beside, run_prefix, snapshots_prefix, values_prefix
from logstore.manifest import PartitionManifest, SnapshotManifest
from logstore.objects.base import ObjectInfo
from logstore.records import Encoding
from logstore.store import LogStore

SWEEP_INTERVAL_S = 6 * 3600.0
"""A partition's objects with values are listed this often."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found."""

    gone: tuple[str, ...] = ()
    """Objects that nothing names and nothing can come to name."""
    waiting: int = 0
    """Objects that nothing names and whose grace has not passed."""


def unnamed_snapshots(
    manifest: SnapshotManifest, beside: Iterable[ObjectInfo]
) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """The snapshot objects beside a manifest that it does not name.

    Returns:
        Those that it has retired, each with the time of that; and those that it does not
        know, each with the time when it was stored. These may belong to a job at work.
    """
    named = set(manifest.object_keys)
    unnamed = {info.key: info.modified for info in beside if info.key not in named}
    retired = {key: manifest.retired[key] for key in unnamed if key in manifest.retired}
    return retired, {key: when for key, when in unnamed.items() if key not in retired}


def by_manifest(pages: Iterable[Sequence[ObjectInfo]]) -> dict[str, list[ObjectInfo]]:
    """The objects with values in a listing, by the key of the manifest of their thread."""
    found: dict[str, list[ObjectInfo]] = defaultdict(list)
    for page in pages:
        for info in page:
            manifest = manifest_beside(info.key)
            if info.key != manifest:
                found[manifest].append(info)
    return found


class Sweep:
    """Finds what is left over under `snapshots/` and `values/` in a partition.

    What it finds is condemned by the commit of its job, and deleted after it: every other job
    that began before has lost then, and a later one names nothing that is condemned. So no row
    comes to name what no row names now.
    """

    def __init__(
        self,
        store: LogStore,
        plan: Plan,
        following: PartitionManifest,
        job: str,
        retired_grace_s: float,
    ) -> None:
        """Sweep for a job that is about to commit.

        Args:
            store: the store.
            plan: the partition, and the store's clock.
            following: the partition manifest that the job will put in place.
            job: the job's id.
            retired_grace_s: how long objects that a manifest has retired are kept.
        """
        self._store = store
        self._plan = plan
        self._following = following
        self._job = job
        self._retired_grace_s = retired_grace_s

    def run(self) -> Swept:
        """What may be deleted once the job has committed."""
        partition, listed = self._plan.partition, self._store.objects.list
        pages = chain(listed(snapshots_prefix(partition)), listed(values_prefix(partition)))
        swept = Swept()
        for key, beside in by_manifest(page.objects for page in pages).items():
            one = self._thread(key, beside)
            swept = Swept((*swept.gone, *one.gone), swept.waiting + one.waiting)
        return swept

    def _thread(self, key: str, beside: Sequence[ObjectInfo]) -> Swept:
        """Condemn what nothing names by a swap of the thread's manifest.

        A job that has stored an object and sleeps before it names it loses its swap, and stores
        the object anew. Any doubt keeps everything.
        """
        objects = self._store.objects
        try:
            found = objects.get(key)
            manifest = SnapshotManifest.decode(key, found.data)
        except (ObjectNotFoundError, CorruptObjectError):
            return Swept()
        retired, unknown = unnamed_snapshots(manifest, beside)
        now, grace = self._plan.listing.date, self._plan.settings.long_grace_s
        old = [
            *(k for k, since in retired.items() if since <= now - self._retired_grace_s),
            *(k for k, stored in unknown.items() if stored < now - grace),
        ]
        gone = [k for k in old if k not in self._named_by_runs] if old else []
        waiting = len(retired) + len(unknown) - len(old)
        if not gone:
            return Swept(waiting=waiting)
        condemning = replace(
            manifest,
            generation=manifest.generation + 1,
            job=f"{self._job}-{secrets.token_hex(4)}",
            retired={k: since for k, since in manifest.retired.items() if k not in gone},
        )
        try:
            objects.compare_and_swap(key, condemning.encode(), found.etag)
        except (ConditionFailedError, OutcomeUnknownError):
            return Swept(waiting=waiting + len(gone))
        return Swept(tuple(gone), waiting)

    @cached_property
    def _named_by_runs(self) -> Set[str]:
        return named_by_runs(self._store, self._following)


def named_by_runs(store: LogStore, manifest: PartitionManifest) -> Set[str]:
    """The objects that rows name, of live runs and of those that are still kept for readers.

    Raises:
        CorruptObjectError: a run cannot be read.
        StartAgain: one is gone: another job has committed.
    """
    live = {run.key: run for run in manifest.runs}
    replaced = [
        store.runs.describe(info.key, info.size)
        for page in (store.objects.list(run_prefix(manifest.partition)) if manifest.retired else ())
        for info in page.objects
        if info.key in manifest.retired and info.key not in live
    ]
    named: set[str] = set()
    for run in (*live.values(), *replaced):
        if run.objects:
            for rows in store.runs.columns(run, ["encoding", "base_version"]):
                keys = rows.filter(pc.equal(rows["encoding"], Encoding.OBJECT.value))
                named.update(keys["base_version"].unique().to_pylist())
    return named
