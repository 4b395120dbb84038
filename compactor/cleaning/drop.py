"""What can go of a thread whose checkpoints were hidden: which rows, and what becomes of others.

A hidden checkpoint stays as long as something that stays is rebuilt from it. Where a checkpoint
that stays follows a hidden one, a *boundary*, each of its delta channels needs a value or a
snapshot there; then the hidden ones below are needed by nothing any more. The boundary becomes
a root, and values that were stored as patches against dropped ones are stored whole. What it has
a snapshot of is derived from nothing any more, so it becomes a value of the checkpoint: a record
like those that the graph stored, which nobody folds anew, judges or retires.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from compactor.folding.channels import ChannelTable
from compactor.folding.snapshots import counted_channels
from logstore import structural
from logstore.dictionary import Dictionaries
from logstore.records import (
    TASKS,
    TASKS_FORMAT,
    Encoding,
    Kind,
    Record,
    RowName,
    Tombstone,
    key_of,
    name_of_row,
    without_superseded,
)
from logstore.values import ValueDecoder
from logstore.view import CheckpointKey, ThreadView


@dataclass(frozen=True)
class Drop:
    """What becomes of a thread's rows."""

    gone: frozenset[RowName] = frozenset()
    """These are written no more."""
    changed: dict[RowName, Record] = field(default_factory=dict)
    """These take the place of others."""
    seeds: tuple[Record, ...] = ()
    """These are new: the values of boundaries that had a snapshot."""
    later: bool = False
    """Whether something was hidden too recently."""
    kept_because: str = ""
    """Why something that was hidden long enough stays."""

    def applied_to(self, records: Iterable[Record]) -> list[Record]:
        """Records of the thread as they are after it, without the seeds."""
        return [
            self.changed.get(name, record)
            for record in records
            if (name := name_of_row(record)) not in self.gone
        ]


def plan_drop(view: ThreadView, table: ChannelTable, decoder: ValueDecoder, before: int) -> Drop:
    """Decide what can go.

    Args:
        view: all of the thread, its snapshots up to date.
        table: the channels that the operator named.
        decoder: decodes the view's values.
        before: only what was hidden before this time goes: microseconds since the epoch.
    """
    due = [t for t in view.tombstones if t.arrived <= before]
    hidden = _Hidden(view, [Tombstone.from_record(t) for t in due])
    reason = _Obstacles(view, table, decoder).first(hidden)
    later = any(not hidden.is_due(row) for row in view.hidden_rows())
    if reason:
        return Drop(later=later, kept_because=reason)
    needed = set(map(id, without_superseded(view.tombstones)))
    gone = [r for r in view.records if hidden.can_go(r)]
    names = frozenset(map(name_of_row, (*gone, *(t for t in due if id(t) not in needed))))
    seeds = tuple(_seeds(view, decoder, hidden)) if names else ()
    changed = {name_of_row(r): r for r in _settled(view, decoder, names, hidden)}
    return Drop(names, changed, seeds, later)


class _Hidden:
    """A thread's checkpoints that were hidden long enough, and what nothing else needs."""

    def __init__(self, view: ThreadView, due: Sequence[Tombstone]) -> None:
        self._due = [t for t in due if not t.is_whole]
        self._gone = {
            _key(r) for r in view.hidden_rows() if r.kind == Kind.CHECKPOINT and self.is_due(r)
        }
        staying = [r for r in view.ancestors() if _key(r) not in self._gone]
        self.boundaries = [r for r in staying if _parent_key(r) in self._gone]
        """The checkpoints that stay and whose parent goes."""
        self._roots = set(map(_key, self.boundaries))
        self._versions = {
            (r.checkpoint_ns, channel, version)
            for r in staying
            for channel, version in view.versions(r).items()
        }
        self._applied = {key_of(write) for r in staying for write in view.writes_before(r)}

    def is_due(self, record: Record) -> bool:
        """Whether a checkpoint or write was hidden long enough ago."""
        return any(t.hides(record) for t in self._due)

    def can_go(self, record: Record) -> bool:
        """Whether nothing that stays needs the record, or a seed takes its place."""
        if record.kind == Kind.SNAPSHOT and _key(record) in self._roots:
            return True
        if _key(record) in self._gone:
            version = (record.checkpoint_ns, record.channel or "", record.version or "")
            return (
                record.kind != Kind.BLOB or record.version is None or version not in self._versions
            )
        if record.kind != Kind.WRITE or key_of(record) in self._applied:
            return False
        return self.is_due(record)


