"""The branches of a thread: paths from a root to a checkpoint that nothing follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from logstore.records import Record
from logstore.view import ThreadView


@dataclass(frozen=True)
class Branch:
    """A checkpoint with all of its ancestors, oldest first."""

    path: tuple[Record, ...]

    @property
    def leaf(self) -> Record:
        """The last checkpoint."""
        return self.path[-1]

    @property
    def ns(self) -> str:
        """The namespace."""
        return self.leaf.checkpoint_ns

    def writes(self, view: ThreadView) -> dict[str, list[tuple[str, Record]]]:
        """By channel, the writes on the path in their order, each with who first shows it.

        What was written at the leaf belongs to its children and is left out.
        """
        found: dict[str, list[tuple[str, Record]]] = {}
        for parent, child in zip(self.path, self.path[1:], strict=False):
            for write in view.writes(self.ns, parent.checkpoint_id):
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
        if head is not None and not every:
            yield _branch(view, head)
        elif every:
            found = [view.checkpoint(ns, id_) for id_ in view.checkpoint_ids(ns)]
            parents = {record.parent_checkpoint_id for record in found if record}
            for record in found:
                if record and record.checkpoint_id not in parents:
                    yield _branch(view, record)


def _branch(view: ThreadView, leaf: Record) -> Branch:
    path = [leaf]
    seen = {leaf.checkpoint_id}
    # A first checkpoint may name a parent that never was; a circle shows what is not in it.
    while (parent_id := path[-1].parent_checkpoint_id) is not None and parent_id not in seen:
        parent = view.checkpoint(leaf.checkpoint_ns, parent_id)
        if parent is None:
            break
        seen.add(parent_id)
        path.append(parent)
    return Branch(tuple(reversed(path)))
