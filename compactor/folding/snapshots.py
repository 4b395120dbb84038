"""Which snapshots a thread needs, and making them.

Positions follow from a checkpoint and its parent alone: with (u, t) the checkpoint's
`counters_since_delta_snapshot`, a channel gets a snapshot where floor(u / K) or
floor(t / max supersteps) exceeds its parent's, unless the graph stored a value there. So
any schedule of jobs makes the same snapshots. A checkpoint whose parent was hidden gets one
in any case, and a hidden one none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from compactor.folding.channels import ChannelSpec, ChannelTable
from compactor.folding.detach import detached
from compactor.folding.fold import Folder, Unfoldable, typed_value
from compactor.folding.thinning import Place, wanted_snapshots
from compactor.merging.rebase import patch_snapshot
from logstore.errors import MissingDataError, ParentCycleError
from logstore.late import Late
from logstore.records import Record
from logstore.values import ValueDecoder
from logstore.view import NeedsHistory, ThreadView
from logstore.walk import ChannelHistory, snapshot_stands, walk

COUNTERS = "counters_since_delta_snapshot"


def counters(checkpoint: Record | None, channel: str) -> tuple[int, int]:
    """A channel's updates and supersteps since its last in-line snapshot."""
    if checkpoint is None or not checkpoint.metadata:
        return (0, 0)
    found = (json.loads(checkpoint.metadata).get(COUNTERS) or {}).get(channel)
    try:
        updates, supersteps = found or (0, 0)
        return (int(updates), int(supersteps))
    except (TypeError, ValueError):
        return (0, 0)


def counted_channels(checkpoint: Record) -> set[str]:
    """The channels that a checkpoint's metadata counts: those the graph keeps as deltas."""
    if not checkpoint.metadata:
        return set()
    return set(json.loads(checkpoint.metadata).get(COUNTERS) or {})


def crosses(before: tuple[int, int], after: tuple[int, int], k: int, supersteps: int) -> bool:
    """Whether one of the two cadences passes a multiple between parent and child."""
    return after[0] // k > before[0] // k or after[1] // supersteps > before[1] // supersteps


def parents_first(view: ThreadView) -> Iterator[Record]:
    """All shown checkpoints and their ancestors, each after its parent."""
    for ns in view.namespaces():
        done: set[str] = set()
        for checkpoint_id in view.checkpoint_ids(ns):
            chain: list[Record] = []
            current: str | None = checkpoint_id
            while current is not None and current not in done:
                done.add(current)
                record = view.ancestor(ns, current)
                if record is None:
                    break
                chain.append(record)
                current = record.parent_checkpoint_id
            yield from reversed(chain)


def changed_reducer(snapshot: Record, spec: ChannelSpec) -> str:
    """What is said of a snapshot that another reducer made than today's."""
    cover = json.loads(snapshot.cover or "{}")
    maker, code = cover.get("reducer", "an unknown reducer"), cover.get("fingerprint", "unknown")
    return (
        f"the snapshot at checkpoint {snapshot.checkpoint_id} of thread {snapshot.thread_id!r} "
        f"was made by {maker} with code {code}; today's reducer is {spec.reducer} with code "
        f"{spec.fingerprint}. New snapshots are not built on it. If the change is meant, "
        "`compactor rebuild` makes all snapshots with today's"
    )


@dataclass
class SnapshotWork:
    """What a pass over a thread did."""

    made: list[Record] = field(default_factory=list)
    """New snapshots, and records that take unusable ones back."""
    voided: int = 0
    retired: int = 0
    """Snapshots that the retention policy does not keep any more."""
    unreached: set[Place] = field(default_factory=set)
    """Where a fold failed because an ancestor is missing."""
    unfolded: dict[str, str] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)
    """Channels with snapshots that another reducer made, and which."""


