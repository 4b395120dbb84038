"""What was read once and cannot change, kept under a byte budget."""

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


def _size(entry: Any) -> int:
    size: int = entry[1]
    return size
