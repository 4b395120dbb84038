"""Counting the requests that reach a store, and the round trips among them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from logstore.errors import ObjectStoreError
from logstore.objects.base import ObjectData, ObjectStore
from logstore.testing.wrapped import T, WrappedStore


@dataclass(frozen=True, slots=True)
class Request:
    """One request that a `CountingStore` saw."""

    method: str
    key: str
    size: int
    """Bytes of the bodies sent and received."""
    start: float
    """Seconds, monotonic."""
    end: float
    """Seconds, monotonic."""


class CountingStore(WrappedStore):
    """Records every request.

    Args:
        inner: the store that answers.
        latency: seconds that each request takes at least. With an inner store in memory,
            requests that are sent in parallel overlap in time only if they take some.
    """

    def __init__(self, inner: ObjectStore, *, latency: float = 0.0) -> None:
        super().__init__(inner)
        self._latency = latency
        self._lock = threading.Lock()
        self._requests: list[Request] = []

    @property
    def requests(self) -> tuple[Request, ...]:
        """The requests since the last reset, in the order of their ends."""
        with self._lock:
            return tuple(self._requests)

    @property
    def counts(self) -> Counter[str]:
        """How many requests each method made since the last reset."""
        return Counter(request.method for request in self.requests)

    def rounds(self) -> int:
        """How many requests, at most, followed one upon the end of another.

        This is the number of round trips that somebody had to wait for in turn.
        """
        chain, free_at = 0, float("-inf")
        for request in sorted(self.requests, key=lambda request: request.end):
            if request.start >= free_at:
                chain, free_at = chain + 1, request.end
        return chain

    def reset(self) -> None:
        """Forget the requests so far."""
        with self._lock:
            self._requests.clear()

    def around(self, method: str, key: str, sent: int, answer: Callable[[], T]) -> T:
        """Carry out and record one request."""
        start = time.monotonic()
        received = 0
        try:
            result = answer()
            if result is None and method == "list":
                return result
            received = _size(result)
            time.sleep(self._latency)
        except ObjectStoreError:
            self._record(method, key, sent, start)
            raise
        self._record(method, key, sent + received, start)
        return result

    def _record(self, method: str, key: str, size: int, start: float) -> None:
        with self._lock:
            self._requests.append(Request(method, key, size, start, time.monotonic()))


def _size(result: object) -> int:
    if isinstance(result, ObjectData):
        return len(result.data)
    return len(result) if isinstance(result, bytes) else 0
