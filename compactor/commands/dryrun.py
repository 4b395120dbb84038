"""A dry run: a whole job whose writes stay in memory, so that its plan is exact."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

from logstore.errors import ConditionFailedError, CorruptObjectError, ObjectNotFoundError
from logstore.keys import MANIFESTS, log_prefix
from logstore.manifest import PartitionManifest
from logstore.objects.base import ListPage, ObjectData, ObjectStore, Stored


@dataclass(frozen=True, slots=True)
class PlannedObject:
    """An object that a job would merge or write."""

    key: str
    size: int
    """Bytes."""


class DryRunStore(ObjectStore):
    """Reads from another store; what is written or deleted is noted and never sent.

    Args:
        inner: the store that answers reads of what was not written here.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self.uri = inner.uri
        self._inner = inner
        self._lock = threading.Lock()
        self._written: dict[str, bytes] = {}
        self._deleted: dict[str, None] = {}

    @property
    def written(self) -> tuple[PlannedObject, ...]:
        """What would be written, each object once."""
        return tuple(PlannedObject(key, len(data)) for key, data in sorted(self._written.items()))

    @property
    def deleted(self) -> tuple[str, ...]:
        """The keys of what would be deleted."""
        return tuple(sorted(self._deleted))

    def inputs(self) -> tuple[PlannedObject, ...]:
        """The segments and runs that would be merged."""
        found: list[PlannedObject] = []
        for key in sorted(k for k in self._written if k.startswith(f"{MANIFESTS}/")):
            new = PartitionManifest.decode(key, self._written[key])
            try:
                old = PartitionManifest.decode(key, self._inner.get(key).data)
            except (ObjectNotFoundError, CorruptObjectError):
                old = PartitionManifest(new.partition)
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

    def to_dict(self) -> dict[str, Any]:
        """What would be merged, written and deleted, as plain data."""
        return {
            "would_merge": [asdict(one) for one in self.inputs()],
            "would_write": [asdict(write) for write in self.written],
            "would_delete": list(self.deleted),
        }

    def get(self, key: str) -> ObjectData:
        """Read a whole object. See `ObjectStore.get`."""
        data = self._written.get(key)
        if data is None:
            return self._inner.get(key)
        date = next(iter(self._inner.list("store.json"))).date
        return ObjectData(key, data, _etag(data), date, date)

    def get_if_changed(self, key: str, etag: str) -> ObjectData | None:
        """Read a whole object unless unchanged. See `ObjectStore.get_if_changed`."""
        if key not in self._written:
            return self._inner.get_if_changed(key, etag)
        found = self.get(key)
        return None if found.etag == etag else found

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read a part of an object. See `ObjectStore.get_range`."""
        data = self._written.get(key)
        if data is None:
            return self._inner.get_range(key, start, length)
        return data[start : start + length]

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
            self._written[key] = data
            return Stored(_etag(data), 0.0)

    def list(self, prefix: str) -> Iterator[ListPage]:
        """List the other store's objects. See `ObjectStore.list`."""
        return self._inner.list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        """Note what would be deleted. See `ObjectStore.delete`."""
        self._deleted.update(dict.fromkeys(keys))


def _etag(data: bytes) -> str:
    return f"dry-{blake2b(data, digest_size=16).hexdigest()}"
