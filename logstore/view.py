"""One thread as its records tell it: merged, with what was deleted taken out.

A view answers from the records that it was given. A *complete* view was given all of the
thread's; a *head* view only what a snapshot manifest and the tail hold, and it raises
`NeedsHistory` where that is not enough, so that the caller goes on with a complete one.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from logstore.keys import name_hash
from logstore.records import Encoding, Kind, Record, Tombstone, distinct, joined, merge

CheckpointKey = tuple[str, str]
"""Namespace and checkpoint id."""


class NeedsHistory(Exception):
    """The records at hand do not suffice; read the thread's whole history."""


@dataclass(frozen=True)
class HeadScope:
    """What a snapshot manifest vouches for, and so where a head view may answer."""

    since: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    """For each namespace and delta channel: the checkpoints from the head back to the one
    that holds the channel's latest snapshot or value, whose writes are all at hand."""
    settled: Mapping[CheckpointKey, str | None] = field(default_factory=dict)
    """The checkpoints that the manifest shows, each with its parent."""
    newest: Mapping[str, str] = field(default_factory=dict)
    """For each namespace the greatest checkpoint id that was merged, shown or not."""
    head_ids: Mapping[str, str] = field(default_factory=dict)
    """For each namespace the head of the manifest, which it holds whole."""
    evicted: frozenset[int] = frozenset()
    """The hashes of namespaces that the manifest no longer holds."""
    tombstones: frozenset[tuple[int, str]] = frozenset()
    """The stamps and writers of the tombstones that the manifest took into account."""
    blind: bool = False
    """Whether nothing may be answered from the records at hand."""

    def may_lack(self, ns: str, checkpoint_id: str) -> bool:
        """Whether something of a checkpoint may have been merged that the manifest lacks."""
        is_merged = checkpoint_id <= self.newest.get(ns, "")
        is_head = checkpoint_id == self.head_ids.get(ns)
        return (is_merged and not is_head) or self.has_evicted(ns)

    def has_evicted(self, ns: str) -> bool:
        """Whether the manifest does not hold a namespace that exists."""
        return bool(self.evicted) and name_hash(ns) in self.evicted


