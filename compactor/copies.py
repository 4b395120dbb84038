"""The copy of a partition's manifest, from which a lost one is restored exactly.

Nothing that a partition manifest lists is deleted before a copy of that version, or of a later
one, is stored. So whatever the copy lists as live is there, and what was merged after it still
lies in the log: the copy is a state of the partition to go on from, and a job that planned from
a version which was lost can delete nothing once the copy is of another.
"""

from __future__ import annotations

import logging

from compactor.plan import Plan, manifest_etag
from compactor.publishing.publish import LostJob
from logstore.errors import (
    ConditionFailedError,
    CorruptObjectError,
    ObjectNotFoundError,
    OutcomeUnknownError,
)
from logstore.keys import manifest_copy_key, partition_manifest_key
from logstore.manifest import PartitionManifest
from logstore.store import LogStore

logger = logging.getLogger(__name__)


def read_copy(store: LogStore, partition: int) -> tuple[PartitionManifest | None, str | None]:
    """The copy of a partition's manifest, None if it cannot be read; its ETag, None for none."""
    key = manifest_copy_key(partition)
    try:
        found = store.objects.get(key)
    except ObjectNotFoundError:
        return None, None
    try:
        return PartitionManifest.decode(key, found.data), found.etag
    except CorruptObjectError as error:
        logger.warning("%s; it is made anew", error)
        return None, found.etag


def replace_copy(store: LogStore, manifest: PartitionManifest, etag: str | None) -> None:
    """Make a manifest the copy of its partition's.

    Raises:
        LostJob: another job has replaced the copy that has this ETag.
    """
    key = manifest_copy_key(manifest.partition)
    try:
        store.objects.compare_and_swap(key, manifest.encode(), etag)
    except (ConditionFailedError, OutcomeUnknownError):
        found, _ = read_copy(store, manifest.partition)
        if found is None or not _is_same(found, manifest):
            raise LostJob from None


def keep_copy(store: LogStore, plan: Plan) -> None:
    """Make sure that there is a copy of the manifest that a job began from.

    Raises:
        LostJob: another job has committed.
        CorruptObjectError: the copy is newer: the manifest was lost or put back.
    """
    copy, etag = read_copy(store, plan.partition)
    if copy is None or copy.generation < plan.manifest.generation:
        replace_copy(store, plan.manifest, etag)
    elif not _is_same(copy, plan.manifest):
        if manifest_etag(store, plan.partition) != plan.etag:
            raise LostJob
        raise CorruptObjectError(
            f"the manifest {partition_manifest_key(plan.partition)} is not as it was: "
            f"{is_older(plan.manifest, copy)}. Restore it from a version or copy of the bucket, or "
            "run `compactor rebuild`"
        )


def is_older(manifest: PartitionManifest, copy: PartitionManifest) -> str:
    """What is said of a manifest that is older than its copy."""
    return (
        f"it is of generation {manifest.generation}, and its copy "
        f"{manifest_copy_key(manifest.partition)} of generation {copy.generation}: a newer version "
        "of it was lost"
    )


def _is_same(one: PartitionManifest, other: PartitionManifest) -> bool:
    return (one.generation, one.job) == (other.generation, other.job)
