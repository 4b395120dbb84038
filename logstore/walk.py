"""The walk back through a checkpoint's ancestors that rebuilds a delta channel.

It is LangGraph's own walk (`BaseCheckpointSaver.get_delta_channel_history`): all writes of
the channel on every ancestor, back to the nearest stored value. Snapshots made by the
compactor end it sooner, unless a write landed below one that it does not cover.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from logstore.errors import MissingDataError, ParentCycleError
from logstore.late import Late
from logstore.records import Record
from logstore.view import NeedsHistory, ThreadView

Trust = Callable[[Record], bool]
"""Whether a walk may end at a snapshot."""


def any_snapshot(snapshot: Record) -> bool:
    """The trust of a reader: every snapshot that was committed."""
    return True


def no_snapshot(snapshot: Record) -> bool:
    """Leaves LangGraph's own walk, back to what the graph itself stored."""
    return False


@dataclass(slots=True)
class ChannelHistory:
    """What one channel's value is rebuilt from."""

    writes: list[Record] = field(default_factory=list)
    """Oldest first, in the order in which the steps applied them."""
    seed: Record | None = None
    """The stored value or snapshot to start from; None to start empty."""
    span: list[str] = field(default_factory=list)
    """The ancestors whose writes were taken, newest first, the seed's included."""


@dataclass(slots=True)
class _ChannelWalk:
    channel: str
    late: set[str]
    moved: Collection[str]
    trusts: Trust
    backwards: list[Record] = field(default_factory=list)
    span: list[str] = field(default_factory=list)
    candidate: ChannelHistory | None = None
    """A snapshot was met; it serves unless a late write is found below it."""

    def history(self, seed: Record | None) -> ChannelHistory:
        return ChannelHistory(self.backwards[::-1], seed, list(self.span))

    def step(self, view: ThreadView, child: Record, ancestor: Record) -> ChannelHistory | None:
        """Take one ancestor in, coming from its child; the answer, if the walk ends here."""
        ns, checkpoint_id = ancestor.checkpoint_ns, ancestor.checkpoint_id
        if not view.covers(ns, checkpoint_id, self.channel):
            raise NeedsHistory
        if checkpoint_id in self.late:
            self.late.discard(checkpoint_id)
            self.candidate = None
        mine = [w for w in view.writes_before(child) if w.channel == self.channel]
        self.backwards.extend(reversed(mine))
        self.span.append(checkpoint_id)
        stored = view.stored_value(ancestor, self.channel)
        if stored is not None:
            return self.candidate or self.history(stored)
        snapshot = view.snapshot(ns, checkpoint_id, self.channel)
        if snapshot is not None and not self.trusts(snapshot):
            if not view.complete:
                raise NeedsHistory  # only whole histories go on below it
            snapshot = None
        if snapshot is not None and checkpoint_id in self.moved and not view.is_current(snapshot):
            snapshot = None
        if snapshot is not None and self.candidate is None:
            self.candidate = self.history(snapshot)
            if view.is_current(snapshot):
                self.late.clear()
            else:
                self.late = possibly_below(view, ancestor, self.late)
        return self.candidate if self.candidate and not self.late else None


def walk(
    view: ThreadView,
    target: Record,
    channels: Collection[str],
    late: Late,
    trusts: Trust = any_snapshot,
) -> dict[str, ChannelHistory]:
    """Collect what the channels' values at a checkpoint are rebuilt from.

    Args:
        view: the thread.
        target: a visible checkpoint; its own writes belong to its children and stay out.
        channels: the channels to rebuild.
        late: what snapshots may not cover.
        trusts: the snapshots at which it may end.

    Raises:
        NeedsHistory: a head view does not reach far enough.
        MissingDataError: an ancestor that the answer needs cannot be found.
        ParentCycleError: the parents run in a circle.
    """
    ns = target.checkpoint_ns
    moved = late.moved.get(ns, ())
    walks = {ch: _ChannelWalk(ch, late.below(ns, ch), moved, trusts) for ch in channels}
    for one in walks.values():
        one.late.discard(target.checkpoint_id)
    done: dict[str, ChannelHistory] = {}
    seen = {target.checkpoint_id}
    last = target
    while len(done) < len(walks):
        parent_id = last.parent_checkpoint_id
        if parent_id is None:
            break
        if parent_id in seen:
            raise ParentCycleError(
                f"the parents of checkpoint {target.checkpoint_id} in thread "
                f"{view.thread_id!r} run in a circle through {parent_id}; a put named a "
                "descendant as parent. Address a checkpoint before it by id"
            )
        seen.add(parent_id)
        parent = view.ancestor(ns, parent_id)
        if parent is None:
            _check_may_end(view, target, last, parent_id, walks, done)
            break
        for channel in set(walks) - set(done):
            found = walks[channel].step(view, last, parent)
            if found is not None:
                done[channel] = found
        last = parent
    for channel in set(walks) - set(done):
        done[channel] = walks[channel].candidate or walks[channel].history(None)
    return done


def _check_may_end(
    view: ThreadView,
    target: Record,
    last: Record,
    parent_id: str,
    walks: Mapping[str, _ChannelWalk],
    done: Collection[str],
) -> None:
    """A first checkpoint may name a parent that never was; elsewhere one is missing."""
    if not view.complete:
        raise NeedsHistory
    versions = view.versions(last)
    lost = sorted(
        ch for ch, w in walks.items() if ch not in done and not w.candidate and ch in versions
    )
    if lost:
        raise MissingDataError(
            f"checkpoint {target.checkpoint_id} of thread {view.thread_id!r} needs its "
            f"ancestor {parent_id} to rebuild {', '.join(lost)}, and it is not in the store. "
            "Its put may still be on the way; if not, an older checkpoint can be addressed by id"
        )


def possibly_below(view: ThreadView, checkpoint: Record, late: Collection[str]) -> set[str]:
    """Of some checkpoints those that do not descend from `checkpoint`."""
    ns = checkpoint.checkpoint_ns
    descends: dict[str, bool] = {checkpoint.checkpoint_id: True}
    for checkpoint_id in late:
        path: list[str] = []
        current: str | None = checkpoint_id
        while current is not None and current not in descends:
            descends[current] = False
            path.append(current)
            record = view.ancestor(ns, current)
            current = record.parent_checkpoint_id if record else None
        if current is not None and descends[current]:
            descends.update(dict.fromkeys(path, True))
    return {checkpoint_id for checkpoint_id in late if not descends[checkpoint_id]}


def snapshot_stands(view: ThreadView, target: Record, channel: str, late: Late) -> bool:
    """Whether the snapshot at a checkpoint covers all writes below it.

    Raises:
        NeedsHistory: a head view does not reach far enough to tell.
    """
    ns = target.checkpoint_ns
    moved, written = late.moved.get(ns, ()), late.writes.get((ns, channel), ())
    if target.checkpoint_id in moved:
        return False
    remaining = possibly_below(view, target, late.below(ns, channel))
    current = target
    seen: set[str | None] = {None, target.checkpoint_id}
    while remaining and current.parent_checkpoint_id not in seen:
        parent = view.ancestor(ns, current.parent_checkpoint_id or "")
        if parent is None and view.complete:
            break
        if parent is None or not view.covers(ns, parent.checkpoint_id, channel):
            raise NeedsHistory
        if parent.checkpoint_id in written:
            return False
        if view.stored_value(parent, channel) is not None:
            break
        if parent.checkpoint_id in moved:
            return False
        seen.add(parent.checkpoint_id)
        current = parent
    return True
