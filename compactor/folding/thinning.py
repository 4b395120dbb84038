"""Which of the compactor's snapshots stay. In-line values are records, and never judged.

What stays follows from the thread's history alone: from the tree of the checkpoints at which a
snapshot is due. So any schedule of jobs ends with the same snapshots, and one that was retired is
not folded anew. Distances are counted in due snapshots, to the nearest end of a branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from compactor.folding.channels import ChannelSpec, ChannelTable
from compactor.folding.policy import Retention
from logstore.records import Record
from logstore.view import ThreadView

Place = tuple[str, str, str]
"""A snapshot's namespace, checkpoint and channel."""


def wanted_snapshots(
    view: ThreadView,
    checkpoints: Iterable[Record],
    table: ChannelTable,
    is_due: Callable[[Record, ChannelSpec], bool],
    retention: Retention,
) -> set[Place]:
    """The places at which a thread is to have a snapshot.

    Args:
        view: all of the thread.
        checkpoints: its checkpoints, each after its parent.
        table: the channels that may be folded.
        is_due: whether a channel has a snapshot due at a checkpoint.
        retention: the policy.
    """
    always: set[Place] = set()
    last: dict[tuple[str, str], dict[str, Place]] = {}
    index: dict[Place, int] = {}
    before: dict[Place, Place] = {}
    for checkpoint in checkpoints:
        ns, checkpoint_id = checkpoint.checkpoint_ns, checkpoint.checkpoint_id
        known = last.get((ns, checkpoint.parent_checkpoint_id or ""), {})
        specs = table.specs(checkpoint.thread_id, ns)
        due = [ch for ch in view.versions(checkpoint) if ch in specs]
        hidden = (ns, checkpoint_id) in view.hidden()
        for channel in (ch for ch in due if not hidden and is_due(checkpoint, specs[ch])):
            place = (ns, checkpoint_id, channel)
            if view.is_boundary(checkpoint):
                always.add(place)  # what is hidden below may be dropped on its account
            if channel in known:
                before[place] = known[channel]
            index[place] = index.get(known.get(channel, place), 0) + 1
            known = {**known, channel: place}
        last[(ns, checkpoint_id)] = known
    behind: dict[Place, int] = {}
    for place in reversed(index):
        behind.setdefault(place, 0)
        if place in before:
            earlier = before[place]
            behind[earlier] = min(behind.get(earlier, behind[place] + 1), behind[place] + 1)
    return always | {place for place in index if retention.keeps(index[place], behind[place])}
