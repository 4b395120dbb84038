"""Committing: the one compare-and-swap by which a job's result comes to count."""

from __future__ import annotations

from compactor.publishing.publish import LostJob
from logstore.errors import ConditionFailedError, OutcomeUnknownError
from logstore.keys import partition_manifest_key
from logstore.manifest import PartitionManifest
from logstore.store import LogStore


def commit(store: LogStore, manifest: PartitionManifest, etag: str | None) -> int:
    """Replace a partition manifest. Whatever the outcome, the job's runs stay.

    A lost answer may hide a commit that went through; deleting the runs of a supposed loser
    would then delete live ones.

    Args:
        store: the store.
        manifest: the new version, with an id of its own in `job`.
        etag: of the version that the job began from.

    Returns:
        The bytes that were written.

    Raises:
        LostJob: another job has committed.
    """
    body = manifest.encode()
    try:
        store.objects.compare_and_swap(partition_manifest_key(manifest.partition), body, etag)
    except (ConditionFailedError, OutcomeUnknownError):
        found, _ = store.reader.partition_manifest(manifest.partition)
        if found.job != manifest.job:
            raise LostJob from None
    return len(body)
