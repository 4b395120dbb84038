"""The tail: listing a partition's log, fetching its segments, closing the set."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TypeVar

from logstore.cache import ByteCache
from logstore.directory import DirectoryCache, ImmutableObjects
from logstore.errors import CorruptObjectError, ObjectNotFoundError
from logstore.keys import SegmentName, log_prefix
from logstore.objects.base import ObjectStore
from logstore.records import Record
from logstore.segment import Segment, decode_segment

T = TypeVar("T")
R = TypeVar("R")


Keep = Callable[[Segment, int], Segment]
"""Is given a segment and its arrival; says what to keep of it."""
_AT_ONCE_BYTES = 8 << 20
"""Segments of so many bytes are fetched in parallel, then looked at."""
Answer = tuple[str, Segment | ObjectNotFoundError | CorruptObjectError, int | None]
"""A key, what fetching it gave, and when it arrived if the listing did not tell."""


class StartAgain(Exception):
    """What was planned from is outdated: an object is gone, or a manifest has changed."""


@dataclass(frozen=True)
class Listing:
    """A partition's log as one LIST showed it."""

    partition: int
    arrived: Mapping[str, int]
    """Segment keys, each with its arrival: microseconds since the epoch, the store's clock."""
    date: float
    """The store's clock at the last page: seconds since the epoch."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of the segments."""


@dataclass(frozen=True)
class Tail:
    """The segments of a partition, or of one thread, that a manifest has not merged."""

    segments: Mapping[str, Segment]
    arrived: Mapping[str, int]
    gone: bool
    """Whether a segment that another one builds on was answered "no such key": a manifest
    that is read after that holds its records."""

    def records(self, thread_id: str) -> list[Record]:
        """The thread's records."""
        found: list[Record] = []
        for key, segment in self.segments.items():
            found.extend(segment.records(thread_id, self.arrived[key]))
        return found

    def builds_on(self, thread_id: str) -> dict[str, Sequence[str]]:
        """For each segment: what it builds on, as far as the thread is concerned."""
        return {k: s.builds_on.get(thread_id, ()) for k, s in self.segments.items()}