class SnapshotMaker:
    """Brings one thread's snapshots up to date."""

    def __init__(
        self,
        view: ThreadView,
        late: Late,
        table: ChannelTable,
        folder: Folder,
        decoder: ValueDecoder,
        arrived: int,
    ) -> None:
        """Work on a view.

        Args:
            view: the thread; new snapshots are added to it.
            late: what no snapshot in the view covers.
            table: the channels that may be folded.
            folder: makes snapshots.
            decoder: decodes the view's values.
            arrived: the store's clock: microseconds since the epoch.
        """
        self._view = view
        self._late = late
        self._table = table
        self._folder = folder
        self._decoder = decoder
        self._arrived = arrived
        self._work = SnapshotWork()
        self._refused: dict[str, str] = {}
        self._wanted: set[Place] | None = None
        """Where snapshots are to be, if the policy does not keep all that are due."""

    def run(self) -> SnapshotWork:
        """Void what late writes made wrong, and fold what is due.

        Raises:
            NeedsHistory: a head view does not reach far enough.
        """
        order = list(parents_first(self._view))
        if self._view.complete and not self._table.retention.is_all:
            self._wanted = wanted_snapshots(
                self._view, order, self._table, self._is_due, self._table.retention
            )
        for checkpoint in order:
            self._void_at(checkpoint)
            self._fold_at(checkpoint)
        for checkpoint in order if self._wanted is not None else ():
            self._retire_at(checkpoint)
        if self._work.made:
            self._work.made = detached(
                self._view, self._work.made, self._decoder.load, self._restate
            )
        return self._work

    def _void_at(self, checkpoint: Record) -> None:
        ns, checkpoint_id = checkpoint.checkpoint_ns, checkpoint.checkpoint_id
        for channel, snapshot in list(self._view.snapshots(ns, checkpoint_id).items()):
            if snapshot_stands(self._view, checkpoint, channel, self._late):
                continue
            if not self._view.complete:
                raise NeedsHistory  # others may have been patched against it
            self._view.void_snapshot(ns, checkpoint_id, channel)
            self._work.voided += 1
            spec = self._table.spec(checkpoint.thread_id, ns, channel)
            made = self._fold(spec, checkpoint) if spec else None
            self._add(made) if made else self._work.made.append(
                self._folder.void(snapshot, self._arrived)
            )

    def _fold_at(self, checkpoint: Record) -> None:
        view, ns = self._view, checkpoint.checkpoint_ns
        if (ns, checkpoint.checkpoint_id) in view.hidden():
            return
        specs = self._table.specs(checkpoint.thread_id, ns)
        for channel in view.versions(checkpoint):
            spec = specs.get(channel)
            if spec is None:
                self._report_unknown(checkpoint, channel)
                continue
            found = view.snapshot(ns, checkpoint.checkpoint_id, channel)
            if found is not None:
                if not spec.made(found):
                    self._work.changed[spec.label] = changed_reducer(found, spec)
                continue
            if self._is_wanted(checkpoint, spec) and (made := self._fold(spec, checkpoint)):
                self._add(made)

    def _is_wanted(self, checkpoint: Record, spec: ChannelSpec) -> bool:
        if self._wanted is not None:
            return (checkpoint.checkpoint_ns, checkpoint.checkpoint_id, spec.name) in self._wanted
        if not self._is_due(checkpoint, spec):
            return False
        if self._table.retention.is_all:
            return True
        if self._view.settled(checkpoint):
            return False  # it was retired, or could not be folded
        raise NeedsHistory  # where others are to be follows from the whole thread

    def _retire_at(self, checkpoint: Record) -> None:
        """Take back the snapshots that the policy does not keep any more."""
        ns, checkpoint_id = checkpoint.checkpoint_ns, checkpoint.checkpoint_id
        specs = self._table.specs(checkpoint.thread_id, ns)
        for channel, snapshot in list(self._view.snapshots(ns, checkpoint_id).items()):
            if channel in specs and (ns, checkpoint_id, channel) not in (self._wanted or ()):
                self._view.void_snapshot(ns, checkpoint_id, channel)
                self._work.retired += 1
                self._work.made.append(self._folder.void(snapshot, self._arrived))

    def _report_unknown(self, checkpoint: Record, channel: str) -> None:
        if channel in counted_channels(checkpoint):
            where = f"{checkpoint.checkpoint_ns or 'root'}: {channel}"
            self._work.unfolded.setdefault(
                where, "the graph keeps it as a DeltaChannel, and no --graph or --config names it"
            )

    def _is_due(self, checkpoint: Record, spec: ChannelSpec) -> bool:
        now = counters(checkpoint, spec.name)
        if self._view.stored_value(checkpoint, spec.name) is not None:
            return False
        if self._view.is_boundary(checkpoint):
            return True  # so that what is hidden below it can be dropped
        if now == (0, 0):
            return False
        parent = self._parent(checkpoint)
        if parent is None and checkpoint.parent_checkpoint_id is not None:
            if self._view.settled(checkpoint):
                return False  # the job that first saw it had its parent, and decided
            if not self._view.complete:
                raise NeedsHistory
        before = counters(parent, spec.name)
        return crosses(before, now, spec.frequency, self._table.max_supersteps)

    def _parent(self, checkpoint: Record) -> Record | None:
        if checkpoint.parent_checkpoint_id is None:
            return None
        return self._view.ancestor(checkpoint.checkpoint_ns, checkpoint.parent_checkpoint_id)

    def _fold(self, spec: ChannelSpec, checkpoint: Record) -> Record | None:
        """The snapshot, or None with the reason noted."""
        if spec.label in self._refused:
            return None
        try:
            history = walk(self._view, checkpoint, [spec.name], self._late, spec.made)[spec.name]
            load, graves = self._decoder.load, self._view.graves
            made = self._folder.fold(spec, checkpoint, history, load, graves, self._arrived)
        except Unfoldable as error:
            self._refused[spec.label] = self._work.unfolded[spec.label] = str(error)
        except (MissingDataError, ParentCycleError) as error:
            # An ancestor may still be on its way; a later job finds it.
            place = (checkpoint.checkpoint_ns, checkpoint.checkpoint_id, spec.name)
            self._work.unreached.add(place)
            self._work.unfolded.setdefault(spec.label, str(error))
        else:
            return self._patched(made, history)
        return None

    def _restate(self, snapshot: Record, value: bytes) -> Record:
        whole = self._folder.restate(snapshot, value, self._arrived)
        self._view.add_snapshot(whole)
        return whole

    def _patched(self, made: Record, history: ChannelHistory) -> Record:
        """A snapshot as a patch; of what was decoded for it only its value stays in memory."""
        snapshot = patch_snapshot(made, history, self._decoder.load)
        self._decoder.forget()
        self._decoder.prime(snapshot, typed_value(made))
        return snapshot

    def _add(self, snapshot: Record) -> None:
        self._view.add_snapshot(snapshot)
        self._view.records.append(snapshot)  # where patches against it find it
        self._work.made.append(snapshot)
