"""A dry run: a whole job whose writes go to a temporary folder, so that its plan is exact."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc

from logstore.errors import ConditionFailedError, CorruptObjectError, ObjectNotFoundError
from logstore.keys import MANIFESTS, log_prefix
from logstore.manifest import PartitionManifest
from logstore.objects.base import ListPage, ObjectData, ObjectStore, Stored
from logstore.records import Encoding, Kind
from logstore.store import LogStore

_PLACE = ["thread_id", "checkpoint_ns", "checkpoint_id", "channel"]


@dataclass(frozen=True, slots=True)
class PlannedObject:
    """An object that a job would merge or write."""

    key: str
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class PlannedSnapshot:
    """A snapshot that a job would make or take back."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    channel: str
    size: int
    """Bytes of the value; 0 for one that is taken back."""


class _Noted(NamedTuple):
    """An object that was written here."""

    path: Path
    size: int
    etag: str


class DryRunStore(ObjectStore):
    """Reads from another store; what is written or deleted is noted and never sent.

    Args:
        inner: the store that answers reads of what was not written here.
        folder: an empty one, for what is written.
    """

    def __init__(self, inner: ObjectStore, folder: Path) -> None:
        self.uri = inner.uri
        self._inner = inner
        self._folder = folder
        self._numbers = count()
        self._lock = threading.Lock()
        self._written: dict[str, _Noted] = {}
        self._deleted: dict[str, None] = {}

    @property
    def written(self) -> tuple[PlannedObject, ...]:
        """What would be written, each object once."""
        return tuple(PlannedObject(key, noted.size) for key, noted in sorted(self._written.items()))

    @property
    def deleted(self) -> tuple[str, ...]:
        """The keys of what would be deleted."""
        return tuple(sorted(self._deleted))

    def inputs(self) -> tuple[PlannedObject, ...]:
        """The segments and runs that would be merged."""
        found: list[PlannedObject] = []
        for old, new in self._commits():
            kept = {run.key for run in new.runs}
            found += (PlannedObject(r.key, r.size) for r in old.runs if r.key not in kept)
            sizes = {
                info.key: info.size
                for page in self._inner.list(log_prefix(new.partition))
                for info in page.objects
            }
            merged = sorted(new.merged.keys() - old.merged.keys())
            found += (PlannedObject(segment, sizes.get(segment, 0)) for segment in merged)
        return tuple(found)

    def snapshots(self) -> tuple[tuple[PlannedSnapshot, ...], tuple[PlannedSnapshot, ...]]:
        """The snapshots that would be made, and those that would be taken back."""
        made: list[PlannedSnapshot] = []
        voided: list[PlannedSnapshot] = []
        runs = LogStore(self).runs
        for old, new in self._commits():
            before = {run.key for run in old.runs}
            for run in (run for run in new.runs if run.key not in before):
                for rows in runs.columns(run, [*_PLACE, "kind", "encoding", "size", "seq"]):
                    is_snapshot = pc.equal(rows["kind"], Kind.SNAPSHOT)
                    is_new = pc.greater(rows["seq"], old.generation)
                    for row in rows.filter(pc.and_(is_snapshot, is_new)).to_pylist():
                        thread_id, ns, checkpoint_id, channel = (row[name] for name in _PLACE)
                        size = row["size"] or 0
                        one = PlannedSnapshot(thread_id, ns, checkpoint_id, channel, size)
                        (voided if row["encoding"] == Encoding.VOID else made).append(one)
        return tuple(made), tuple(voided)

    def _commits(self) -> Iterator[tuple[PartitionManifest, PartitionManifest]]:
        """Each partition's manifest as it is, and as the job would leave it."""
        for key in sorted(k for k in self._written if k.startswith(f"{MANIFESTS}/")):
            new = PartitionManifest.decode(key, self.get(key).data)
            try:
                old = PartitionManifest.decode(key, self._inner.get(key).data)
            except (ObjectNotFoundError, CorruptObjectError):
                old = PartitionManifest(new.partition)
            yield old, new

    def to_dict(self) -> dict[str, Any]:
        """What would be merged, written and deleted, as plain data."""
        made, voided = self.snapshots()
        return {
            "would_merge": [asdict(one) for one in self.inputs()],
            "would_write": [asdict(write) for write in self.written],
            "would_delete": list(self.deleted),
            "would_snapshot": [asdict(one) for one in made],
            "would_void": [asdict(one) for one in voided],
        }

    def get(self, key: str) -> ObjectData:
        """Read a whole object. See `ObjectStore.get`."""
        noted = self._written.get(key)
        if noted is None:
            return self._inner.get(key)
        date = next(iter(self._inner.list("store.json"))).date
        return ObjectData(key, noted.path.read_bytes(), noted.etag, date, date)

    def get_if_changed(self, key: str, etag: str) -> ObjectData | None:
        """Read a whole object unless unchanged. See `ObjectStore.get_if_changed`."""
        if key not in self._written:
            return self._inner.get_if_changed(key, etag)
        found = self.get(key)
        return None if found.etag == etag else found

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read a part of an object. See `ObjectStore.get_range`."""
        noted = self._written.get(key)
        if noted is None:
            return self._inner.get_range(key, start, length)
        with noted.path.open("rb") as file:
            file.seek(start)
            return file.read(length)

    def put_if_absent(self, key: str, data: bytes) -> Stored:
        """Note an object. See `ObjectStore.put_if_absent`."""
        return self.compare_and_swap(key, data, None)

    def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> Stored:
        """Note a version of an object. See `ObjectStore.compare_and_swap`."""
        with self._lock:
            try:
                etag = self.get(key).etag
            except ObjectNotFoundError:
                etag = None
            if etag != expected:
                raise ConditionFailedError(f"{key} has changed meanwhile; run the command again")
            path = self._folder / f"{next(self._numbers)}"
            path.write_bytes(data)
            noted = self._written[key] = _Noted(path, len(data), _etag(data))
            return Stored(noted.etag, 0.0)

    def list(self, prefix: str) -> Iterator[ListPage]:
        """List the other store's objects. See `ObjectStore.list`."""
        return self._inner.list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        """Note what would be deleted. See `ObjectStore.delete`."""
        self._deleted.update(dict.fromkeys(keys))


def _etag(data: bytes) -> str:
    return f"dry-{blake2b(data, digest_size=16).hexdigest()}"
