"""Sweeping: deleting the snapshot objects that no manifest names any more.

Publishing a thread retires the objects that it replaces and deletes them at the thread's next
job; a thread that is not written to again has none, and a job that was killed leaves objects
behind. Both are found here by listing the objects.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from compactor.plan import Plan
from logstore.errors import (
    ConditionFailedError,
    CorruptObjectError,
    ObjectNotFoundError,
    OutcomeUnknownError,
)
from logstore.keys import snapshots_prefix
from logstore.manifest import SnapshotManifest
from logstore.objects.base import ObjectInfo, ObjectStore

SWEEP_INTERVAL_S = 3600.0
"""A partition's snapshot objects are listed this often."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did."""

    deleted: int = 0
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
    """The snapshot objects of a listing, by the key of the manifest that may name them."""
    found: dict[str, list[ObjectInfo]] = defaultdict(list)
    for page in pages:
        for info in page:
            manifest = "/".join([*info.key.split("/")[:3], "manifest"])
            if info.key != manifest:
                found[manifest].append(info)
    return found


def sweep(objects: ObjectStore, plan: Plan, job: str, retired_grace_s: float) -> Swept:
    """Delete what is left over under `snapshots/` in a partition.

    Args:
        objects: the object store.
        plan: the partition, and the store's clock.
        job: the job's id.
        retired_grace_s: how long objects that a manifest has retired are kept.
    """
    pages = objects.list(snapshots_prefix(plan.partition))
    swept = Swept()
    for key, beside in by_manifest(page.objects for page in pages).items():
        one = _sweep_thread(objects, plan, job, key, beside, retired_grace_s)
        swept = Swept(swept.deleted + one.deleted, swept.waiting + one.waiting)
    return swept


def _sweep_thread(
    objects: ObjectStore,
    plan: Plan,
    job: str,
    key: str,
    beside: Sequence[ObjectInfo],
    retired_grace_s: float,
) -> Swept:
    """Condemn what nothing names by a swap of the manifest, then delete it.

    A job that has stored an object and sleeps before it names it loses its swap, and stores the
    object anew. Any doubt keeps everything.
    """
    try:
        found = objects.get(key)
        manifest = SnapshotManifest.decode(key, found.data)
    except (ObjectNotFoundError, CorruptObjectError):
        return Swept()
    retired, unknown = unnamed_snapshots(manifest, beside)
    now, grace = plan.listing.date, plan.settings.long_grace_s
    gone = [
        *(k for k, since in retired.items() if since <= now - retired_grace_s),
        *(k for k, stored in unknown.items() if stored < now - grace),
    ]
    waiting = len(retired) + len(unknown) - len(gone)
    if not gone:
        return Swept(waiting=waiting)
    condemning = replace(
        manifest,
        generation=manifest.generation + 1,
        job=f"{job}-{secrets.token_hex(4)}",
        retired={k: since for k, since in manifest.retired.items() if k not in gone},
    )
    try:
        objects.compare_and_swap(key, condemning.encode(), found.etag)
    except (ConditionFailedError, OutcomeUnknownError):
        return Swept(waiting=waiting + len(gone))
    objects.delete(gone)
    return Swept(len(gone), waiting)
