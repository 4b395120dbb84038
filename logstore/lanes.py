"""Group commit: one writer's ordered streams of segments, one PUT in flight a partition.

A lane starts a PUT at once when it is idle, and what arrives meanwhile goes into the next
segment, so batches grow with the load and no timer is needed. Because a lane commits in
order, what is durable is always a prefix of what this process wrote to the partition.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_all
from dataclasses import dataclass, field

from logstore.errors import (
    CommitUnknownError,
    ConditionFailedError,
    CorruptObjectError,
    LogStoreError,
    OutcomeUnknownError,
    ThreadPoisonedError,
)
from logstore.keys import SegmentName, build_filter
from logstore.lineage import Lineage
from logstore.objects.base import ObjectStore
from logstore.records import Kind, Record
from logstore.segment import encode_segment

MAX_SEGMENT_BYTES = 8 << 20


@dataclass(slots=True)
class Entry:
    """What one call wants to have stored, whole or not at all."""

    thread_id: str
    """The thread of all records."""
    records: Sequence[Record]
    """In the order in which they count; `writer` and `seq` are set when they are stored."""
    waited: bool
    """Whether the caller waits for `done`, and nothing is acknowledged before it. If not they
    count as acknowledged, and this process reads them at once."""
    done: Future[None] = field(default_factory=Future)
    """Done when they are durable."""
    needs: frozenset[Future[None]] = frozenset()
    """The `done` of earlier entries without which these records cannot be read."""
    size: int = field(init=False)
    """Bytes, about."""

    def __post_init__(self) -> None:
        self.size = sum(map(_size_of, self.records))


@dataclass(frozen=True)
class LaneContext:
    """What the lanes of one writer share."""

    objects: ObjectStore
    executor: Executor
    lineage: Lineage
    stamp: Callable[[], int]
    hold_s: float
    """How long entries that nobody waits for may stay in memory for company."""
    linger_s: float
    """The least time between the starts of two PUTs of a lane."""
    on_stored: Callable[[SegmentName, bytes, float], None]
    writer: str = field(default_factory=lambda: secrets.token_hex(12))


class Lane:
    """One writer's stream of segments in one partition."""

    def __init__(self, partition: int, context: LaneContext) -> None:
        """Create an idle lane."""
        self._partition = partition
        self._context = context
        self._lock = threading.Lock()
        self._queue: list[Entry] = []
        self._in_flight: list[Entry] = []
        self._running = False
        self._kicked = False
        self._timer: threading.Timer | None = None
        self._next_seq = 0
        self._last_start = 0.0
        self._durable: dict[str, str] = {}
        self._poisoned: dict[str, ThreadPoisonedError] = {}
        self._untold: list[ThreadPoisonedError] = []

    def submit(self, entry: Entry) -> None:
        """Queue an entry; its future tells when it is durable.

        Raises:
            ThreadPoisonedError: an acknowledged write of the thread was lost.
            LogStoreError: what the entry needs could not be stored.
        """
        with self._lock:
            self._refuse_poisoned(entry.thread_id)
            for needed in entry.needs:
                if needed.done():
                    needed.result()
            self._queue.append(entry)
            inline = self._start()
        if inline:
            self._run()

    def _refuse_poisoned(self, thread_id: str) -> None:
        poison = self._poisoned.get(thread_id)
        if poison is not None:
            self._untold = [other for other in self._untold if other is not poison]
            raise poison

    def kick(self) -> None:
        """Store what is queued now, whether somebody waits for it or not."""
        with self._lock:
            self._kicked = True
            inline = self._start()
        if inline:
            self._run()

    def _may_wait(self) -> bool:
        """Whether the queue may stay in memory for company: nobody waits, and it is small."""
        if self._kicked or self._context.hold_s <= 0 or any(e.waited for e in self._queue):
            return False
        return sum(e.size for e in self._queue) < MAX_SEGMENT_BYTES

    def _start(self) -> bool:
        """Begin to store the queue, unless that is under way or can wait.

        Returns:
            Whether the caller has to do it itself, without the lock: the interpreter is
            shutting down, and no pool takes work any more.
        """
        if self._running:
            return False
        if self._queue and self._may_wait():
            if self._timer is None:
                self._timer = threading.Timer(self._context.hold_s, self.kick)
                self._timer.daemon = True
                self._timer.start()
            return False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._queue:
            self._kicked = False
            return False
        self._running = True
        try:
            self._context.executor.submit(self._run)
        except RuntimeError:
            return True
        return False

    def outstanding(self) -> list[Future[None]]:
        """The futures of all that is not durable yet."""
        with self._lock:
            return [e.done for e in (*self._in_flight, *self._queue)]

    def settle(self) -> None:
        """Store what is queued now, and wait until all of it is durable or lost."""
        self.kick()
        wait_all(self.outstanding())

    def raise_losses(self) -> None:
        """Tell of each acknowledged write that was lost, once.

        Raises:
            ThreadPoisonedError: one was, of this thread.
        """
        with self._lock:
            if self._untold:
                raise self._untold.pop()

    def acknowledged(self, thread_id: str) -> list[Record]:
        """The thread's records that were acknowledged and are not durable yet.

        Raises:
            ThreadPoisonedError: an acknowledged write of the thread was lost.
        """
        with self._lock:
            self._refuse_poisoned(thread_id)
            entries = [e for e in (*self._in_flight, *self._queue) if not e.waited]
            seq = self._next_seq
        return [
            r._replace(writer=self._context.writer, seq=seq)
            for e in entries
            if e.thread_id == thread_id
            for r in e.records
        ]

    def acknowledged_checkpoints(self) -> list[tuple[str, str, str]]:
        """Thread, namespace and id of the checkpoints that are not durable yet."""
        with self._lock:
            entries = [e for e in (*self._in_flight, *self._queue) if not e.waited]
        return [
            (r.thread_id, r.checkpoint_ns, r.checkpoint_id)
            for e in entries
            for r in e.records
            if r.kind == Kind.CHECKPOINT
        ]

    def buffered_bytes(self) -> int:
        """The size of what was acknowledged and is not durable yet."""
        with self._lock:
            return sum(e.size for e in (*self._in_flight, *self._queue) if not e.waited)

    def _run(self) -> None:
        while batch := self._take():
            self._linger()
            try:
                self._commit(batch)
            except Exception as error:  # whatever it is, the callers must hear it
                self._fail(batch, error)

    def _take(self) -> list[Entry]:
        with self._lock:
            self._in_flight = []
            if self._may_wait() or not self._queue:
                self._running = False
                self._start()
                return []
            size = count = 0
            for entry in self._queue:
                if count and size + entry.size > MAX_SEGMENT_BYTES:
                    break
                size += entry.size
                count += 1
            batch, self._queue = self._queue[:count], self._queue[count:]
            self._in_flight = batch
            return batch

    def _linger(self) -> None:
        wait = self._last_start + self._context.linger_s - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        self._last_start = time.monotonic()

    def _commit(self, batch: list[Entry]) -> None:
        context = self._context
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        records = [
            r._replace(writer=context.writer, seq=seq) for entry in batch for r in entry.records
        ]
        threads = list(dict.fromkeys(entry.thread_id for entry in batch))
        name = SegmentName(
            self._partition, context.stamp(), context.writer, seq, build_filter(threads)
        )
        builds_on = {thread: context.lineage.builds_on(thread) for thread in threads}
        body = encode_segment(name, records, builds_on)
        date = store_once(context.objects, name.key, body)
        context.lineage.wrote(name.key, builds_on)
        context.on_stored(name, body, date)
        with self._lock:
            self._in_flight = []
            for record in records:
                if record.kind == Kind.CHECKPOINT:
                    self._durable[record.thread_id] = record.checkpoint_id
        for entry in batch:
            entry.done.set_result(None)

    def _fail(self, batch: list[Entry], error: Exception) -> None:
        """Tell every caller, and poison the threads whose acknowledged records are lost."""
        with self._lock:
            failed, lost = self._doomed(batch)
            for thread_id in lost:
                poison = self._poisoned[thread_id] = self._poison(thread_id, error)
                self._untold.append(poison)
            gone = {id(entry) for entry in failed}
            self._queue = [entry for entry in self._queue if id(entry) not in gone]
            self._in_flight = []
            # Under the lock: whoever submits next must see which futures have failed.
            for entry in failed:
                entry.done.set_exception(self._poisoned.get(entry.thread_id, error))

    def _doomed(self, batch: list[Entry]) -> tuple[list[Entry], set[str]]:
        """The entries that fail with a batch, and the threads that lose acknowledged records.

        Those are the ones that cannot be read without it, and all of a thread that is poisoned.
        """
        failed, behind = list(batch), list(self._queue)
        while True:
            lost = {entry.thread_id for entry in failed if not entry.waited}
            futures = {entry.done for entry in failed}
            more: list[Entry] = []
            rest: list[Entry] = []
            for entry in behind:
                fails = entry.thread_id in lost or not futures.isdisjoint(entry.needs)
                (more if fails else rest).append(entry)
            if not more:
                return failed, lost
            failed, behind = failed + more, rest

    def _poison(self, thread_id: str, error: Exception) -> ThreadPoisonedError:
        durable = self._durable.get(thread_id)
        known = f"{durable}" if durable else "none that this process wrote"
        poison = ThreadPoisonedError(
            f"a write of thread {thread_id!r} was acknowledged and could not be stored "
            f"({type(error).__name__}: {error}). Its last durable checkpoint is {known}. "
            "This saver refuses to go on with the thread; open a new one and resume from there"
        )
        poison.__cause__ = error
        return poison


