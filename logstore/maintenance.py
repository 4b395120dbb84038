"""Deleting, pruning and copying threads. Bytes are moved and hidden; no value is decoded.

A delete or prune reads strongly and writes one tombstone a thread, which takes away what
that read has seen, by writer and lane position. What it has not seen is concurrent or later,
and stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from cachetools import LRUCache

from logstore.bases import Place
from logstore.copying import ThreadCopy
from logstore.errors import DeletedCheckpointError, InvalidOptionError, ThreadExistsError
from logstore.forks import fork_safe_lock
from logstore.index import StoreIndex
from logstore.prune import prune_tombstone
from logstore.reader import ThreadRead, until_stable
from logstore.records import WRITTEN, Tombstone, united
from logstore.store import LogStore
from logstore.view import ThreadView

_PARALLEL = 8
_REMEMBERED = 16_384
Strategy = Literal["keep_latest", "delete"]
STRATEGIES: tuple[Strategy, ...] = ("keep_latest", "delete")


class DeletedCheckpoints:
    """The checkpoints that this process knew when it deleted their thread."""

    def __init__(self) -> None:
        """Remember nothing."""
        self._lock = fork_safe_lock()
        self._places: LRUCache[Place, int] = LRUCache(_REMEMBERED)
        self._deletes = 0

    @property
    def deletes(self) -> int:
        """How many deletes there were."""
        return self._deletes

    def remember(self, places: Iterable[Place]) -> None:
        """Their thread was deleted."""
        with self._lock:
            self._deletes += 1
            self._places.update(dict.fromkeys(places, self._deletes))

    def revive(self, place: Place, deletes: int | None = None) -> None:
        """It is there again: it was put anew, or copied, here or by another process.

        Args:
            place: the checkpoint.
            deletes: how many deletes there were before the read that shows it; None if it is
                certain that it came after all of them.
        """
        with self._lock:
            if deletes is None or self._places.get(place, 0) <= deletes:
                self._places.pop(place, None)

    def check(self, place: Place) -> None:
        """Refuse to go on from a deleted checkpoint.

        Raises:
            DeletedCheckpointError: it is one.
        """
        with self._lock:
            if place not in self._places:
                return
        raise DeletedCheckpointError(
            f"checkpoint {place[2]} of thread {place[0]!r} was deleted by delete_thread, so what "
            "follows it would never be shown; start the thread anew with a config that has no "
            "checkpoint_id"
        )


class Maintenance:
    """Deletes, prunes and copies threads of one store."""

    def __init__(self, store: LogStore) -> None:
        """Work on `store`."""
        self._store = store
        self.deleted = DeletedCheckpoints()

    def delete_thread(self, thread_id: str) -> None:
        """Delete all of a thread that is there, durably."""
        self._store.settle(thread_id)
        read = until_stable(lambda: self._store.read_head(thread_id))
        if read.positions:
            self._store.hide(thread_id, Tombstone(_seen(read)))
        self.deleted.remember(_places(read.view))
        self.deleted.remember(self._store.bases.forget(thread_id))

    def prune(self, thread_ids: Sequence[str], strategy: str, newest: int = 1) -> None:
        """Prune threads.

        Args:
            thread_ids: the threads; one that does not exist is passed over.
            strategy: `delete`, or `keep_latest`: the newest checkpoints of each namespace.
            newest: how many checkpoints `keep_latest` keeps.

        Raises:
            InvalidOptionError: there is no such strategy.
        """
        if strategy not in STRATEGIES:
            raise InvalidOptionError(
                f"strategy is one of {', '.join(STRATEGIES)}, not {strategy!r}"
            )
        if strategy == "delete":
            self._each(self.delete_thread, thread_ids)
        else:
            self._each(lambda thread_id: self.keep_newest(thread_id, newest), thread_ids)

    def keep_newest(self, thread_id: str, newest: int, *, dry_run: bool = False) -> int:
        """Hide all but the newest checkpoints of each namespace of a thread.

        Returns:
            How many checkpoints are hidden by it, or would be.
        """
        read = self._whole(thread_id)
        tombstone = prune_tombstone(read.view, _seen(read), newest)
        if tombstone is None:
            return 0
        if not dry_run:
            self._store.hide(thread_id, tombstone)
        return sum(tombstone.hides(record) for record in read.view.shown())

    def delete_idle(self, thread_id: str, before: float, *, dry_run: bool = False) -> int:
        """Delete a thread that nobody has written to since a time by the store's clock.

        Args:
            thread_id: the thread.
            before: seconds since the epoch.
            dry_run: only say what would be done.

        Returns:
            How many checkpoints are deleted by it, or would be.
        """
        read = self._whole(thread_id)
        written = [r.arrived for r in read.view.records if r.kind in WRITTEN]
        if max(written, default=0) >= before * 1e6:
            return 0
        if not dry_run and written:
            self._store.hide(thread_id, Tombstone(_seen(read)))
        return len(list(read.view.shown()))

    def delete_for_runs(self, run_ids: Collection[str]) -> None:
        """Hide the checkpoints of runs in all threads, and their writes at other checkpoints."""
        if not run_ids:
            return
        self._store.flush()
        threads = StoreIndex(self._store).threads_of_runs(run_ids)
        self._each(lambda thread_id: self._hide_runs(thread_id, run_ids), sorted(threads))

    def _hide_runs(self, thread_id: str, run_ids: Collection[str]) -> None:
        read = self._whole(thread_id)
        found = {r.run_id for r in read.view.records if r.run_id is not None}.intersection(run_ids)
        tombstone = Tombstone(_seen(read), runs=frozenset(found))
        if tombstone.runs and read.view.has_more_of_runs(tombstone):
            self._store.hide(thread_id, tombstone)

    def copy_thread(self, source: str, target: str) -> None:
        """Copy all checkpoints and writes of a thread to another one.

        A long thread appears in the copy oldest part first.

        Raises:
            ThreadExistsError: the other one has checkpoints.
        """
        read = self._whole(source)
        if not read.view.namespaces():
            return
        if self._whole(target).view.namespaces():
            raise ThreadExistsError(
                f"thread {target!r} has checkpoints; a copy of {source!r} would mix with them. "
                "Delete it first, or name another target"
            )
        for records in ThreadCopy(self._store, read, target).parts():
            self._store.write(target, records)
        for _, ns, checkpoint_id in _places(read.view):
            self.deleted.revive((target, ns, checkpoint_id))

    # -- parts -------------------------------------------------------------------

    def _whole(self, thread_id: str) -> ThreadRead:
        self._store.settle(thread_id)
        return self._store.read_history(thread_id)

    @staticmethod
    def _each(function: Callable[[str], object], thread_ids: Sequence[str]) -> None:
        """Several threads at a time; the first error is raised when all are through."""
        if not thread_ids:
            return
        with ThreadPoolExecutor(min(_PARALLEL, len(thread_ids)), "logstore-maintenance") as pool:
            jobs = [pool.submit(function, thread_id) for thread_id in thread_ids]
        for job in jobs:
            job.result()


def _seen(read: ThreadRead) -> dict[str, int]:
    """For each writer the lane position up to which a read has seen the thread.

    What an earlier tombstone had seen counts although it may have been dropped since: a late
    copy of it must not come back when that tombstone is superseded.
    """
    tombstones = map(Tombstone.from_record, read.view.tombstones)
    return united(read.positions, *(tombstone.positions for tombstone in tombstones))


def _places(view: ThreadView) -> list[Place]:
    return [(view.thread_id, r.checkpoint_ns, r.checkpoint_id) for r in view.shown()]
