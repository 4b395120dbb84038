"""What came to a thread after its snapshots were made, so that none of them covers it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from logstore.records import Kind, Record
from logstore.view import CheckpointKey, ThreadView


@dataclass(frozen=True)
class Late:
    """Where records of a thread lie that are newer than every snapshot in a view."""

    writes: Mapping[tuple[str, str], Collection[str]] = field(default_factory=dict)
    """For each namespace and channel: the checkpoints with such writes."""
    moved: Mapping[str, Collection[str]] = field(default_factory=dict)
    """For each namespace: the checkpoints that were put anew and follow other writes than
    before, because they name another parent, or because writes at it were hidden meanwhile."""

    def below(self, ns: str, channel: str) -> set[str]:
        """The checkpoints above which no snapshot of a channel is to be believed."""
        return {*self.writes.get((ns, channel), ()), *self.moved.get(ns, ())}


def late_records(view: ThreadView, fresh: Iterable[Record]) -> Late:
    """What a view's snapshots do not cover.

    Args:
        view: the thread, with `fresh` among its records.
        fresh: the records that no compaction has seen.
    """
    writes: dict[tuple[str, str], set[str]] = defaultdict(set)
    put: dict[CheckpointKey, set[tuple[int, str]]] = defaultdict(set)
    for record in fresh:
        if record.kind == Kind.WRITE:
            writes[(record.checkpoint_ns, record.channel or "")].add(record.checkpoint_id)
        elif record.kind == Kind.CHECKPOINT:
            put[(record.checkpoint_ns, record.checkpoint_id)].add((record.stamp, record.writer))
    moved: dict[str, set[str]] = defaultdict(set)
    for ns, checkpoint_id in _moved(view, put) if put else ():
        moved[ns].add(checkpoint_id)
    return Late(writes, moved)


def _moved(
    view: ThreadView, put: Mapping[CheckpointKey, Collection[tuple[int, str]]]
) -> Iterator[CheckpointKey]:
    if view.scope is not None:
        # What a manifest does not hold may have been there before all the same.
        scope = view.scope
        yield from (key for key in put if scope.may_lack(*key) and key not in scope.settled)
    for record in view.records if view.has_repetitions else ():
        key = (record.checkpoint_ns, record.checkpoint_id)
        if record.kind != Kind.CHECKPOINT or (record.stamp, record.writer) in put.get(key, (None,)):
            continue
        now = view.ancestor(*key)
        if now is None or (now.stamp, now.writer) not in put.get(key, ()):
            continue
        if view.follows(now) != view.follows(record):
            yield key
