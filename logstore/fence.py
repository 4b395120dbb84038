"""A fence between workers that go on from the same checkpoint.

An object store has no lock, so a put is looked at twice: before it is stored, whether its parent
has a child already, and afterwards, whether another child has come meanwhile. Of two puts that
race, whichever is durable later sees the other one; so at most one of them succeeds. Both may
see each other, and then both are refused.
"""

from __future__ import annotations

from logstore.bases import Place
from logstore.errors import HeadMovedError
from logstore.reader import ThreadRead, until_stable
from logstore.records import Record, Tombstone
from logstore.store import LogStore
from logstore.view import NeedsHistory, ThreadView


class Fence:
    """Refuses puts whose parent is no longer the head of its branch."""

    def __init__(self, store: LogStore) -> None:
        """Guard the threads of `store`."""
        self._store = store

    def before(self, place: Place, parent: str | None) -> None:
        """Look before the put of a checkpoint.

        Raises:
            HeadMovedError: its parent has another child.
        """
        _, sibling = until_stable(lambda: self._look(place, parent))
        if sibling is not None:
            raise _moved(place, parent, sibling, "Nothing was stored")

    def after(self, place: Place, parent: str | None) -> None:
        """Look once more when the put is durable.

        Raises:
            HeadMovedError: its parent has another child; the checkpoint is hidden.
        """
        own, sibling = until_stable(lambda: self._look(place, parent))
        if sibling is None:
            return
        if own is not None:
            hidden = Tombstone({own.writer: own.seq}, checkpoints=frozenset({place[1:]}))
            self._store.hide(place[0], hidden)
        raise _moved(place, parent, sibling, "The checkpoint was taken back")

    def _look(self, place: Place, parent: str | None) -> tuple[Record | None, Record | None]:
        """The checkpoint itself, and another child of its parent."""
        thread_id, ns, checkpoint_id = place
        head = self._store.read_head(thread_id)
        try:
            return _family(head, ns, checkpoint_id, parent)
        except NeedsHistory:
            whole = self._store.read_history(thread_id, after=head)
            return _family(whole, ns, checkpoint_id, parent)


def _family(
    read: ThreadRead, ns: str, checkpoint_id: str, parent: str | None
) -> tuple[Record | None, Record | None]:
    view = read.view
    if not view.complete and not _knows_children(view, ns, parent):
        raise NeedsHistory
    children = _children(view, ns, parent)
    own = children.pop(checkpoint_id, None)
    return own, next(iter(children.values()), None)


def _knows_children(view: ThreadView, ns: str, parent: str | None) -> bool:
    """Whether all children of a checkpoint are at hand: those of the head, and of newer ones."""
    head = view.head(ns)
    if parent is None:
        return head is None or view.scope is None or ns not in view.scope.head_ids
    record = view.ancestor(ns, parent)
    return record is not None and view.holds_whole(record)


def _children(view: ThreadView, ns: str, parent: str | None) -> dict[str, Record]:
    return {
        record.checkpoint_id: record
        for record in view.shown()
        if record.checkpoint_ns == ns and record.parent_checkpoint_id == parent
    }


def _moved(place: Place, parent: str | None, sibling: Record, outcome: str) -> HeadMovedError:
    by = f", by run {sibling.run_id}" if sibling.run_id else ""
    after = f"checkpoint {parent}" if parent else "its beginning"
    return HeadMovedError(
        f"thread {place[0]!r} went on from {after} to checkpoint {sibling.checkpoint_id}{by}, so "
        f"checkpoint {place[2]} does not follow the head of its branch. {outcome}; load the "
        "thread's state again and repeat the step, or resume with a fork"
    )
