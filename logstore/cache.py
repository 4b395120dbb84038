"""What was read once and is kept: under a byte budget what cannot change, by version what can."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from cachetools import LRUCache

V = TypeVar("V")


class ByteCache(Generic[V]):
    """The most recently used values whose sizes fit a budget; safe under threads.

    Only immutable values belong in here: they are shared by all who ask.
    """

    def __init__(self, budget: int) -> None:
        """Create an empty cache of at most `budget` bytes."""
        self._lock = threading.Lock()
        self._entries: LRUCache[Hashable, tuple[V, int]] = LRUCache(budget, getsizeof=_size)

    def get(self, key: Hashable) -> V | None:
        """The value, if it is still here."""
        with self._lock:
            entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def put(self, key: Hashable, value: V, size: int) -> None:
        """Keep a value of `size` bytes, unless it is larger than the whole budget."""
        if size <= self._entries.maxsize:
            with self._lock:
                self._entries[key] = (value, size)

    def get_or_load(self, key: Hashable, load: Callable[[], V], size: Callable[[V], int]) -> V:
        """The value, loaded if it is not here. Two threads may both load it."""
        value = self.get(key)
        if value is None:
            value = load()
            self.put(key, value, size(value))
        return value

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()


class VersionedCache(Generic[V]):
    """What was made from a thread's records, kept with the version of what they were read from.

    A value is given out only to who has just seen the same version. So nothing is ever "the
    latest" here, and a late write onto an old checkpoint, which changes what an immutable key
    like a checkpoint id stands for, needs no invalidation. Values are shared by all who ask.
    """

    def __init__(self, max_entries: int, budget: int) -> None:
        """Create an empty cache.

        Args:
            max_entries: how many values are kept at most; 0 keeps none.
            budget: how many bytes they have at most.
        """
        self._max_entries = max_entries
        self._lock = threading.Lock()
        self._entries: LRUCache[tuple[str, ...], tuple[tuple[Hashable, V], int]] = LRUCache(
            budget, getsizeof=_size
        )

    def get(self, key: tuple[str, ...], version: Hashable) -> V | None:
        """The value, if one of this version is here; of None there never is."""
        with self._lock:
            entry = self._entries.get(key)
        if entry is None or entry[0][0] != version:
            return None
        return entry[0][1]

    def put(self, key: tuple[str, ...], version: Hashable, value: V, size: int) -> None:
        """Keep a value instead of that of another version.

        Args:
            key: what it is; a thread id comes first.
            version: of what it was made from; None keeps nothing.
            value: it must not change any more.
            size: its bytes.
        """
        if version is None or not self._max_entries or size > self._entries.maxsize:
            return
        with self._lock:
            self._entries[key] = ((version, value), size)
            while len(self._entries) > self._max_entries:
                self._entries.popitem()

    def forget(self, thread_id: str) -> None:
        """Let go of all that belongs to a thread."""
        with self._lock:
            for key in [key for key in self._entries if key[0] == thread_id]:
                del self._entries[key]

    def __len__(self) -> int:
        """How many values are kept."""
        return len(self._entries)


def _size(entry: Any) -> int:
    size: int = entry[1]
    return size
