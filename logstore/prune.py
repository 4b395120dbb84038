"""What a prune keeps: which checkpoints stay, and the tombstone that hides the others.

The rules for subgraphs are those of LangGraph's Postgres saver. A subgraph call has a
namespace of its own, which ends in its task's id. It goes with the root checkpoint that it
belongs to, once that one is stored: runs save in the background, and a call may be there
first. A subgraph with a memory of its own (`checkpointer=True`) has no task id in its
namespace, and keeps its latest checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from logstore.records import Record, Tombstone
from logstore.view import ThreadView


def prune_tombstone(
    view: ThreadView, positions: Mapping[str, int], newest: int = 1
) -> Tombstone | None:
    """The tombstone that keeps the newest checkpoints of each namespace.

    Args:
        view: all of the thread.
        positions: what was read of it: for each writer the greatest lane position.
        newest: how many checkpoints of each namespace stay.

    Returns:
        The tombstone, or None if everything stays.
    """
    keep = kept_from(view, newest)
    shown = {(ns, id_) for ns in view.namespaces() for id_ in view.checkpoint_ids(ns)}
    if all(ns in keep and id_ >= keep[ns] for ns, id_ in shown):
        return None
    # What was hidden one by one, or before a clock went back, must stay hidden without the
    # tombstones that did it.
    again = frozenset((ns, id_) for ns, id_ in view.hidden() if ns in keep and id_ >= keep[ns])
    return Tombstone(positions, keep, checkpoints=again or None)


def kept_from(view: ThreadView, newest: int) -> dict[str, str]:
    """For each namespace that stays, the least checkpoint id that stays."""
    ids = {ns: view.checkpoint_ids(ns)[-newest:] for ns in view.namespaces()}
    roots = set(ids.get("", ()))
    return {ns: kept[0] for ns, kept in ids.items() if not _is_call_of_the_past(view, ns, roots)}


def _is_call_of_the_past(view: ThreadView, ns: str, roots: set[str]) -> bool:
    """Whether the namespace belongs to a call of a root checkpoint that is stored and goes."""
    if ":" not in ns:
        return False
    head = view.head(ns)
    root = None if head is None else _root_of(head)
    return root is not None and root not in roots and view.ancestor("", root) is not None


def _root_of(checkpoint: Record) -> str | None:
    """The root graph's checkpoint that a subgraph's checkpoint belongs to."""
    try:
        root = json.loads(checkpoint.metadata or "{}").get("parents", {}).get("")
    except (ValueError, AttributeError):
        return None
    return root if isinstance(root, str) else None
