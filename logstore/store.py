"""The store: opens an object store and joins the parts that write and read it."""

from __future__ import annotations

import json
import logging
import os
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from logstore.bases import BaseCache
from logstore.cache import ByteCache, VersionedCache
from logstore.clock import Clock
from logstore.config import DEFAULT_HISTORY_ENTRIES
from logstore.directory import DirectoryCache, prepare_directory
from logstore.errors import (
    ClosedError,
    ConditionFailedError,
    CorruptObjectError,
    FormatVersionError,
    InvalidOptionError,
    LogStoreError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreMismatchError,
)
from logstore.keys import STORE_JSON, SegmentName, partition_of
from logstore.lanes import Entry, Lane, LaneContext
from logstore.lineage import Lineage
from logstore.objects import open_object_store
from logstore.objects.base import ObjectStore
from logstore.objects.probe import probe_conditional_writes
from logstore.reader import ThreadRead, ThreadReader
from logstore.records import FORMAT_VERSION, Record, Tombstone, tombstone_record
from logstore.runs import RunReader
from logstore.tail import Listing, LogReader
from logstore.values import Patched, TypedHistory, ValueReader

logger = logging.getLogger(__name__)
DEFAULT_PARTITIONS = 4
MAX_PARTITIONS = 4096
SHORT_GRACE_S = 300.0
LONG_GRACE_S = 3600.0
LONG_TAIL_SEGMENTS = 200
LONG_TAIL_AGE_S = 3600.0
"""A log with so many segments, one of them so old, is not being compacted."""
CACHE_DIR_BYTES = 1 << 30
CHECKPOINT_HOLD_S = 0.5
"""How long `checkpoint` mode keeps task writes in memory for their checkpoint's company."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What `store.json` records at creation; it never changes."""

    partitions: int = DEFAULT_PARTITIONS
    short_grace_s: float = SHORT_GRACE_S
    """The least seconds between a commit and the deletion of the segments it merged."""
    long_grace_s: float = LONG_GRACE_S
    """The same for runs and snapshot objects that were replaced."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if not 1 <= self.partitions <= MAX_PARTITIONS:
            raise InvalidOptionError(
                f"a store has 1 to {MAX_PARTITIONS} partitions, not {self.partitions}"
            )
        if min(self.short_grace_s, self.long_grace_s) < 0:
            raise InvalidOptionError("a grace is a number of seconds, zero or more")

    def encode(self) -> bytes:
        """The body of `store.json`."""
        doc = {
            "format": FORMAT_VERSION,
            "partitions": self.partitions,
            "short_grace_s": self.short_grace_s,
            "long_grace_s": self.long_grace_s,
        }
        return json.dumps(doc, indent=1).encode()

    @classmethod
    def decode(cls, uri: str, data: bytes) -> Settings:
        """Read `store.json`.

        Raises:
            CorruptObjectError: it is not what logstore writes.
            FormatVersionError: the store is of a newer format.
        """
        try:
            doc = json.loads(data)
            version = doc["format"]
            settings = (doc["partitions"], doc["short_grace_s"], doc["long_grace_s"])
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptObjectError(
                f"{STORE_JSON} of {uri} cannot be read ({error!r}); restore it from a version or "
                "copy of the bucket: it records the partition count"
            ) from error
        if version > FORMAT_VERSION:
            raise FormatVersionError(
                f"the store {uri} has format version {version}, this logstore reads up to "
                f"{FORMAT_VERSION}; upgrade langgraph-checkpoint-logstore"
            )
        return cls(*settings)


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a process uses a store."""

    partitions: int | None = None
    """Demand this count, and create the store with it; None takes what is there."""
    short_grace_s: float | None = None
    long_grace_s: float | None = None
    hold_s: float = 0.0
    """How long acknowledged writes wait for company; 0 stores them at once."""
    linger_s: float = 0.0
    """The least seconds between two PUTs of a partition."""
    max_buffered_bytes: int = 64 << 20
    """Above this many acknowledged bytes in memory, calls wait for durability."""
    cache_bytes: int = 256 << 20
    base_bytes: int = 64 << 20
    """For earlier values that new ones are patched against; without them values are stored
    whole."""
    history_entries: int = DEFAULT_HISTORY_ENTRIES
    """How many delta histories, and how many threads' records, are kept to be read again while
    nothing of the thread changes; 0 keeps none."""
    cache_dir: str | Path | None = None
    """A directory for segments, ranges of runs and snapshot objects, which the next process finds
    there; None for none."""
    cache_dir_bytes: int = CACHE_DIR_BYTES
    """How large that directory gets, about."""
    io_threads: int = 16


