"""Holding single requests, to play out one order of events among many."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from logstore.objects.base import ObjectStore
from logstore.testing.wrapped import Predicate, T, WrappedStore


class Held:
    """One request that a `PausingStore` holds, or waits for."""

    def __init__(self, matches: Predicate, *, after: bool) -> None:
        self.matches = matches
        self.after = after
        self._blocked = threading.Event()
        self._released = threading.Event()

    def wait_until_blocked(self, timeout: float = 10.0) -> None:
        """Wait until the request has come and is held.

        Raises:
            TimeoutError: it did not come within `timeout` seconds.
        """
        if not self._blocked.wait(timeout):
            raise TimeoutError(f"no request that matches was made within {timeout} s")

    def release(self) -> None:
        """Let the request go on."""
        self._released.set()

    def block(self) -> None:
        """Hold the calling thread until the release."""
        self._blocked.set()
        self._released.wait()


class PausingStore(WrappedStore):
    """Holds chosen requests until they are released.

    Args:
        inner: the store that answers.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._holds: list[Held] = []

    @contextmanager
    def hold(self, matches: Predicate, *, after: bool = False) -> Iterator[Held]:
        """Hold the next request that a predicate chooses; later ones pass.

        Args:
            matches: chooses by method and key.
            after: whether the request is carried out first, and its answer held.

        Yields:
            The handle to wait for it and to release it; the end of the block does too.
        """
        held = Held(matches, after=after)
        with self._lock:
            self._holds.append(held)
        try:
            yield held
        finally:
            self._remove(held)
            held.release()

    def around(self, method: str, key: str, sent: int, answer: Callable[[], T]) -> T:
        """Carry out one request, held as long as is asked for."""
        held = self._take(method, key)
        if held and not held.after:
            held.block()
        result = answer()
        if held and held.after:
            held.block()
        return result

    def _take(self, method: str, key: str) -> Held | None:
        with self._lock:
            for held in self._holds:
                if held.matches(method, key):
                    self._holds.remove(held)
                    return held
        return None

    def _remove(self, held: Held) -> None:
        with self._lock:
            if held in self._holds:
                self._holds.remove(held)
