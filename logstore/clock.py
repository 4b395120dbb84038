"""Stamps: a hybrid logical clock that names and sorts, and decides nothing.

A stamp is 64 bits: milliseconds since the epoch, and a counter of 16 bits. It never goes
back in one process. Nothing is deleted or skipped on account of a stamp; the order that
decides is the arrival at the object store.
"""

from __future__ import annotations

import threading
import time

COUNTER_BITS = 16
_MAX_AHEAD_MS = 60_000
_MIN_OFFSET_S = 2.0
"""The store's Date has whole seconds; a smaller difference says nothing."""


class Clock:
    """Issues stamps, corrected by the object store's clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._offset_s = 0.0

    def now_s(self) -> float:
        """The store's clock as well as this process knows it: seconds since the epoch."""
        return time.time() + self._offset_s

    def observe_date(self, date: float) -> None:
        """Learn the store's clock from the date of an answer (seconds since the epoch)."""
        offset = date - time.time()
        self._offset_s = offset if abs(offset) >= _MIN_OFFSET_S else 0.0

    def observe_stamp(self, stamp: int) -> None:
        """Go on after a stamp that was read, unless it is over a minute ahead.

        Without that bound one machine whose clock is a year ahead would push every
        other's stamps a year ahead, for ever.
        """
        limit = int(self.now_s() * 1000) + _MAX_AHEAD_MS
        if stamp >> COUNTER_BITS <= limit:
            with self._lock:
                self._last = max(self._last, stamp)

    def stamp(self) -> int:
        """The next stamp: greater than every one issued or observed before."""
        floor = int(self.now_s() * 1000) << COUNTER_BITS
        with self._lock:
            self._last = max(self._last + 1, floor)
            return self._last


def stamp_to_us(stamp: int) -> int:
    """A stamp's time in microseconds since the epoch."""
    return (stamp >> COUNTER_BITS) * 1000


class Elapsed:
    """Time since its creation that counts a suspended machine as well."""

    def __init__(self) -> None:
        """Begin to count."""
        self._monotonic = time.monotonic()
        self._wall = time.time()

    def seconds(self) -> float:
        """The longer of what the monotonic and the wall clock say."""
        return max(time.monotonic() - self._monotonic, time.time() - self._wall)
