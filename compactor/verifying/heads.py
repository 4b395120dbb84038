"""Whether a thread's snapshot manifest tells the same of its heads as the whole history does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from compactor.folding.channels import ChannelTable
from compactor.folding.fold import Folder, Unfoldable, typed_value
from compactor.verifying.findings import REBUILD, Problem, ThreadLedger
from logstore.errors import CorruptObjectError, MissingDataError
from logstore.keys import snapshot_manifest_key
from logstore.reader import ThreadRead, positions_of
from logstore.records import Record, ValueRef
from logstore.store import LogStore
from logstore.values import Typed
from logstore.view import NeedsHistory
from logstore.walk import snapshot_stands, walk

_READS = 4
"""Reads that differ are made again: a job or a writer may have come between the two."""


class HeadCheck:
    """Compares the head reads of a thread with reads of its whole history."""

    def __init__(
        self, store: LogStore, table: ChannelTable, folder: Folder, ledger: ThreadLedger
    ) -> None:
        """Note what differs in `ledger`."""
        self._store = store
        self._table = table
        self._folder = folder
        self._ledger = ledger

    def run(self) -> None:
        """Compare all namespaces.

        Raises:
            StartAgain: a job moved something meanwhile.
        """
        ledger = self._ledger
        key = snapshot_manifest_key(self._store.partition(ledger.thread_id), ledger.thread_id)
        different: dict[str, str] = {}
        for _ in range(_READS):
            try:
                head = self._store.read_head(ledger.thread_id)
                whole = self._store.read_history(ledger.thread_id, head)
                ledger.heads, different = self._compare(head, whole)
                different |= self._behind(whole)
            except (CorruptObjectError, MissingDataError) as error:
                ledger.fail(Problem.UNREADABLE, str(error), REBUILD, key)
                return
            if not different:
                return
        for ns, detail in different.items():
            ledger.fail(Problem.STALE_MANIFEST, detail, REBUILD, key, whole.view.head(ns))

    def _behind(self, whole: ThreadRead) -> dict[str, str]:
        """Whether the manifest lacks what was merged: it is published before runs are committed.

        A head read finds such records in the log until they are deleted there.
        """
        thread_id = self._ledger.thread_id
        found = self._store.reader.snapshot_manifest(thread_id, self._store.partition(thread_id))
        manifest = found.manifest
        if manifest.thread_id != thread_id:
            return {"": f"it tells of thread {manifest.thread_id!r}, not of {thread_id!r}"}
        merged = positions_of((r for r in whole.view.records if _is_in_run(r)), {})
        for writer, position in merged.items():
            if manifest.positions.get(writer, -1) < position:
                return {
                    "": f"runs hold the thread's records of writer {writer} up to position "
                    f"{position}, and it has not merged them all"
                }
        return {}

    def _compare(self, head: ThreadRead, whole: ThreadRead) -> tuple[int, dict[str, str]]:
        """How many namespaces' heads are equal, and in what the others differ."""
        equal, different = 0, {}
        for ns in sorted({*head.view.namespaces(), *whole.view.namespaces()}):
            try:
                ours = _Evidence(self._load(head), head, ns)
            except NeedsHistory:
                continue  # it leaves the answer to the runs
            theirs = _Evidence(self._load(whole), whole, ns)
            wrong = ours.differences(theirs) or self._wrong_folds(ours, theirs)
            equal += not wrong
            if wrong:
                different[ns] = (
                    f"a read of the head of namespace {ns!r} and the whole history differ in "
                    f"{', '.join(wrong)}"
                )
        return equal, different

    def _load(self, read: ThreadRead) -> Callable[[Sequence[Record]], list[Typed]]:
        return self._store.reader.decoder(read).load

    def _wrong_folds(self, ours: _Evidence, theirs: _Evidence) -> list[str]:
        """The channels that are rebuilt to other values.

        One of the reads may know a snapshot that the other does not know yet, so what they are
        rebuilt from may differ.
        """
        wrong = []
        for channel in ours.unstored:
            a, b = self._folded(ours, channel), self._folded(theirs, channel)
            if a is not None and b is not None and not self._folder.same_value(a, b):
                wrong.append(f"the value of {channel}")
        return wrong

    def _folded(self, of: _Evidence, channel: str) -> Typed | None:
        """A channel's value; None if it has no reducer here, or the read does not reach it."""
        head, read = of.head, of.read
        if head is None:
            return None
        spec = self._table.spec(head.thread_id, head.checkpoint_ns, channel)
        snapshot = read.view.snapshot(head.checkpoint_ns, head.checkpoint_id, channel)
        try:
            if snapshot and snapshot_stands(read.view, head, channel, read.late):
                return of.load([snapshot])[0]
            if spec is None:
                return None
            history = walk(read.view, head, [channel], read.late)[channel]
            return typed_value(self._folder.fold(spec, head, history, of.load, 0, 0))
        except (NeedsHistory, MissingDataError, Unfoldable):
            return None


def _is_in_run(record: Record) -> bool:
    return isinstance(record.value, ValueRef)


class _Evidence:
    """What a read tells of a namespace's head."""

    def __init__(
        self, load: Callable[[Sequence[Record]], list[Typed]], read: ThreadRead, ns: str
    ) -> None:
        """Look at the head.

        Raises:
            NeedsHistory: the read does not reach far enough.
        """
        self.load = load
        self.read = read
        self.head = read.view.head(ns)
        self.unstored: list[str] = []
        """The channels that have no value stored at the head."""
        self._facts = {} if self.head is None else self._look(self.head)

    def differences(self, other: _Evidence) -> list[str]:
        """The names of what the two do not agree in."""
        names = sorted(self._facts.keys() | other._facts.keys())
        return [n for n in names if self._facts.get(n) != other._facts.get(n)]

    def _look(self, head: Record) -> dict[str, Any]:
        view = self.read.view
        if not view.holds_whole(head):
            raise NeedsHistory
        writes = view.writes(head.checkpoint_ns, head.checkpoint_id)
        found: dict[str, Any] = {
            "the checkpoint": (head.checkpoint_id, view.shown_parent(head), self.load([head])),
            "the metadata": (head.metadata_type, head.metadata_value),
            "the pending writes": [
                (w.task_id, w.task_path, w.idx, w.channel, typed)
                for w, typed in zip(writes, self.load(writes), strict=True)
            ],
        }
        for channel, version in view.versions(head).items():
            stored = view.stored_value(head, channel)
            if stored is not None:
                found[f"the value of {channel}"] = self.load([stored])
            elif view.complete or view.blob(head.checkpoint_ns, channel, version) is not None:
                self.unstored.append(channel)
            else:
                raise NeedsHistory
        return found
