"""compactor: merges a store's segments into runs and makes snapshots of delta channels.

`compact` is one job, the same that the command `compactor run` runs.

A job (`job`) plans (`plan`), then `publishing` brings the snapshot manifests of the touched
threads up to date with what `folding` made, `merging` writes new runs, `keeping` makes the
tables that analysts want, and `commit` lets all of it count; `cleaning` is about what goes.
`verifying` and `rebuild` prove it and make it anew; `commands` is what an operator types.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from compactor.cleaning.dropping import HIDDEN_GRACE_S
from compactor.folding.channels import ChannelTable, default_serde, table_of
from compactor.job import Job, Progress
from compactor.memory import MemoryBudget
from compactor.report import Outcome, PartitionReport, Report
from logstore.store import LogStore

__all__ = ["Outcome", "PartitionReport", "Report", "compact"]


def compact(
    store: str | LogStore,
    *,
    graph: Any = None,
    channels: Mapping[str, Any] | None = None,
    table: ChannelTable | None = None,
    frequency: int | None = None,
    retention: str = "all",
    serde: SerializerProtocol | None = None,
    partitions: Collection[int] | None = None,
    max_runtime_s: float | None = None,
    progress: Progress | None = None,
    memory: str | None = None,
    hidden_grace_s: float = HIDDEN_GRACE_S,
    keep: Collection[str] = (),
    **backend: Any,
) -> Report:
    """Run one compaction job.

    Args:
        store: a store's URI, or an open store.
        graph: a compiled graph, whose delta channels are folded.
        channels: or single `DeltaChannel`s by name, of the root graph.
        table: or a table read from the operator's configuration.
        frequency: K, instead of the channels' own `snapshot_frequency`.
        retention: which snapshots stay: `all`, `newest N` or `powers of two`.
        serde: the saver's serde; LangGraph's own by default.
        partitions: only these; all by default.
        max_runtime_s: begin nothing after so many seconds.
        progress: is called after each partition.
        memory: what the job may hold at a time, such as `256MB`; 512 MB by default.
        hidden_grace_s: how long checkpoints that a prune has hidden are kept at least.
        keep: the tables to keep for analytics, of `messages` and `tool_calls`.
        backend: options of the object store, if `store` is a URI.

    Returns:
        What was done.

    Raises:
        InvalidOptionError: an argument makes no sense.
        ObjectStoreError: the object store refused.
    """
    if table is None:
        table = table_of(graph=graph, channels=channels, frequency=frequency, retention=retention)
    serde = serde or default_serde(graph)
    budget = MemoryBudget() if memory is None else MemoryBudget.parse(memory)
    if isinstance(store, str):
        opened = LogStore.open(store, budget.store_options(), **backend)
    else:
        opened = store
    try:
        job = Job(
            opened,
            table,
            serde,
            max_runtime_s=max_runtime_s,
            memory=budget,
            hidden_grace_s=hidden_grace_s,
            keep=keep,
        )
        return job.run(partitions, progress)
    finally:
        if opened is not store:
            opened.close()
