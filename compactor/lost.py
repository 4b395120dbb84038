"""Telling a run that no manifest names because it was never committed from one whose manifest
was lost."""

from __future__ import annotations

from logstore.keys import SegmentName
from logstore.manifest import PartitionManifest
from logstore.objects.base import ObjectInfo
from logstore.records import Kind
from logstore.store import LogStore
from logstore.tail import Listing


def lost_manifest(
    store: LogStore, manifest: PartitionManifest, listing: Listing, run: ObjectInfo
) -> str | None:
    """Why a partition manifest must have been lost, given a run that it does not name.

    Args:
        store: the store.
        manifest: the one in place; of generation 0 if there is none.
        listing: the partition's log.
        run: a run that it does not name.

    Returns:
        The reason, or None if a job that never committed may have left the run.

    Raises:
        StartAgain: the run is gone.
        CorruptObjectError: the run is damaged.
    """
    entry = store.runs.describe(run.key, run.size)
    if entry.generation > manifest.generation + 1:
        return (
            f"it is of generation {manifest.generation}, and the run {run.key} of generation "
            f"{entry.generation}: a newer version of it was lost"
        )
    if manifest.generation:
        return None
    # A first job that was killed has read nothing but segments, which are all still there.
    names = [SegmentName.parse(key) for key in listing.arrived]
    known = {(name.writer, name.seq) for name in names}
    for table in store.runs.columns(entry, ["kind", "writer", "seq"]):
        for row in table.to_pylist():
            if row["kind"] != Kind.SNAPSHOT and (row["writer"], row["seq"]) not in known:
                return (
                    f"it does not exist, and the run {run.key} holds records that are not in the "
                    "log any more: it was lost"
                )
    return None
