"""What a snapshot manifest keeps of a thread: its heads, and what their walks need."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from compactor.folding.channels import ChannelTable
from compactor.folding.snapshots import COUNTERS, counted_channels
from logstore.errors import MissingDataError, ParentCycleError
from logstore.keys import name_hash
from logstore.late import Late
from logstore.manifest import NamespaceHead, SnapshotManifest
from logstore.records import Encoding, Kind, Record, without_superseded
from logstore.view import NeedsHistory, ThreadView
from logstore.walk import ChannelHistory, snapshot_stands, walk

MAX_NAMESPACES = 64
MAX_WALK_BYTES = 4 << 20
"""A channel whose walk is longer is left to the runs: without a reducer it may grow."""


@dataclass(frozen=True)
class Digest:
    """The part of a snapshot manifest that follows from the thread's records."""

    heads: dict[str, NamespaceHead]
    records: list[Record]
    evicted: frozenset[int]


def digest(view: ThreadView, late: Late, table: ChannelTable, old: SnapshotManifest) -> Digest:
    """Choose what the manifest keeps.

    Args:
        view: the thread, its snapshots up to date.
        late: what snapshots that are not current may not cover.
        table: the channels that the operator named.
        old: the manifest so far: the channels that it follows are followed further.

    Raises:
        NeedsHistory: a head view does not reach far enough.
    """
    kept = _Kept(view)
    heads: dict[str, NamespaceHead] = {}
    namespaces, evicted = _choose_namespaces(view, old)
    for ns in namespaces:
        head = view.head(ns)
        if head is None:
            continue
        specs = table.specs(view.thread_id, ns)
        followed = old.heads[ns].channels if ns in old.heads else ()
        channels = _delta_channels(view, head, {*specs, *followed})
        kept.keep_head(head)
        heads[ns] = NamespaceHead(head.checkpoint_id, _keep_walks(kept, view, head, channels, late))
    kept.keep_loose_writes(old)
    return Digest(_newest_above(heads, view, old), kept.records(), evicted)


def _newest_above(
    heads: Mapping[str, NamespaceHead], view: ThreadView, old: SnapshotManifest
) -> dict[str, NamespaceHead]:
    """The heads, each with the greatest id above it of a checkpoint that a put may show again."""
    newest = dict.fromkeys(heads, "")
    if not view.complete:
        newest.update({ns: head.newest for ns, head in old.heads.items()})
    for r in view.records:
        if r.kind == Kind.CHECKPOINT and r.checkpoint_ns in newest:
            newest[r.checkpoint_ns] = max(newest[r.checkpoint_ns], r.checkpoint_id)
    return {
        ns: replace(head, newest=newest[ns]) if newest[ns] > head.checkpoint_id else head
        for ns, head in heads.items()
    }


def _choose_namespaces(view: ThreadView, old: SnapshotManifest) -> tuple[list[str], frozenset[int]]:
    """The root and the namespaces with the newest heads; the rest is only remembered, and so are
    those of which nothing is shown: a put may show some of it again."""
    found = view.namespaces()
    newest = sorted(found, key=lambda ns: (ns == "", max(view.checkpoint_ids(ns))), reverse=True)
    chosen, rest = newest[:MAX_NAMESPACES], newest[MAX_NAMESPACES:]
    hidden = {ns for ns, _ in view.hidden()}.difference(found)
    hashes = {name_hash(ns) for ns in (*rest, *hidden)}
    if not view.complete:
        # A namespace may return from its eviction only with all of its records.
        if any(name_hash(ns) in old.evicted for ns in found):
            raise NeedsHistory
        hashes |= old.evicted
    return sorted(chosen), frozenset(hashes)


def _delta_channels(view: ThreadView, head: Record, known: Collection[str]) -> list[str]:
    """The channels that a child of the head may have to walk back for.

    One that has its value at the head costs nothing to follow from there on.
    """
    versions = view.versions(head)
    counted = counted_channels(head)
    return [
        ch
        for ch in versions
        if ch in known or ch in counted or view.stored_value(head, ch) is not None
    ]


def _keep_walks(
    kept: _Kept,
    view: ThreadView,
    head: Record,
    channels: Iterable[str],
    late: Late,
) -> dict[str, str | None]:
    """Keep what the channels' walks from the head need; where each of them ends."""
    ends: dict[str, str | None] = {}
    for channel in channels:
        try:
            found = _history(view, head, channel, late)
        except (MissingDataError, ParentCycleError):
            continue  # a read walks through the runs, and reports it
        size = sum(len(w.value) for w in found.writes if isinstance(w.value, bytes))
        if size > MAX_WALK_BYTES:
            continue
        kept.keep_walk(channel, head, found)
        ends[channel] = None if found.seed is None else (found.span or [head.checkpoint_id])[-1]
    return ends