def _size_of(record: Record) -> int:
    value = record.value if isinstance(record.value, bytes) else b""
    return 200 + len(value) + len(record.metadata_value or b"") + len(record.versions or "")


def store_once(objects: ObjectStore, key: str, body: bytes) -> float:
    """Put an immutable object under its own key, whatever became of earlier tries.

    Returns:
        The store's clock when it answered.

    Raises:
        CommitUnknownError: the object may be there now or later, or not.
    """
    try:
        return objects.put_if_absent(key, body).date
    except ConditionFailedError:
        return _own_earlier_try(objects, key, body)
    except OutcomeUnknownError as error:
        raise CommitUnknownError(
            f"the store did not say whether {key} was stored ({error}). Nothing was "
            "acknowledged and the records may still appear; read the thread before repeating"
        ) from error


def _own_earlier_try(objects: ObjectStore, key: str, body: bytes) -> float:
    # The key holds a random writer id: what exists is this writer's, or the store is broken.
    try:
        found = objects.get(key)
    except LogStoreError as error:
        raise CommitUnknownError(
            f"{key} exists, most likely from an earlier try, but could not be read back "
            f"({error}); read the thread before repeating"
        ) from error
    if found.data != body:
        raise CorruptObjectError(
            f"{key} exists with other content than this writer put there; two writers share "
            "an id or the object was overwritten. Nothing was acknowledged"
        )
    return found.date
