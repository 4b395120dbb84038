"""Detaching snapshots from the ones that they were patched against and that go.

A snapshot may be a patch against an earlier one. When that one is taken back or made anew, a
merge drops its row, and what was patched against it must have been stored whole before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compactor.folding.thinning import Place
from compactor.lost_objects import LostObjectError
from logstore.records import Encoding, Record
from logstore.values import Typed
from logstore.view import ThreadView


def detached(
    view: ThreadView,
    made: Sequence[Record],
    load: Callable[[Sequence[Record]], list[Typed]],
    restate: Callable[[Record, bytes], Record],
) -> list[Record]:
    """The snapshots that a job made, and the older ones that it must state anew because of them.

    Args:
        view: the thread with them.
        made: new snapshots, and records that take others back.
        load: gives the serde's form of records' values.
        restate: states a snapshot anew, with its value whole.
    """
    voided = {_place(r) for r in made if r.encoding == Encoding.VOID}
    changed = {_place(r) for r in made}
    found: list[Record] = []
    for record in made:
        if record.encoding == Encoding.PATCH and _base(record) in voided:
            record = restate(record, load([record])[0][1])
        found.append(record)
    for snapshot in _patched(view):
        if _place(snapshot) not in changed and _base(snapshot) in changed:
            try:
                found.append(restate(snapshot, load([snapshot])[0][1]))
            except LostObjectError:
                continue  # nobody can read it, whatever it is made against
    return found


def _patched(view: ThreadView) -> list[Record]:
    """The snapshots that count and are patches against others."""
    found = []
    for record in view.records:
        if record.encoding == Encoding.PATCH and record.base_version is not None:
            at = view.snapshots(record.checkpoint_ns, record.checkpoint_id)
            if at.get(record.channel or "") is record:
                found.append(record)
    return found


def _place(record: Record) -> Place:
    return record.checkpoint_ns, record.checkpoint_id, record.channel or ""


def _base(record: Record) -> Place:
    return record.checkpoint_ns, record.base_version or "", record.channel or ""