class LogReader:
    """Reads the logs of a store."""

    def __init__(
        self,
        objects: ObjectStore,
        executor: Executor,
        cache: ByteCache[Segment],
        directory: DirectoryCache | None = None,
    ) -> None:
        """Read through `objects` and `directory`, with parallel requests on `executor`."""
        self._objects = objects
        self._immutable = ImmutableObjects(objects, directory)
        self._executor = executor
        self._cache = cache

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Call a function for each item, in parallel where there are several."""
        items = list(items)
        if len(items) < 2:
            return [function(item) for item in items]
        return list(self._executor.map(function, items))

    def list(self, partition: int) -> Listing:
        """List a partition's log."""
        arrived: dict[str, int] = {}
        sizes: dict[str, int] = {}
        date = 0.0
        for page in self._objects.list(log_prefix(partition)):
            for info in page.objects:
                if info.size == 0:
                    continue  # a folder marker that a bucket browser left
                arrived[info.key] = to_us(info.modified)
                sizes[info.key] = info.size
            date = page.date
        return Listing(partition, arrived, date, sizes)

    def remember(self, name: SegmentName, body: bytes) -> None:
        """Keep a segment that this process wrote, so that it need not be fetched."""
        self._cache.put(name.key, decode_segment(name.key, body), len(body))

    def fetch(self, key: str) -> Segment:
        """Read one segment.

        Raises:
            ObjectNotFoundError: it does not exist, any more or at all.
            CorruptObjectError: it cannot be read.
        """
        cached = self._cache.get(key)
        if cached is not None:
            return cached
        segment = self._immutable.read(key, partial(decode_segment, key))
        # The table, and the records that are made of it.
        self._cache.put(key, segment, 2 * segment.table.nbytes)
        return segment

    def fetch_unlisted(self, key: str) -> tuple[Segment, int]:
        """Read a segment that no page showed, and when it arrived; only the store tells.

        Raises:
            ObjectNotFoundError: it does not exist, any more or at all.
            CorruptObjectError: it cannot be read.
        """
        found = self._objects.get(key)
        return decode_segment(key, found.data), to_us(found.modified)

    def read(
        self,
        listing: Listing,
        merged: Collection[str],
        thread_id: str | None,
        on_unreadable: Callable[[str, CorruptObjectError], None] | None = None,
        keep: Keep | None = None,
    ) -> Tail:
        """Fetch the segments that a manifest has not merged, and close the set.

        Args:
            listing: the log; the manifest that names `merged` was read after it, or within
                the bound that makes the order irrelevant.
            merged: the keys of merged segments.
            thread_id: fetch only what may hold this thread; None for everything.
            on_unreadable: is told of segments that cannot be read, which are left out.
            keep: takes what it needs of each segment, so that not all need fit into memory.

        Raises:
            StartAgain: a listed segment is gone.
            CorruptObjectError: a segment cannot be read, and `on_unreadable` is None.
        """
        wanted = [
            key
            for key in listing.arrived
            if key not in merged
            and (thread_id is None or SegmentName.parse(key).may_hold(thread_id))
        ]
        segments: dict[str, Segment] = {}
        arrived = dict(listing.arrived)
        gone: set[str] = set()
        skipped: set[str] = set()
        missing = set(wanted)
        while missing:
            listed, hidden = missing & listing.arrived.keys(), missing - listing.arrived.keys()
            answers = chain(
                self._fetch_listed(sorted(listed), listing.sizes),
                self.map(self._try_fetch_hidden, sorted(hidden)),
            )
            for key, answer, modified in answers:
                if isinstance(answer, ObjectNotFoundError):
                    if key in listing.arrived:
                        raise StartAgain from answer
                    gone.add(key)
                elif isinstance(answer, CorruptObjectError):
                    if on_unreadable is None:
                        raise answer
                    on_unreadable(key, answer)
                    skipped.add(key)
                else:
                    if modified is not None:
                        arrived[key] = modified
                    segments[key] = answer if keep is None else keep(answer, arrived[key])
            missing = self._named(segments, merged, thread_id)
            missing -= segments.keys() | gone | skipped
        return Tail(segments, arrived, bool(gone))

    def _fetch_listed(self, keys: Sequence[str], sizes: Mapping[str, int]) -> Iterator[Answer]:
        """Segments that a page showed; those in memory cost no trip to another thread."""
        missing: list[str] = []
        waiting = 0
        for key in keys:
            segment = self._cache.get(key)
            if segment is not None:
                yield key, segment, None
                continue
            missing.append(key)
            waiting += sizes.get(key, 0)
            if waiting >= _AT_ONCE_BYTES:
                yield from self.map(self._try_fetch, missing)
                missing, waiting = [], 0
        yield from self.map(self._try_fetch, missing)

    def _try_fetch(self, key: str) -> Answer:
        try:
            return key, self.fetch(key), None
        except (ObjectNotFoundError, CorruptObjectError) as error:
            return key, error, None

    def _try_fetch_hidden(self, key: str) -> Answer:
        """Fetch a segment that no page showed: only the store tells whether it is still there.

        No cache is asked, because that it is gone is an answer too.
        """
        try:
            return key, *self.fetch_unlisted(key)
        except (ObjectNotFoundError, CorruptObjectError) as error:
            return key, error, None

    @staticmethod
    def _named(
        segments: Mapping[str, Segment], merged: Collection[str], thread_id: str | None
    ) -> set[str]:
        """The unmerged segments that the given ones build on."""
        named: set[str] = set()
        for segment in segments.values():
            threads = segment.builds_on if thread_id is None else (thread_id,)
            for thread in threads:
                named.update(segment.builds_on.get(thread, ()))
        return named.difference(merged)


def to_us(seconds: float) -> int:
    """Seconds since the epoch as whole microseconds."""
    return round(seconds * 1_000_000)
