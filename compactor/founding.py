"""Founding snapshots: those that stand for what a prune has dropped.

When what a prune hid is dropped, the checkpoint above it becomes a root, and the snapshot there
is all that is left of what it was folded from. It is a record from then on: never folded anew,
retired, or judged, whoever made it. It is told by its cover, which spans ancestors of a
checkpoint that has none.
"""

from __future__ import annotations

import json

from logstore.records import Encoding, Kind, Record
from logstore.view import ThreadView


def is_founding(view: ThreadView, snapshot: Record) -> bool:
    """Whether a snapshot stands for what was dropped.

    Args:
        view: all of the thread. What a manifest holds shows a checkpoint as a root already
            while its hidden parents are still there.
        snapshot: a snapshot of it.
    """
    if not view.complete or snapshot.kind != Kind.SNAPSHOT or snapshot.encoding == Encoding.VOID:
        return False
    checkpoint = view.ancestor(snapshot.checkpoint_ns, snapshot.checkpoint_id)
    if checkpoint is None or checkpoint.parent_checkpoint_id is not None:
        return False
    shown = view.snapshot(snapshot.checkpoint_ns, snapshot.checkpoint_id, snapshot.channel or "")
    if shown is None or (shown.stamp, shown.writer) != (snapshot.stamp, snapshot.writer):
        return False
    return bool(json.loads(snapshot.cover or "{}").get("checkpoints"))