class LogStore:
    """One store: its settings, its lanes, its readers.

    May be shared by threads and event loops. A forked child gets lanes, caches and a
    writer id of its own.
    """

    def __init__(self, objects: ObjectStore, options: StoreOptions | None = None) -> None:
        """Use a store. Nothing is sent before the first read or write."""
        self.options = options or StoreOptions()
        if self.options.cache_dir is not None:
            prepare_directory(self.options.cache_dir, self.options.cache_dir_bytes)
        self._objects = objects
        self._guard = threading.Lock()
        self._runtime: _Runtime | None = None
        self._settings: Settings | None = None
        self._probed = False
        self._closed = False
        self._finalizer: weakref.finalize[..., LogStore] | None = None

    @classmethod
    def open(cls, uri: str, options: StoreOptions | None = None, **backend: Any) -> LogStore:
        """Use the store at a URI; `backend` options are `open_object_store`'s.

        Raises:
            InvalidURIError, InvalidOptionError
        """
        return cls(open_object_store(uri, **backend), options)

    @property
    def uri(self) -> str:
        """Where the store is."""
        return self._objects.uri

    @property
    def objects(self) -> ObjectStore:
        """The object store underneath."""
        return self._process().objects

    # -- settings ----------------------------------------------------------------

    def settings(self) -> Settings | None:
        """The store's settings, or None while it does not exist.

        Raises:
            StoreMismatchError: it has another partition count than was demanded.
            CorruptObjectError, FormatVersionError
        """
        if self._settings is None:
            try:
                found = self._objects.get(STORE_JSON)
            except ObjectNotFoundError:
                return None
            self._settings = self._check(Settings.decode(self.uri, found.data))
        return self._settings

    def _check(self, settings: Settings) -> Settings:
        wanted = self.options.partitions
        if wanted is not None and wanted != settings.partitions:
            raise StoreMismatchError(
                f"the store {self.uri} has {settings.partitions} partitions and was opened with "
                f"partitions={wanted}; the count is fixed at creation, leave the option out"
            )
        return settings

    def create(self) -> Settings:
        """The store's settings, created if there are none.

        Raises:
            UnsupportedStoreError: the object store ignores conditional writes.
            StoreMismatchError: it exists with another partition count.
        """
        if self._probed and self._settings is not None:
            return self._settings
        with self._guard:
            if not self._probed:
                probe_conditional_writes(self._objects, "probe")
                self._probed = True
            return self.settings() or self._create()

    @property
    def ready(self) -> bool:
        """Whether the next write needs no request but its own."""
        return self._probed and self._settings is not None

    def _create(self) -> Settings:
        options = self.options
        settings = Settings(
            DEFAULT_PARTITIONS if options.partitions is None else options.partitions,
            SHORT_GRACE_S if options.short_grace_s is None else options.short_grace_s,
            LONG_GRACE_S if options.long_grace_s is None else options.long_grace_s,
        )
        try:
            self._objects.put_if_absent(STORE_JSON, settings.encode())
        except (ConditionFailedError, OutcomeUnknownError):
            created = self.settings()
            if created is None:
                raise
            return created
        self._settings = settings
        return settings

    # -- writing -----------------------------------------------------------------

    def stamp(self) -> int:
        """The next stamp."""
        return self._process().clock.stamp()

    def submit(self, entry: Entry) -> None:
        """Hand records to their thread's lane; `entry.done` tells when they are durable.

        Raises:
            ThreadPoisonedError: an acknowledged write of the thread was lost.
            ClosedError: the store was closed.
            LogStoreError: what the entry needs could not be stored.
        """
        if self._closed:
            raise ClosedError(f"the store {self.uri} was closed; open a new one to write")
        runtime = self._process()
        runtime.lane(self.partition(entry.thread_id, create=True)).submit(entry)

    def write(self, thread_id: str, records: Sequence[Record]) -> None:
        """Store records of a thread durably, all in one segment.

        Raises:
            CommitUnknownError: the store did not say whether it was stored.
            ThreadPoisonedError: an acknowledged write of the thread was lost.
            ClosedError: the store was closed.
        """
        entry = Entry(thread_id, records, waited=True)
        self.submit(entry)
        entry.done.result()

    def hide(self, thread_id: str, tombstone: Tombstone) -> None:
        """Store a tombstone of a thread, durably, and let go of what is known of the thread."""
        record = tombstone_record(thread_id, tombstone, self.stamp())
        self.write(thread_id, [record])
        self.forget(thread_id)

    def must_wait(self) -> bool:
        """Whether more is buffered than may be: the next call should wait."""
        return self._process().buffered_bytes() > self.options.max_buffered_bytes

    def flush(self) -> None:
        """Wait until all that was acknowledged is durable.

        Raises:
            ThreadPoisonedError: something acknowledged could not be stored.
        """
        runtime = self._runtime
        if runtime is None or runtime.pid != os.getpid():
            return
        runtime.flush()

    def settle(self, thread_id: str) -> None:
        """Wait until what was acknowledged of a thread is durable, or known to be lost."""
        if self.settings() is not None:
            self._process().lane(self.partition(thread_id)).settle()

    def close(self) -> None:
        """Flush, then let go of threads and connections. Repeating it does nothing."""
        if self._closed:
            return
        try:
            self.flush()
        finally:
            self._closed = True
            if self._finalizer is not None:
                self._finalizer.detach()
            runtime, self._runtime = self._runtime, None
            if runtime is not None and runtime.pid == os.getpid():
                runtime.shutdown()
            self._objects.close()

    # -- reading -----------------------------------------------------------------

    def partition(self, thread_id: str, *, create: bool = False) -> int:
        """The partition of a thread; without a store, that of one still to be created."""
        settings = self.create() if create else self.settings()
        partitions = settings.partitions if settings else DEFAULT_PARTITIONS
        return partition_of(thread_id, partitions)

    def read_head(self, thread_id: str) -> ThreadRead:
        """Read a thread's head; its view raises `NeedsHistory` where it does not reach.

        The first read of a process does not wait for the settings: it assumes the usual
        ones, and is repeated if they turn out to be others.
        """
        known = self._settings
        if known is not None:
            return self._head(thread_id, known)
        assumed = Settings(partitions=self.options.partitions or DEFAULT_PARTITIONS)
        settings = self._process().io.submit(self.settings)
        read = self._head(thread_id, assumed)
        actual = settings.result() or assumed
        same_place = actual.partitions == assumed.partitions
        if same_place and actual.short_grace_s >= assumed.short_grace_s:
            return read
        return self._head(thread_id, actual)

    def _head(self, thread_id: str, settings: Settings) -> ThreadRead:
        reader = self._process().reader(settings)
        return reader.head(thread_id, partition_of(thread_id, settings.partitions))

    def read_history(
        self, thread_id: str, after: ThreadRead | None = None, *, with_holes: bool = False
    ) -> ThreadRead:
        """Read all records of a thread.

        Args:
            thread_id: the thread.
            after: a head read, whose LIST serves.
            with_holes: answer although a segment was lost, for people who look for what is left.
        """
        partition = self.partition(thread_id)
        if after is None:
            return self.reader.history(thread_id, partition, with_holes=with_holes)
        return self.reader.beyond(after, partition)

    def forget(self, thread_id: str) -> None:
        """Let go of a thread's records and histories: it was deleted, pruned, or is outdated."""
        process = self._process()
        process.reads.forget(thread_id)
        process.histories.forget(thread_id)

    @property
    def reader(self) -> ThreadReader:
        """The reader of threads."""
        return self._process().reader(self.settings() or Settings())

    @property
    def seen_s(self) -> float:
        """How long after it was seen something that another process may have hidden is there.

        What is hidden is dropped no sooner than after the short grace. Half of it is left for
        what is made in the meantime to arrive.
        """
        return self._settings.short_grace_s / 2 if self._settings is not None else 0.0

    @property
    def bases(self) -> BaseCache:
        """What this process knows of earlier values, to patch against."""
        return self._process().bases

    @property
    def histories(self) -> VersionedCache[TypedHistory]:
        """Delta histories by thread, namespace, checkpoint id and channel."""
        return self._process().histories

    @property
    def patched(self) -> Patched:
        """Values that were stored as patches, decoded."""
        return self._process().patched

    @property
    def log(self) -> LogReader:
        """The reader of the log."""
        return self._process().log

    @property
    def runs(self) -> RunReader:
        """The reader of runs."""
        return self._process().runs

    @property
    def executor(self) -> ThreadPoolExecutor:
        """The pool on which whole calls run on behalf of event loops."""
        return self._process().calls

    def acknowledged_checkpoints(self, partition: int) -> list[tuple[str, str, str]]:
        """Thread, namespace and id of this process's checkpoints that are not stored yet."""
        return self._process().acknowledged_checkpoints(partition)

    def _process(self) -> _Runtime:
        runtime = self._runtime
        if runtime is None or runtime.pid != os.getpid():
            if runtime is not None:
                # A forked child: nothing of the parent's may be touched, not even locks.
                self._guard = threading.Lock()
                runtime = self._runtime = None
            with self._guard:
                runtime = self._runtime
                if runtime is None:
                    if self._closed:
                        raise ClosedError(f"the store {self.uri} was closed; open a new one")
                    runtime = self._runtime = _Runtime(self._objects, self.options)
                    self._finalizer = weakref.finalize(self, _flush_at_end, runtime)
        return runtime


