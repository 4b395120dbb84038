"""`logstore history`: a thread's checkpoints, and how they descend from each other."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from logstore.cli.common import cell, console, human_time, iso_time, print_json, table
from logstore.cli.options import (
    Json,
    Limit,
    Namespace,
    ThreadId,
    Uri,
    check_namespace,
    existing_store,
    read_thread,
)
from logstore.reader import ThreadRead
from logstore.walk import snapshot_stands

DEFAULT_LIMIT = 50


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One checkpoint."""

    checkpoint_id: str
    parent_checkpoint_id: str | None
    parent_missing: bool
    """Whether it has a parent that is not in the store."""
    parent_hidden: bool
    """Whether its parent was hidden by a prune or with its run."""
    head: bool
    """Whether a read without a checkpoint id finds this one."""
    on_path: bool
    """Whether it is the head or an ancestor of it; if not, it is on a fork."""
    children: int
    step: int | None
    source: str | None
    ts: int | None
    """Microseconds since the epoch, by the writer's clock."""
    run_id: str | None
    writes: int
    """Writes that were stored at the checkpoint; they belong to its children."""
    values: list[str]
    """Channels whose value the graph stored with this checkpoint."""
    snapshots: list[str]
    """Channels of which the compactor made a snapshot here."""

    def to_dict(self) -> dict[str, Any]:
        """The row for programs."""
        return {**asdict(self), "ts": iso_time(self.ts)}


def checkpoint_rows(read: ThreadRead, ns: str) -> list[CheckpointRow]:
    """Describe the checkpoints of a namespace, newest first."""
    view = read.view
    ids = view.checkpoint_ids(ns)
    path = set(path_to_root(read, ns, ids[-1]))
    records = [record for id_ in reversed(ids) if (record := view.checkpoint(ns, id_))]
    children = Counter(record.parent_checkpoint_id for record in records)
    rows = []
    for record in records:
        here, parent = record.checkpoint_id, record.parent_checkpoint_id
        stored = {ch: view.stored_value(record, ch) for ch in view.versions(record)}
        stored.update(view.inline_values(ns, here))
        rows.append(
            CheckpointRow(
                checkpoint_id=here,
                parent_checkpoint_id=record.parent_checkpoint_id,
                parent_missing=parent is not None and view.ancestor(ns, parent) is None,
                parent_hidden=view.is_boundary(record),
                head=here == ids[-1],
                on_path=here in path,
                children=children[here],
                step=record.step,
                source=record.source,
                ts=record.ts,
                run_id=record.run_id,
                writes=len(view.writes(ns, here)),
                values=sorted(ch for ch, v in stored.items() if v and v.checkpoint_id == here),
                snapshots=sorted(
                    channel
                    for channel in view.snapshots(ns, here)
                    if snapshot_stands(view, record, channel, read.late)
                ),
            )
        )
    return rows


def path_to_root(read: ThreadRead, ns: str, checkpoint_id: str) -> list[str]:
    """A checkpoint and its ancestors, as far as they are there."""
    path: list[str] = []
    current: str | None = checkpoint_id
    while current is not None and current not in path:
        record = read.view.ancestor(ns, current)
        if record is None:
            break
        path.append(current)
        current = record.parent_checkpoint_id
    return path


def history(
    uri: Uri,
    thread_id: ThreadId,
    ns: Namespace = "",
    limit: Limit = DEFAULT_LIMIT,
    json: Json = False,
) -> None:
    """List a thread's checkpoints, newest first, with their parents.

    The head is what the graph goes on from. A checkpoint marked "fork" is no ancestor of the
    head: someone resumed or updated an older checkpoint, and the thread went on elsewhere.
    Under "parent", ↓ is the row below.

    Examples:

        logstore history file:///var/lib/agents customer-42

        logstore history s3://bucket/agents customer-42 --ns "research:5d0e…" --json
    """
    with existing_store(uri) as store:
        read = read_thread(store, thread_id)
        check_namespace(read, ns)
        rows = checkpoint_rows(read, ns)
    shown = rows[:limit] if limit else rows
    if json:
        print_json(
            {
                "uri": store.uri,
                "thread_id": read.view.thread_id,
                "checkpoint_ns": ns,
                "namespaces": read.view.namespaces(),
                "checkpoints": [row.to_dict() for row in shown],
                "more": len(shown) < len(rows),
            }
        )
    else:
        _print(read, ns, rows, len(shown))


def _print(read: ThreadRead, ns: str, rows: list[CheckpointRow], shown: int) -> None:
    found = table(
        "", "checkpoint", "parent", "step", "source", "time (UTC)", "writes", "stored here",
        right=("step", "writes"), whole=("checkpoint", "parent", "time (UTC)"),
    )  # fmt: skip
    for row, below in zip(rows[:shown], [*rows[1:], None], strict=False):
        found.add_row(
            "head" if row.head else "" if row.on_path else "fork",
            cell(row.checkpoint_id),
            cell(_parent(row, below)),
            "-" if row.step is None else f"{row.step}",
            cell(row.source or "-"),
            human_time(row.ts),
            f"{row.writes}",
            cell(_stored(row)),
            style="bold" if row.head else "" if row.on_path else "dim",
        )
    console.print(found)
    if shown < len(rows):
        console.print(f"the newest {shown} of {len(rows)}; --limit 0 shows all", style="dim")
    others = [repr(name) for name in read.view.namespaces() if name != ns]
    if others:
        console.print(cell(f"other namespaces, for --ns: {', '.join(others)}", style="dim"))


def _parent(row: CheckpointRow, below: CheckpointRow | None) -> str:
    parent = row.parent_checkpoint_id
    if parent is None:
        return "-"
    if row.parent_missing:
        return f"{parent} (missing)"
    if row.parent_hidden:
        return f"{parent} (hidden)"
    return "↓" if below and parent == below.checkpoint_id else parent


def _stored(row: CheckpointRow) -> str:
    snapshots = [f"{channel} (snapshot)" for channel in row.snapshots]
    return ", ".join([*row.values, *snapshots]) or "-"
