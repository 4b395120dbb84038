"""Proving that nothing of a deleted thread is left, by looking into its partition's objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from logstore.errors import InvalidOptionError, ObjectNotFoundError
from logstore.keys import (
    is_index_key,
    log_prefix,
    run_prefix,
    snapshot_manifest_key,
    snapshot_prefix,
    tables_prefix,
    value_prefix,
)
from logstore.manifest import SnapshotManifest
from logstore.records import Kind
from logstore.store import LogStore

GROUP = "logstore.purge"


@dataclass(frozen=True, slots=True)
class Erasure:
    """What every object of a thread's partition says of the thread."""

    uri: str
    thread_id: str
    segments: int
    runs: int
    tables: int
    """Files of kept tables."""
    objects: int
    """Objects below the thread's own folders: its snapshot manifest and large values."""
    tombstones: int
    """Rows that state that the thread was deleted. They hold its id, and stay."""
    left: tuple[str, ...]
    """What holds anything else of it."""

    def to_dict(self) -> dict[str, Any]:
        """The proof as plain data."""
        return asdict(self)


def purge_partition(store: LogStore, partition: int, tell: Callable[[str], None]) -> None:
    """Compact a partition, wait for the grace, and delete what was replaced.

    The compactor is a package of its own, found through the entry point group `logstore.purge`.

    Raises:
        InvalidOptionError: no compactor is installed.
    """
    for entry_point in entry_points(group=GROUP):
        entry_point.load()(store, partition, tell)
        return
    raise InvalidOptionError(
        "erasing at once needs the compactor, which comes with langgraph-checkpoint-logstore; "
        "install the package properly"
    )


def prove_erasure(store: LogStore, thread_id: str) -> Erasure:
    """Look into each segment, run and kept table of the partition, and the thread's own objects.

    The objects are read anew, whatever is cached, and those too that no manifest names.
    """
    partition = store.partition(thread_id)
    left: list[str] = []
    counts = {"segments": 0, "runs": 0, "tables": 0, "objects": 0}
    tombstones = 0
    for name, prefix in (("segments", log_prefix(partition)), ("runs", run_prefix(partition))):
        for key, data in _objects(store, prefix):
            counts[name] += 1
            kinds = _kinds_of(data, thread_id)
            tombstones += kinds.count(Kind.TOMBSTONE)
            if rows := len(kinds) - kinds.count(Kind.TOMBSTONE):
                left.append(f"{key}: {rows} records")
    for key, data in _objects(store, tables_prefix(partition)):
        counts["tables"] += 1
        # The index holds nothing but the thread's id, as the tombstones do.
        if not is_index_key(key) and (rows := _rows_of(data, thread_id)):
            left.append(f"{key}: {rows} rows")
    manifest_key = snapshot_manifest_key(partition, thread_id)
    own = (snapshot_prefix(partition, thread_id), value_prefix(partition, thread_id))
    for key, data in chain.from_iterable(_objects(store, prefix) for prefix in own):
        counts["objects"] += 1
        if key != manifest_key:
            left.append(f"{key}: a value of {len(data)} bytes")
            continue
        records = SnapshotManifest.decode(key, data).records
        tombstones += sum(record.kind == Kind.TOMBSTONE for record in records)
        if rows := sum(record.kind != Kind.TOMBSTONE for record in records):
            left.append(f"{key}: {rows} records")
    return Erasure(store.uri, thread_id, **counts, tombstones=tombstones, left=tuple(left))


def _objects(store: LogStore, prefix: str) -> Iterator[tuple[str, bytes]]:
    for page in store.objects.list(prefix):
        for info in page.objects:
            try:
                data = store.objects.get(info.key).data
            except ObjectNotFoundError:
                continue  # deleted since the LIST
            if data:
                yield info.key, data


def _rows_of(body: bytes, thread_id: str) -> int:
    """How many rows of a kept table are a thread's."""
    table = pq.read_table(pa.BufferReader(body), columns=["thread_id"])
    count: int = pc.sum(pc.equal(table["thread_id"], thread_id)).as_py() or 0
    return count


def _kinds_of(body: bytes, thread_id: str) -> list[str]:
    """The kinds of a segment's or run's rows of a thread."""
    table = pq.read_table(pa.BufferReader(body), columns=["thread_id", "kind"])
    found: list[str] = table.filter(pc.equal(table["thread_id"], thread_id))["kind"].to_pylist()
    return found
