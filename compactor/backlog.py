"""Which of the waiting segments a commit merges: a closed set of bounded size.

A set is closed if it holds, or a manifest names as merged, all that its segments build on.
Taken in the order of their names, and each after what it builds on, every prefix is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from compactor.memory import ROW_BYTES
from logstore.errors import CorruptObjectError, ObjectNotFoundError
from logstore.segment import Segment
from logstore.tail import Listing, LogReader, StartAgain, Tail

_WINDOW_SEGMENTS = 64
"""So many segments are fetched in parallel at most."""
_WINDOW_SHARE = 8
"""And so large a part of the budget."""


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """How much one commit merges."""

    bytes: int
    """Of the segments in memory."""
    segments: int | None = None


def take_segments(
    log: LogReader,
    listing: Listing,
    merged: Mapping[str, object],
    limit: BatchLimit,
    on_unreadable: Callable[[str, CorruptObjectError], None],
) -> Tail:
    """Fetch the oldest unmerged segments, as many as fit, at least one.

    Args:
        log: reads segments.
        listing: the log.
        merged: the keys of merged segments.
        limit: how many.
        on_unreadable: is told of segments that cannot be read, which are left out.

    Raises:
        StartAgain: a listed segment is gone.
    """
    batch = _Batch(log, listing, merged, limit, on_unreadable)
    waiting = sorted(key for key in listing.arrived if key not in merged)
    for window in _windows(waiting, listing.sizes, limit.bytes // _WINDOW_SHARE):
        batch.prefetch(window)
        for key in window:
            if not batch.add(key):
                return batch.tail()
    return batch.tail()


def _windows(keys: Sequence[str], sizes: Mapping[str, int], limit: int) -> Iterator[list[str]]:
    window: list[str] = []
    size = 0
    for key in keys:
        more = sizes.get(key, 0)
        if window and (size + more > limit or len(window) == _WINDOW_SEGMENTS):
            yield window
            window, size = [], 0
        window.append(key)
        size += more
    if window:
        yield window


class _Batch:
    """The segments taken so far."""

    def __init__(
        self,
        log: LogReader,
        listing: Listing,
        merged: Mapping[str, object],
        limit: BatchLimit,
        on_unreadable: Callable[[str, CorruptObjectError], None],
    ) -> None:
        self._log = log
        self._listing = listing
        self._merged = merged
        self._limit = limit
        self._bytes = 0
        self._on_unreadable = on_unreadable
        self._fetched: dict[str, Segment] = {}
        self._taken: dict[str, Segment] = {}
        self._arrived = dict(listing.arrived)
        self._gone: set[str] = set()
        self._skipped: set[str] = set()

    def tail(self) -> Tail:
        return Tail(self._taken, self._arrived, bool(self._gone))

    def prefetch(self, keys: Sequence[str]) -> None:
        """Fetch some segments in parallel, and let go of earlier ones."""
        wanted = [key for key in keys if not self._is_done(key)]
        self._fetched = {}
        for key, segment in zip(wanted, self._log.map(self._fetch, wanted), strict=True):
            if segment is not None:
                self._fetched[key] = segment

    def add(self, key: str) -> bool:
        """Take a segment after all that it builds on; False if there is no room for all of it."""
        stack = [key]
        opened: set[str] = set()
        while stack:
            top = stack[-1]
            segment = None if self._is_done(top) else self._segment(top)
            if segment is None:
                stack.pop()
                continue
            named = {k for keys in segment.builds_on.values() for k in keys}
            needed = [k for k in sorted(named) if not self._is_done(k)]
            if needed and top not in opened:
                opened.add(top)
                stack.extend(needed)
                continue
            weight = 2 * segment.table.nbytes + ROW_BYTES * segment.table.num_rows
            full = self._limit.segments is not None and len(self._taken) >= self._limit.segments
            if self._taken and (full or self._bytes + weight > self._limit.bytes):
                return False
            self._bytes += weight
            self._taken[stack.pop()] = segment
        return True

    def _is_done(self, key: str) -> bool:
        return (
            key in self._taken or key in self._merged or key in self._gone or key in self._skipped
        )

    def _segment(self, key: str) -> Segment | None:
        return self._fetched.get(key) or self._fetch(key)

    def _fetch(self, key: str) -> Segment | None:
        """A segment, or None with the reason noted.

        Raises:
            StartAgain: it is listed, and gone.
        """
        try:
            if key in self._listing.arrived:
                return self._log.fetch(key)
            segment, self._arrived[key] = self._log.fetch_unlisted(key)
            return segment
        except ObjectNotFoundError as error:
            if key in self._listing.arrived:
                raise StartAgain from error
            self._gone.add(key)
        except CorruptObjectError as error:
            self._on_unreadable(key, error)
            self._skipped.add(key)
        return None
