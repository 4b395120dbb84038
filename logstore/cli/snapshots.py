"""What the commands on a store's tables share: the snapshot, and which messages are meant."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.cli.options import refuse_memory, require_directory
from logstore.memory import limit_heap

if TYPE_CHECKING:
    from logstore.analytics import Reading, StoreSnapshot

History = Annotated[
    bool,
    typer.Option(
        "--history",
        help="Every message that ever stood in the thread, with the first and the last "
        "checkpoint that it stood in; else those as of the head.",
    ),
]
AllBranches = Annotated[
    bool,
    typer.Option("--all-branches", help="Every branch of a thread with forks; else the head's."),
]


@contextmanager
def snapshot_of(uri: str) -> Iterator[StoreSnapshot]:
    """Take a snapshot of the store at a URI for a command.

    Raises:
        LogStoreError: there is none, or a part of it was lost.
    """
    import pyarrow as pa  # what other commands need not load

    from logstore import analytics

    refuse_memory(uri)
    require_directory(uri)
    limit_heap()
    pa.set_memory_pool(pa.system_memory_pool())  # it keeps nothing that was freed
    with analytics.open(uri) as snapshot:
        yield snapshot


def reading(history: bool, all_branches: bool) -> Reading:
    """Which messages the options ask for."""
    from logstore.analytics import Reading

    return Reading(history, "all" if all_branches else "head")


def plain(value: Any) -> Any:
    """A cell of a table as JSON can hold it; NaN and the infinities are null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value if isinstance(value, str | int | bool | None) else str(value)
