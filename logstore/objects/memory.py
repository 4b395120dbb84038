"""Objects in this process's memory: for tests, examples and throw-away stores."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from logstore.errors import ConditionFailedError, ObjectNotFoundError
from logstore.objects.base import ListPage, ObjectData, ObjectInfo, ObjectStore, Stored
from logstore.objects.checks import check_body, check_key, check_prefix, check_range

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class _Version:
    data: bytes
    etag: str
    modified: float


@dataclass(slots=True)
class _Space:
    objects: dict[str, _Version] = field(default_factory=dict)
    serial: count[int] = field(default_factory=lambda: count(1))


# One lock for all spaces: every critical section is a few dictionary operations. It is
# held across a fork, so that a child never inherits it locked by a thread it lacks.
_LOCK = threading.Lock()
_SPACES: dict[str, _Space] = {}
os.register_at_fork(
    before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
)


class MemoryObjectStore(ObjectStore):
    """A store whose objects live as long as the process.

    Stores opened with one name share one set of objects. A forked child goes on with its
    own copy.

    Args:
        name: names the set of objects, as in ``memory://name``.
    """

    def __init__(self, name: str) -> None:
        self.uri = f"memory://{name}"
        with _LOCK:
            self._space = _SPACES.setdefault(name, _Space())

    @staticmethod
    def forget(name: str) -> None:
        """Drop the objects of `name`: the next store opened with it begins empty."""
        with _LOCK:
            _SPACES.pop(name, None)

    def get(self, key: str) -> ObjectData:
        """Read a whole object. See `ObjectStore.get`."""
        version = self._version(key)
        return ObjectData(key, version.data, version.etag, version.modified, time.time())

    def get_if_changed(self, key: str, etag: str) -> ObjectData | None:
        """Read a whole object unless unchanged. See `ObjectStore.get_if_changed`."""
        found = self.get(key)
        return None if found.etag == etag else found

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read a part of an object. See `ObjectStore.get_range`."""
        check_range(key, start, length)
        return self._version(key).data[start : start + length]

    def put_if_absent(self, key: str, data: bytes) -> Stored:
        """Create an object. See `ObjectStore.put_if_absent`."""
        return self.compare_and_swap(key, data, None)

    def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> Stored:
        """Replace one version of an object. See `ObjectStore.compare_and_swap`."""
        check_key(key)
        body = bytes(check_body(key, data))
        with _LOCK:
            current = self._space.objects.get(key)
            found = current.etag if current else None
            if found != expected:
                raise ConditionFailedError(
                    f"{self.uri}: {key!r} is at version {found}, expected {expected}; "
                    "read it again and decide anew"
                )
            now = time.time()
            version = _Version(body, str(next(self._space.serial)), now)
            self._space.objects[key] = version
        return Stored(version.etag, now)

    def list(self, prefix: str) -> Iterator[ListPage]:
        """List objects by prefix. See `ObjectStore.list`."""
        check_prefix(prefix)
        with _LOCK:
            now = time.time()
            found = [
                ObjectInfo(key, len(version.data), version.modified)
                for key, version in self._space.objects.items()
                if key.startswith(prefix)
            ]
        for start in range(0, max(len(found), 1), _PAGE):
            yield ListPage(tuple(found[start : start + _PAGE]), now)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. See `ObjectStore.delete`."""
        with _LOCK:
            for key in keys:
                self._space.objects.pop(check_key(key), None)

    def _version(self, key: str) -> _Version:
        check_key(key)
        with _LOCK:
            version = self._space.objects.get(key)
        if version is None:
            raise ObjectNotFoundError(f"{self.uri}: no object {key!r}; it was expected to exist")
        return version
