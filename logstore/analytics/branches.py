"""The branches of a thread: paths from a root to a checkpoint that nothing follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from logstore.records import Record
from logstore.view import ThreadView


@dataclass(frozen=True)
class Branch:
    """A checkpoint with all of its ancestors, oldest first, hidden ones included.

    A hidden checkpoint shows nowhere; what it and its writes hold is in the state of those
    that descend from it.
    """

    path: tuple[Record, ...]
    shown: tuple[Record, ...]
    """For each checkpoint of the path itself, or the next one that shows."""

    @property
    def leaf(self) -> Record:
        """The last checkpoint, which shows."""
        return self.path[-1]

    def shows(self, number: int) -> bool:
        """Whether the checkpoint at a place of the path shows."""
        return self.shown[number] is self.path[number]

    def writes(self, view: ThreadView) -> dict[str, list[tuple[str, Record]]]:
        """By channel, the writes on the path in their order, each with whose state it is in.

        What was written at the leaf belongs to its children and is left out.
        """
        found: dict[str, list[tuple[str, Record]]] = {}
        for child in self.path[1:]:
            for write in view.writes_before(child):
                found.setdefault(write.channel or "", []).append((child.checkpoint_id, write))
        return found


def branches(view: ThreadView, *, every: bool) -> Iterator[Branch]:
    """The branches of a thread's namespaces.

    Args:
        view: the thread.
        every: all branches; else only that of each namespace's head.
    """
    for ns in view.namespaces():
        head = view.head(ns)
        leaves = _leaves(view, ns) if every else [head] if head else []
        for leaf in leaves:
            yield _branch(view, leaf)


def _leaves(view: ThreadView, ns: str) -> list[Record]:
    found = [view.checkpoint(ns, checkpoint_id) for checkpoint_id in view.checkpoint_ids(ns)]
    shown = [record for record in found if record is not None]
    parents = {record.parent_checkpoint_id for record in shown}
    return [record for record in shown if record.checkpoint_id not in parents]


def _branch(view: ThreadView, leaf: Record) -> Branch:
    path = [leaf]
    shown = [leaf]
    seen = {leaf.checkpoint_id}
    ns = leaf.checkpoint_ns
    # A first checkpoint may name a parent that never was; a circle shows what is not in it.
    while (parent_id := path[-1].parent_checkpoint_id) is not None and parent_id not in seen:
        parent = view.ancestor(ns, parent_id)
        if parent is None:
            break
        seen.add(parent_id)
        path.append(parent)
        shown.append(shown[-1] if view.checkpoint(ns, parent_id) is None else parent)
    return Branch(tuple(reversed(path)), tuple(reversed(shown)))