class ThreadView:
    """A thread's visible checkpoints, values, writes and snapshots."""

    def __init__(
        self, thread_id: str, records: Iterable[Record], scope: HeadScope | None = None
    ) -> None:
        """Merge records into a view.

        Args:
            thread_id: the thread; all records are of it.
            records: in any order, repeated or not.
            scope: what the manifest vouches for; None if the records are complete.
        """
        self.thread_id = thread_id
        self.scope = scope
        given = list(records)
        self.tombstones = list(merge(r for r in given if r.kind == Kind.TOMBSTONE).values())
        read = [Tombstone.from_record(r) for r in self.tombstones]
        deleting = [t for t in read if t.is_whole]
        self._hiding = joined(t for t in read if not t.is_whole)
        self.graves = len(deleting)
        """How many times the thread was deleted."""
        self.records = [r for r in given if not any(t.deletes(r) for t in deleting)]
        """All that was not deleted, losers of clashes and repetitions included."""
        # The winner is sought among what was not deleted.
        merged = merge(self.records)
        self.has_repetitions = len(merged) < len(self.records)
        """Whether two of the records have one key."""
        self._checkpoints: dict[str, dict[str, Record]] = defaultdict(dict)
        self._blobs: dict[tuple[str, str, str], Record] = {}
        self._inline: dict[CheckpointKey, dict[str, Record]] = defaultdict(dict)
        self._writes: dict[CheckpointKey, list[Record]] = defaultdict(list)
        self._snapshots: dict[CheckpointKey, dict[str, Record]] = defaultdict(dict)
        self._current: set[tuple[str, str, str]] = set()
        for record in merged.values():
            self._file(record)
        if self.complete and self.has_repetitions:
            self._keep_roots()
        self._contested = self._with_losers() if self._hiding else {}
        if self.graves:
            self._drop_rootless()
        self._hidden = {
            (ns, r.checkpoint_id)
            for ns, found in self._checkpoints.items()
            for r in found.values()
            if self._hides(r)
        }

    @property
    def complete(self) -> bool:
        """Whether the view was given all of the thread's records."""
        return self.scope is None

    def _file(self, record: Record) -> None:
        ns, key = record.checkpoint_ns, (record.checkpoint_ns, record.checkpoint_id)
        match record.kind:
            case Kind.CHECKPOINT:
                self._checkpoints[ns][record.checkpoint_id] = record
            case Kind.BLOB if record.version is not None:
                self._blobs[(ns, record.channel or "", record.version)] = record
            case Kind.BLOB:
                self._inline[key][record.channel or ""] = record
            case Kind.WRITE:
                self._writes[key].append(record)
            case Kind.SNAPSHOT if record.encoding != Encoding.VOID and self._folded_after_deletes(
                record
            ):
                self._snapshots[key][record.channel or ""] = record

    def _keep_roots(self) -> None:
        """A checkpoint that a drop made a root stays one when it is put again as it was.

        What it followed is gone, and what it had from there is stored with it.
        """
        for record in self.records:
            if record.kind != Kind.CHECKPOINT or record.parent_checkpoint_id is not None:
                continue
            found = self._checkpoints[record.checkpoint_ns]
            parent = found[record.checkpoint_id].parent_checkpoint_id
            if parent is not None and parent not in found:
                found[record.checkpoint_id] = record

    def _folded_after_deletes(self, snapshot: Record) -> bool:
        if not self.graves:
            return True
        graves: int = json.loads(snapshot.cover or "{}").get("graves", 0)
        return graves >= self.graves

    def _hides(self, record: Record) -> bool:
        return any(t.hides(record) for t in self._hiding)

    def _drop_rootless(self) -> None:
        """After a delete only what descends from a new root is shown.

        A late put of a process that had not seen the delete must not bring the thread back.
        """
        for ns, found in self._checkpoints.items():
            rooted: dict[str, bool] = {}
            for checkpoint_id in found:
                self._rooted(ns, checkpoint_id, found, rooted)
            self._checkpoints[ns] = {id_: r for id_, r in found.items() if rooted[id_]}

    def _rooted(
        self, ns: str, checkpoint_id: str, found: Mapping[str, Record], rooted: dict[str, bool]
    ) -> None:
        path: list[str] = []
        current: str | None = checkpoint_id
        while current is not None and current not in rooted and current in found:
            if current in path:
                break
            if self.settled(found[current]):
                rooted[current] = True
                break
            path.append(current)
            current = found[current].parent_checkpoint_id
        if current is None:
            answer = True
        elif current in rooted:
            answer = rooted[current]
        else:
            if self.scope is not None and current not in found:
                raise NeedsHistory
            answer = False
        rooted.update(dict.fromkeys(path, answer))

    # -- checkpoints -------------------------------------------------------------

    def namespaces(self) -> list[str]:
        """The namespaces that show a checkpoint, sorted."""
        return sorted(ns for ns in self._checkpoints if self._shown(ns))

    def checkpoint_ids(self, ns: str) -> list[str]:
        """The shown checkpoints of a namespace, ascending."""
        return sorted(self._shown(ns))

    def _shown(self, ns: str) -> list[str]:
        return [id_ for id_ in self._checkpoints.get(ns, ()) if (ns, id_) not in self._hidden]

    def checkpoint(self, ns: str, checkpoint_id: str) -> Record | None:
        """A checkpoint, if it is shown."""
        return None if (ns, checkpoint_id) in self._hidden else self.ancestor(ns, checkpoint_id)

    def ancestor(self, ns: str, checkpoint_id: str) -> Record | None:
        """A checkpoint that others may be rebuilt from, shown or hidden."""
        return self._checkpoints.get(ns, {}).get(checkpoint_id)

    def shown(self) -> Iterator[Record]:
        """All checkpoints that are shown."""
        return (
            self._checkpoints[ns][checkpoint_id]
            for ns in self.namespaces()
            for checkpoint_id in self.checkpoint_ids(ns)
        )

    def ancestors(self) -> Iterator[Record]:
        """All checkpoints, shown or hidden."""
        return (record for found in self._checkpoints.values() for record in found.values())

    def hidden(self) -> Collection[CheckpointKey]:
        """The checkpoints that are stored and not shown."""
        return self._hidden

    def hidden_rows(self) -> Iterator[Record]:
        """The checkpoints, and the writes, that are stored and not shown."""
        yield from (self._checkpoints[ns][checkpoint_id] for ns, checkpoint_id in self._hidden)
        for key, writes in self._writes.items():
            found = self._contested.get(key, writes)
            yield from (write for write in found if self._hides(write))

    def has_more_of_runs(self, tombstone: Tombstone) -> bool:
        """Whether a tombstone of runs hides something that no other one of runs does.

        What a prune hides counts: a checkpoint below it may yet be gone on from.
        """
        others = [t for t in self._hiding if t.runs is not None]
        return any(
            tombstone.hides(record) and not any(t.hides(record) for t in others)
            for record in self.records
            if record.kind in (Kind.CHECKPOINT, Kind.WRITE)
        )

    def is_boundary(self, checkpoint: Record) -> bool:
        """Whether the checkpoint is shown and its parent is hidden."""
        ns, parent = checkpoint.checkpoint_ns, checkpoint.parent_checkpoint_id
        return (ns, parent) in self._hidden and (ns, checkpoint.checkpoint_id) not in self._hidden

    def shown_parent(self, checkpoint: Record) -> str | None:
        """The checkpoint's parent; a hidden one is as good as none.

        Raises:
            NeedsHistory: the parent is not at hand, and may be hidden.
        """
        ns, parent = checkpoint.checkpoint_ns, checkpoint.parent_checkpoint_id
        if parent is None or self.is_boundary(checkpoint):
            return None
        if self.scope is not None and self.ancestor(ns, parent) is None:
            known = self.scope.tombstones if self.settled(checkpoint) else frozenset()
            if any((t.stamp, t.writer) not in known for t in self.tombstones):
                raise NeedsHistory
        return parent

    def head(self, ns: str) -> Record | None:
        """The shown checkpoint with the greatest id.

        Raises:
            NeedsHistory: the namespace may exist outside of the records at hand.
        """
        scope = self.scope
        if scope is not None and (
            scope.blind or scope.has_evicted(ns) or (ns, scope.head_ids.get(ns)) in self._hidden
        ):
            raise NeedsHistory
        shown = self._shown(ns)
        return self._checkpoints[ns][max(shown)] if shown else None

    def settled(self, checkpoint: Record) -> bool:
        """Whether the checkpoint comes from a manifest, and not from a put below another parent."""
        parent = checkpoint.parent_checkpoint_id
        key = (checkpoint.checkpoint_ns, checkpoint.checkpoint_id)
        return self.scope is not None and self.scope.settled.get(key, "") == parent

    def holds_whole(self, checkpoint: Record) -> bool:
        """Whether all that was stored at the checkpoint is at hand.

        A manifest holds its heads whole; of others only what a walk needs. One that is newer
        than all that was merged is in the tail.
        """
        ns, checkpoint_id = checkpoint.checkpoint_ns, checkpoint.checkpoint_id
        return self.scope is None or not self.scope.may_lack(ns, checkpoint_id)

    def visible(self) -> Iterator[Record]:
        """All that shows: the shown checkpoints, what was stored at them, and their values.

        Whoever counts records counts these. What belongs to no shown checkpoint does not
        show, nor does what lost a clash, was met before, or was taken back.
        """
        for ns in self.namespaces():
            named: set[tuple[str, str]] = set()
            for checkpoint_id in self.checkpoint_ids(ns):
                checkpoint = self._checkpoints[ns][checkpoint_id]
                yield checkpoint
                yield from self.writes(ns, checkpoint_id)
                yield from self.inline_values(ns, checkpoint_id).values()
                yield from self.snapshots(ns, checkpoint_id).values()
                named.update(self.versions(checkpoint).items())
            blobs = (self.blob(ns, channel, version) for channel, version in named)
            yield from (blob for blob in blobs if blob is not None)

    # -- values ------------------------------------------------------------------

    def stored_value(self, checkpoint: Record, channel: str) -> Record | None:
        """What the graph itself stored as the channel's value at the checkpoint, if anything."""
        record = None
        version = self.versions(checkpoint).get(channel)
        if version is not None:
            record = self._blobs.get((checkpoint.checkpoint_ns, channel, version))
        if record is None or record.encoding == Encoding.EMPTY:
            key = (checkpoint.checkpoint_ns, checkpoint.checkpoint_id)
            record = self._inline.get(key, {}).get(channel, record)
        return None if record is None or record.encoding == Encoding.EMPTY else record

    def blob(self, ns: str, channel: str, version: str) -> Record | None:
        """The record of a channel's value at a version, which may say that there is none."""
        return self._blobs.get((ns, channel, version))

    def inline_values(self, ns: str, checkpoint_id: str) -> Mapping[str, Record]:
        """The values without a version that stay with their checkpoint, by channel."""
        return self._inline.get((ns, checkpoint_id), {})

    def snapshot(self, ns: str, checkpoint_id: str, channel: str) -> Record | None:
        """The compactor's snapshot of the channel's value entering the checkpoint."""
        return self._snapshots.get((ns, checkpoint_id), {}).get(channel)

    def snapshots(self, ns: str, checkpoint_id: str) -> Mapping[str, Record]:
        """All snapshots at a checkpoint, by channel."""
        return self._snapshots.get((ns, checkpoint_id), {})

    def add_snapshot(self, record: Record) -> None:
        """Add or replace a snapshot that was folded from this view: it covers all below it."""
        ns, checkpoint_id, channel = record.checkpoint_ns, record.checkpoint_id, record.channel
        self._snapshots[(ns, checkpoint_id)][channel or ""] = record
        self._current.add((ns, checkpoint_id, channel or ""))

    def void_snapshot(self, ns: str, checkpoint_id: str, channel: str) -> None:
        """Forget a snapshot that a late write made wrong."""
        self._snapshots[(ns, checkpoint_id)].pop(channel, None)

    def is_current(self, snapshot: Record) -> bool:
        """Whether the snapshot was folded from this very view."""
        key = (snapshot.checkpoint_ns, snapshot.checkpoint_id, snapshot.channel or "")
        return key in self._current

    def versions(self, checkpoint: Record) -> Mapping[str, str]:
        """The checkpoint's channel versions, encoded."""
        key = (checkpoint.checkpoint_ns, checkpoint.checkpoint_id)
        known = self._versions.get(key)
        if known is None:
            known = self._versions[key] = json.loads(checkpoint.versions or "{}")
        return known

    @cached_property
    def _versions(self) -> dict[CheckpointKey, dict[str, str]]:
        return {}

    # -- writes ------------------------------------------------------------------

    def writes(self, ns: str, checkpoint_id: str) -> list[Record]:
        """The shown writes at a checkpoint, in the order in which a step applies them.

        Raises:
            NeedsHistory: a write that a new tombstone hides may have won over one that is not here.
        """
        return self._winners(ns, checkpoint_id, lambda w: not self._hides(w))

    def writes_before(self, child: Record) -> list[Record]:
        """The writes at the parent of a checkpoint, those that its state came from.

        A hidden write counts for the children that were there when it was hidden, and for
        those of its own run.

        Raises:
            NeedsHistory: a write that a new tombstone hides may have won over one that is not here.
        """

        def counts(write: Record) -> bool:
            return not any(_spares(t, write, child) for t in self._hiding)

        return self._winners(child.checkpoint_ns, child.parent_checkpoint_id or "", counts)

    def follows(self, child: Record) -> tuple[str | None, ...]:
        """What decides which writes a record of a checkpoint follows: its parent, and its run
        where writes were hidden before it."""
        hiding = (t for t in self._hiding if t.runs is not None)
        runs = (None if t.sees(child) else child.run_id for t in hiding)
        return (child.parent_checkpoint_id, *runs)

    def all_writes(self, ns: str, checkpoint_id: str) -> list[Record]:
        """The writes at a checkpoint, shown or hidden, in the order in which they apply.

        Where one is hidden, those too that lost to it: they count where it does not.
        """
        key = (ns, checkpoint_id)
        return _in_order(self._contested.get(key) or self._writes.get(key, []))

    def _winners(
        self, ns: str, checkpoint_id: str, counts: Callable[[Record], bool]
    ) -> list[Record]:
        """Of the writes that count, in their order, the one that won for each task and index."""
        key = (ns, checkpoint_id)
        contested = self._contested.get(key)
        if contested is None:
            return _in_order(self._writes.get(key, []))
        counting = [w for w in contested if counts(w)]
        if self.scope is not None and len(counting) < len(contested):
            known = self.scope.tombstones
            if any((t.stamp, t.writer) not in known for t in self.tombstones):
                raise NeedsHistory
        return _in_order(merge(counting).values())

    def _with_losers(self) -> dict[CheckpointKey, list[Record]]:
        """All writes at the checkpoints that have a hidden one."""
        writes = [r for r in self.records if r.kind == Kind.WRITE]
        hidden = {(w.checkpoint_ns, w.checkpoint_id) for w in writes if self._hides(w)}
        found: dict[CheckpointKey, list[Record]] = {key: [] for key in hidden}
        for write in distinct(writes):
            key = (write.checkpoint_ns, write.checkpoint_id)
            if key in found:
                found[key].append(write)
        return found

    def written_checkpoints(self) -> Iterable[CheckpointKey]:
        """The checkpoints that have writes, whether they are visible or not."""
        return self._writes.keys()

    def covers(self, ns: str, checkpoint_id: str, channel: str) -> bool:
        """Whether all that the channel has at the checkpoint is at hand."""
        scope = self.scope
        if scope is None or checkpoint_id in scope.since.get((ns, channel), ()):
            return True
        return checkpoint_id > scope.newest.get(ns, "") and not scope.has_evicted(ns)


def _in_order(writes: Iterable[Record]) -> list[Record]:
    return sorted(writes, key=lambda w: (w.task_path or "", w.task_id or "", w.idx or 0))


def _spares(tombstone: Tombstone, write: Record, child: Record) -> bool:
    """Whether a child of the write's checkpoint does without the write."""
    if not tombstone.hides(write) or tombstone.sees(child):
        return False
    return child.run_id != write.run_id
