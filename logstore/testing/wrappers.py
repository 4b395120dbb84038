"""Object stores for tests: they wrap another one and count, fail, shuffle, hold or skew.

Each wraps any `ObjectStore`, another wrapper included, and may be used by many threads.
A request is told by its method's name and its key; for ``list`` the key is the prefix,
and each page is a request; for ``delete`` it is the first key.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from logstore.objects.base import ListPage, ObjectData, ObjectStore, Stored
from logstore.testing.counting import CountingStore, Request
from logstore.testing.faults import Fault, FaultyStore
from logstore.testing.pausing import Held, PausingStore
from logstore.testing.wrapped import Predicate, WrappedStore

__all__ = [
    "CountingStore",
    "Fault",
    "FaultyStore",
    "Held",
    "PausingStore",
    "Predicate",
    "Request",
    "ShufflingStore",
    "SkewedClockStore",
    "WrappedStore",
]


class ShufflingStore(WrappedStore):
    """Lists in random order, in small pages.

    Args:
        inner: the store that answers.
        seed: makes the orders repeatable; each listing has another one.
        page_size: objects a page.
    """

    def __init__(self, inner: ObjectStore, *, seed: int = 0, page_size: int = 7) -> None:
        super().__init__(inner)
        self._seed = seed
        self._page_size = page_size
        self._serial = count()

    def list(self, prefix: str) -> Iterator[ListPage]:
        """List objects by prefix, shuffled. See `ObjectStore.list`."""
        pages = tuple(super().list(prefix))
        objects = [found for page in pages for found in page.objects]
        random.Random(f"{self._seed}/{next(self._serial)}").shuffle(objects)
        for start in range(0, max(len(objects), 1), self._page_size):
            cut = tuple(objects[start : start + self._page_size])
            yield ListPage(cut, pages[-1].date)


class SkewedClockStore(WrappedStore):
    """Answers as if the store's clock were wrong.

    Args:
        inner: the store that answers.
        offset: seconds that the clock is ahead; may be changed at any time.
    """

    def __init__(self, inner: ObjectStore, offset: float) -> None:
        super().__init__(inner)
        self.offset = offset

    def get(self, key: str) -> ObjectData:
        """Read a whole object. See `ObjectStore.get`."""
        return self._skewed(super().get(key))

    def get_if_changed(self, key: str, etag: str) -> ObjectData | None:
        """Read a whole object unless unchanged. See `ObjectStore.get_if_changed`."""
        found = super().get_if_changed(key, etag)
        return self._skewed(found) if found else None

    def put_if_absent(self, key: str, data: bytes) -> Stored:
        """Create an object. See `ObjectStore.put_if_absent`."""
        stored = super().put_if_absent(key, data)
        return replace(stored, date=stored.date + self.offset)

    def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> Stored:
        """Replace one version of an object. See `ObjectStore.compare_and_swap`."""
        stored = super().compare_and_swap(key, data, expected)
        return replace(stored, date=stored.date + self.offset)

    def list(self, prefix: str) -> Iterator[ListPage]:
        """List objects by prefix. See `ObjectStore.list`."""
        for page in super().list(prefix):
            objects = tuple(
                replace(found, modified=found.modified + self.offset) for found in page.objects
            )
            yield ListPage(objects, page.date + self.offset)

    def _skewed(self, found: ObjectData) -> ObjectData:
        return replace(found, modified=found.modified + self.offset, date=found.date + self.offset)
