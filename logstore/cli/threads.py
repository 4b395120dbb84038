"""`logstore threads`: which threads there are, and where each of them stands."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from logstore.cli.catalog import Catalog
from logstore.cli.common import cell, console, human_time, iso_time, print_json, table
from logstore.cli.options import Json, Limit, Uri, existing_store
from logstore.reader import ThreadRead
from logstore.records import Record

DEFAULT_LIMIT = 50


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """One thread."""

    thread_id: str
    namespaces: list[str]
    checkpoints: int
    head: str
    """The checkpoint with the greatest id: of the root graph if it has any."""
    head_namespace: str
    step: int | None
    ts: int | None
    """The time of the head: microseconds since the epoch."""

    @classmethod
    def of(cls, read: ThreadRead) -> ThreadRow:
        """Describe a thread that has a checkpoint."""
        view = read.view
        namespaces = view.namespaces()
        head = _head(read, namespaces)
        return cls(
            thread_id=view.thread_id,
            namespaces=namespaces,
            checkpoints=sum(len(view.checkpoint_ids(ns)) for ns in namespaces),
            head=head.checkpoint_id,
            head_namespace=head.checkpoint_ns,
            step=head.step,
            ts=head.ts,
        )

    def to_dict(self) -> dict[str, Any]:
        """The row for programs."""
        return {**asdict(self), "ts": iso_time(self.ts)}


def _head(read: ThreadRead, namespaces: list[str]) -> Record:
    heads = [head for ns in namespaces if (head := read.view.head(ns)) is not None]
    return next((h for h in heads if h.checkpoint_ns == ""), heads[0])


def threads(uri: Uri, limit: Limit = DEFAULT_LIMIT, json: Json = False) -> None:
    """List the threads, the one with the newest checkpoint first.

    Deleted threads do not show. With --json the document says under "more" whether there are
    threads beyond the limit.

    Examples:

        logstore threads file:///var/lib/agents

        logstore threads s3://bucket/agents --limit 0 --json | jq -r '.threads[].thread_id'
    """
    with existing_store(uri) as store:
        reads = Catalog(store).reads()
        rows = [ThreadRow.of(read) for read in (islice(reads, limit) if limit else reads)]
        more = limit > 0 and next(reads, None) is not None
    if json:
        print_json({"uri": store.uri, "threads": [r.to_dict() for r in rows], "more": more})
    else:
        _print(rows, more)


def _print(rows: list[ThreadRow], more: bool) -> None:
    columns = ("thread", "checkpoints", "step", "time (UTC)", "head")
    found = table(*columns, right=("checkpoints", "step"), whole=("time (UTC)", "head"))
    for row in rows:
        found.add_row(
            cell(row.thread_id),
            f"{row.checkpoints}",
            "-" if row.step is None else f"{row.step}",
            human_time(row.ts),
            cell(row.head),
        )
        for ns in row.namespaces:
            if ns:
                found.add_row(cell(f"  └ {ns}", style="dim"))
    console.print(found if rows else "no threads")
    if more:
        console.print(f"the newest {len(rows)}; --limit 0 shows all", style="dim")
