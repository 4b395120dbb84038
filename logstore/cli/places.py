"""Where the records of a read lie, and which objects it went through."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from logstore.keys import SegmentName, partition_manifest_key, snapshot_manifest_key
from logstore.reader import ThreadRead
from logstore.records import Encoding, Kind, Record, ValueRef
from logstore.store import LogStore


@dataclass(frozen=True, slots=True)
class ReadPath:
    """The objects that a read of a thread went through."""

    kind: str
    """`head`: the thread's snapshot manifest and the tail; `history`: runs and the tail."""
    manifest: str
    """The key of the manifest that it began with."""
    generation: int
    """Of the manifest; 0 if it does not exist."""
    segments: tuple[str, ...]
    """The segments of the tail that may hold the thread."""
    runs: tuple[str, ...]
    """The runs that may hold it."""


class Places:
    """Tells of a record which object it was read from."""

    def __init__(self, store: LogStore, read: ThreadRead, *, head: bool) -> None:
        """Look at a read, of the head or of the whole history.

        A manifest that a compaction replaced since the read may name other segments.
        """
        thread_id, partition = read.view.thread_id, read.listing.partition
        merged: Collection[str]
        if head:
            key = snapshot_manifest_key(partition, thread_id)
            of_thread = store.reader.snapshot_manifest(thread_id, partition).manifest
            generation, merged = of_thread.generation, of_thread.merged
        else:
            key = partition_manifest_key(partition)
            of_partition, _ = store.reader.partition_manifest(partition)
            generation, merged = of_partition.generation, of_partition.merged
        names = [SegmentName.parse(k) for k in read.listing.arrived if k not in merged]
        tail = [name for name in names if name.may_hold(thread_id)]
        self.path = ReadPath(
            kind="head" if head else "history",
            manifest=key,
            generation=generation,
            segments=tuple(sorted(name.key for name in tail)),
            runs=tuple(sorted(read.runs)),
        )
        self._segments = {(name.writer, name.seq): name.key for name in tail}

    def of(self, record: Record) -> str:
        """The key of the object that holds the record's value."""
        if record.encoding == Encoding.OBJECT and record.base_version is not None:
            return record.base_version
        if isinstance(record.value, ValueRef):
            return record.value.run_key
        if record.kind == Kind.SNAPSHOT:
            return self.path.manifest
        return self._segments.get((record.writer, record.seq), self.path.manifest)