def _history(view: ThreadView, head: Record, channel: str, late: Late) -> ChannelHistory:
    """The walk of a child of the head, without the head's own writes."""
    stored = view.stored_value(head, channel)
    if stored is not None:
        return ChannelHistory(seed=stored)
    snapshot = view.snapshot(head.checkpoint_ns, head.checkpoint_id, channel)
    if snapshot is not None and (
        view.is_current(snapshot) or snapshot_stands(view, head, channel, late)
    ):
        return ChannelHistory(seed=snapshot)
    return walk(view, head, [channel], late)[channel]


class _Kept:
    """Collects the records of a manifest, each once."""

    def __init__(self, view: ThreadView) -> None:
        self._view = view
        self._whole: dict[tuple[str, str], Record] = {}
        self._trimmed: dict[tuple[str, str], tuple[Record, set[str]]] = {}
        self._others: dict[int, Record] = {}

    def records(self) -> list[Record]:
        trimmed = [
            _trim(record, channels, self._view)
            for key, (record, channels) in self._trimmed.items()
            if key not in self._whole
        ]
        markers = [
            snapshot._replace(value=None, encoding=Encoding.ELSEWHERE)
            for ns, checkpoint_id in self._trimmed
            for snapshot in self._view.snapshots(ns, checkpoint_id).values()
            if id(snapshot) not in self._others
        ]
        return [
            *without_superseded(self._view.tombstones),
            *self._whole.values(),
            *trimmed,
            *markers,
            *self._others.values(),
        ]

    def _add(self, record: Record) -> None:
        self._others[id(record)] = record

    def keep_head(self, head: Record) -> None:
        """A head with all that was stored at it."""
        view, ns, checkpoint_id = self._view, head.checkpoint_ns, head.checkpoint_id
        self._whole[(ns, checkpoint_id)] = head
        parent = view.ancestor(ns, head.parent_checkpoint_id or "")
        if parent is not None and view.is_boundary(head):
            # So that a reader knows that it is hidden, and what lies below it.
            self._trimmed.setdefault((ns, parent.checkpoint_id), (parent, set()))
        for channel, version in view.versions(head).items():
            blob = view.blob(ns, channel, version)
            if blob is None:
                if not view.complete:
                    raise NeedsHistory
                blob = _no_value(head, channel, version)
            self._add(blob)
        for record in view.inline_values(ns, checkpoint_id).values():
            self._add(record)
        for record in view.snapshots(ns, checkpoint_id).values():
            if record.encoding == Encoding.ELSEWHERE:
                raise NeedsHistory
            self._add(record)
        for record in view.all_writes(ns, checkpoint_id):
            self._add(record)

    def keep_walk(self, channel: str, head: Record, found: ChannelHistory) -> None:
        """A channel's walk: its writes, its seed, and the bare checkpoints between.

        Hidden writes too: a child that their own run puts later counts them.
        """
        for checkpoint_id in found.span:
            record = self._view.ancestor(head.checkpoint_ns, checkpoint_id)
            if record is not None:
                key = (head.checkpoint_ns, checkpoint_id)
                self._trimmed.setdefault(key, (record, set()))[1].add(channel)
            for write in self._view.all_writes(head.checkpoint_ns, checkpoint_id):
                if write.channel == channel:
                    self._add(write)
        if found.seed is not None:
            if found.seed.encoding == Encoding.ELSEWHERE:
                raise NeedsHistory
            self._add(found.seed)

    def keep_loose_writes(self, old: SnapshotManifest) -> None:
        """Writes whose checkpoint has not arrived yet.

        Only the whole history tells them from late writes to an old checkpoint.
        """
        view = self._view
        known = {(r.checkpoint_ns, r.checkpoint_id) for r in old.records if r.kind == Kind.WRITE}
        for ns, checkpoint_id in list(view.written_checkpoints()):
            if view.ancestor(ns, checkpoint_id) is not None:
                continue
            if not view.complete and (ns, checkpoint_id) not in known:
                raise NeedsHistory
            for write in view.writes(ns, checkpoint_id):
                self._add(write)


def _trim(record: Record, channels: set[str], view: ThreadView) -> Record:
    """A checkpoint reduced to what walks and cadences ask of it."""
    counted = (json.loads(record.metadata).get(COUNTERS) or {}) if record.metadata else {}
    versions = {ch: v for ch, v in view.versions(record).items() if ch in channels}
    return record._replace(
        value=None,
        encoding=Encoding.ELSEWHERE,
        metadata_value=None,
        metadata=json.dumps({COUNTERS: counted}),
        versions=json.dumps(versions),
    )


def _no_value(head: Record, channel: str, version: str) -> Record:
    """States that a channel has no value at a version, which no put stated."""
    return Record(
        thread_id=head.thread_id,
        checkpoint_ns=head.checkpoint_ns,
        checkpoint_id=head.checkpoint_id,
        kind=Kind.BLOB,
        channel=channel,
        version=version,
        encoding=Encoding.EMPTY,
        stamp=head.stamp,
        writer=head.writer,
        seq=head.seq,
        arrived=0,
    )