class _Obstacles:
    """What a boundary still needs from below."""

    def __init__(self, view: ThreadView, table: ChannelTable, decoder: ValueDecoder) -> None:
        self._view = view
        self._table = table
        self._decoder = decoder

    def first(self, hidden: _Hidden) -> str:
        """Why nothing can go; empty if something can."""
        for boundary in hidden.boundaries:
            for channel in self._view.versions(boundary):
                if self._is_rebuilt(boundary, channel):
                    return (
                        f"{boundary.checkpoint_ns or 'root'}: {channel} at checkpoint "
                        f"{boundary.checkpoint_id} is rebuilt from hidden checkpoints and has no "
                        "snapshot there; name its reducer with --graph or --config"
                    )
            for channel in self._written_late(boundary):
                return (
                    f"{boundary.checkpoint_ns or 'root'}: {channel} has no version at checkpoint "
                    f"{boundary.checkpoint_id}, and a late write at an ancestor of it"
                )
            if self._takes_tasks_from_parent(boundary):
                return (
                    f"checkpoint {boundary.checkpoint_id} is older than format {TASKS_FORMAT} and "
                    "takes its tasks from its hidden parent"
                )
        return ""

    def _is_rebuilt(self, boundary: Record, channel: str) -> bool:
        view, ns = self._view, boundary.checkpoint_ns
        if view.stored_value(boundary, channel) is not None:
            return False
        if view.snapshot(ns, boundary.checkpoint_id, channel) is not None:
            return False
        return self._is_delta(boundary, channel)

    def _written_late(self, boundary: Record) -> Iterator[str]:
        """Delta channels that have writes below a boundary which it was put without.

        Below the hidden ancestors there may be shown ones, which it is cut off from as well.
        """
        view, ns = self._view, boundary.checkpoint_ns
        versions = view.versions(boundary)
        child, seen = boundary, {boundary.checkpoint_id}
        parent = view.ancestor(ns, boundary.parent_checkpoint_id or "")
        while parent is not None and parent.checkpoint_id not in seen:
            for write in view.writes_before(child):
                channel = write.channel or ""
                if channel not in versions and self._is_delta(boundary, channel):
                    yield channel
            seen.add(parent.checkpoint_id)
            child, parent = parent, view.ancestor(ns, parent.parent_checkpoint_id or "")

    def _is_delta(self, boundary: Record, channel: str) -> bool:
        """Whether the operator says so, or a checkpoint down to the channel's nearest value."""
        view, ns = self._view, boundary.checkpoint_ns
        if channel in self._table.specs(view.thread_id, ns):
            return True
        current: Record | None = boundary
        seen: set[str] = set()
        while current is not None and current.checkpoint_id not in seen:
            if channel in counted_channels(current):
                return True
            if view.stored_value(current, channel) is not None:
                return False
            seen.add(current.checkpoint_id)
            current = view.ancestor(ns, current.parent_checkpoint_id or "")
        return False

    def _takes_tasks_from_parent(self, boundary: Record) -> bool:
        parent = boundary.parent_checkpoint_id or ""
        writes = self._view.writes(boundary.checkpoint_ns, parent)
        if not any(write.channel == TASKS for write in writes):
            return False
        checkpoint = structural.decode(*self._decoder.load([boundary])[0])
        return isinstance(checkpoint, dict) and checkpoint.get("v", 0) < TASKS_FORMAT


def _seeds(view: ThreadView, decoder: ValueDecoder, hidden: _Hidden) -> Iterator[Record]:
    """What the boundaries have a snapshot of, as values that came with these checkpoints."""
    for boundary in hidden.boundaries:
        ns, checkpoint_id = boundary.checkpoint_ns, boundary.checkpoint_id
        for channel, snapshot in view.snapshots(ns, checkpoint_id).items():
            if view.stored_value(boundary, channel) is not None:
                continue
            type_, value = decoder.load([snapshot])[0]
            yield Record(
                boundary.thread_id,
                ns,
                checkpoint_id,
                Kind.BLOB,
                channel=channel,
                type=type_,
                size=len(value),
                checksum=snapshot.checksum,
                ts=boundary.ts,
                # Whatever has seen the checkpoint has seen its values.
                stamp=boundary.stamp,
                writer=boundary.writer,
                seq=boundary.seq,
                arrived=boundary.arrived,
                value=value,
            )
            decoder.forget()


def _settled(
    view: ThreadView, decoder: ValueDecoder, gone: Collection[RowName], hidden: _Hidden
) -> Iterator[Record]:
    """The rows that must change: new roots, and patches against what goes, made whole."""
    roots = set(map(_key, hidden.boundaries))
    dictionaries = Dictionaries(view)
    for record in view.records:
        if name_of_row(record) in gone:
            continue
        if record.kind == Kind.CHECKPOINT and _key(record) in roots:
            yield record._replace(parent_checkpoint_id=None)
        elif record.encoding == Encoding.PATCH and _leans_on(record, dictionaries, gone):
            yield record._replace(
                value=decoder.load([record])[0][1],
                encoding=Encoding.RAW,
                base_channel=None,
                base_version=None,
                dictionary=None,
            )
            decoder.forget()


def _leans_on(patch: Record, dictionaries: Dictionaries, gone: Collection[RowName]) -> bool:
    needed = (r for base, writes in dictionaries.choices(patch) for r in (base, *writes))
    return any(r is not None and name_of_row(r) in gone for r in needed)


def _key(record: Record) -> CheckpointKey:
    return (record.checkpoint_ns, record.checkpoint_id)


def _parent_key(record: Record) -> CheckpointKey:
    return (record.checkpoint_ns, record.parent_checkpoint_id or "")