class _Runtime:
    """What belongs to one process: pools, caches, lanes, the clock."""

    def __init__(self, objects: ObjectStore, options: StoreOptions) -> None:
        self.pid = os.getpid()
        self.objects = objects
        self.options = options
        self.clock = Clock()
        self.lineage = Lineage()
        self.io = ThreadPoolExecutor(options.io_threads, "logstore-io")
        self.calls = ThreadPoolExecutor(options.io_threads, "logstore-call")
        self._lane_pool = ThreadPoolExecutor(options.io_threads, "logstore-lane")
        budget = options.cache_bytes // 7
        directory = None
        if options.cache_dir is not None:
            directory = DirectoryCache(options.cache_dir, options.cache_dir_bytes, objects.uri)
        self.log = LogReader(objects, self.io, ByteCache(budget), directory)
        self.runs = RunReader(objects, ByteCache(budget), directory)
        self.values = ValueReader(
            objects, self.io, self.runs, ByteCache(budget), directory, held_bytes=budget
        )
        self._manifests: ByteCache[Any] = ByteCache(budget)
        self.patched: Patched = ByteCache(budget)
        self.reads: VersionedCache[ThreadRead] = VersionedCache(options.history_entries, budget)
        self.histories: VersionedCache[TypedHistory] = VersionedCache(
            options.history_entries, budget
        )
        self.bases = BaseCache(options.base_bytes)
        self._lock = threading.Lock()
        self._lanes: dict[int, Lane] = {}
        self._warned = False

    @cached_property
    def _lane_context(self) -> LaneContext:
        return LaneContext(
            objects=self.objects,
            executor=self._lane_pool,
            lineage=self.lineage,
            stamp=self.clock.stamp,
            hold_s=self.options.hold_s,
            linger_s=self.options.linger_s,
            on_stored=self._stored,
        )

    def _stored(self, name: Any, body: bytes, date: float) -> None:
        self.clock.observe_date(date)
        self.log.remember(name, body)

    def lane(self, partition: int) -> Lane:
        with self._lock:
            lane = self._lanes.get(partition)
            if lane is None:
                lane = self._lanes[partition] = Lane(partition, self._lane_context)
            return lane

    def reader(self, settings: Settings) -> ThreadReader:
        return ThreadReader(
            objects=self.objects,
            executor=self.io,
            log=self.log,
            runs=self.runs,
            values=self.values,
            lineage=self.lineage,
            manifests=self._manifests,
            reads=self.reads,
            short_grace_s=settings.short_grace_s,
            acknowledged=lambda thread_id: self._acknowledged(thread_id, settings),
            observe=self._observe,
        )

    def _observe(self, listing: Listing) -> None:
        self.clock.observe_date(listing.date)
        if listing.arrived:
            self.clock.observe_stamp(SegmentName.parse(max(listing.arrived)).stamp)
        if self._warned or len(listing.arrived) < LONG_TAIL_SEGMENTS:
            return
        age_s = listing.date - min(listing.arrived.values()) / 1e6
        if age_s > LONG_TAIL_AGE_S:
            self._warned = True
            logger.warning(
                "the log of %s, partition %d, holds %d segments, the oldest %.1f hours old: no "
                "compactor seems to run, and reads get slower. Start `compactor serve` or "
                "schedule `compactor run`",
                self.objects.uri,
                listing.partition,
                len(listing.arrived),
                age_s / 3600,
            )

    def _acknowledged(self, thread_id: str, settings: Settings) -> list[Record]:
        lane = self._lanes.get(partition_of(thread_id, settings.partitions))
        return lane.acknowledged(thread_id) if lane else []

    def acknowledged_checkpoints(self, partition: int) -> list[tuple[str, str, str]]:
        lane = self._lanes.get(partition)
        return lane.acknowledged_checkpoints() if lane else []

    def buffered_bytes(self) -> int:
        return sum(lane.buffered_bytes() for lane in list(self._lanes.values()))

    def flush(self) -> None:
        """Store all that waits in memory.

        Raises:
            ThreadPoisonedError: something acknowledged could not be stored, now or before.
        """
        lanes = list(self._lanes.values())
        for lane in lanes:
            lane.kick()
        for lane in lanes:
            lane.settle()
        for lane in lanes:
            lane.raise_losses()

    def shutdown(self) -> None:
        for pool in (self._lane_pool, self.calls, self.io):
            pool.shutdown(wait=True)


def _flush_at_end(runtime: _Runtime) -> None:
    """Store what a program had acknowledged that ends, or drops its store, without `close`."""
    if runtime.pid != os.getpid():
        return
    try:
        runtime.flush()
    except LogStoreError as error:
        logger.error("acknowledged writes were lost at the end: %s", error)
