"""What a report on a store tells: figures from one snapshot, as the charts need them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logstore.analytics.snapshot import StoreSnapshot

_TOOLS = 12

_FACTS = """
SELECT (SELECT count(*) FROM threads), (SELECT count(*) FROM checkpoints),
       (SELECT count(*) FROM writes), (SELECT count(*) FROM messages),
       (SELECT count(*) FROM tool_calls), (SELECT min(first_ts) FROM threads),
       (SELECT max(last_ts) FROM threads)
"""
# Of each step number, over all threads: what was stored at it, and how large the values are
# that its writes have added up to, which is what a saver of whole values stores at every step.
_GROWTH = """
WITH steps AS (
    SELECT thread_id, checkpoint_ns, checkpoint_id, step AS turn FROM checkpoints WHERE step >= 0
), stored AS (
    SELECT thread_id, checkpoint_ns, turn, sum(coalesce(octet_length(value), 0)) AS bytes,
           sum(CASE WHEN kind = 'write' THEN coalesce(size, 0) ELSE 0 END) AS written
    FROM records JOIN steps USING (thread_id, checkpoint_ns, checkpoint_id)
    WHERE kind <> 'snapshot' GROUP BY ALL
), grown AS (
    SELECT turn, bytes, sum(written) OVER (
        PARTITION BY thread_id, checkpoint_ns ORDER BY turn) AS whole
    FROM stored
)
SELECT turn, sum(sum(bytes)) OVER (ORDER BY turn), sum(sum(whole)) OVER (ORDER BY turn)
FROM grown GROUP BY turn ORDER BY turn
"""
# Writes of a channel from its latest snapshot or value on: what a read of the head replays.
_DEPTH = """
WITH channels AS (
    SELECT thread_id, checkpoint_ns, channel, max(checkpoint_id) AS latest FROM records
    WHERE kind = 'snapshot' OR (kind = 'blob' AND encoding <> 'empty') GROUP BY ALL
), delta AS (
    SELECT DISTINCT thread_id, checkpoint_ns,
           unnest(json_keys(metadata, '$.counters_since_delta_snapshot')) AS channel
    FROM checkpoints
)
SELECT count(*) FROM writes JOIN delta USING (thread_id, checkpoint_ns, channel)
LEFT JOIN channels USING (thread_id, checkpoint_ns, channel)
WHERE latest IS NULL OR checkpoint_id >= latest
GROUP BY thread_id, checkpoint_ns, channel
"""
_SPACING = """
SELECT gap FROM (
    SELECT step - lag(step) OVER (
        PARTITION BY thread_id, checkpoint_ns, channel ORDER BY step) AS gap
    FROM snapshots JOIN checkpoints USING (thread_id, checkpoint_ns, checkpoint_id)
) WHERE gap > 0
"""
_LENGTHS = "SELECT count(*) FROM messages GROUP BY thread_id, checkpoint_ns, channel"
_TOKENS = """
SELECT sum(total_tokens) FROM messages GROUP BY thread_id HAVING sum(total_tokens) IS NOT NULL
"""
_CALLS = f"""
SELECT name, count(*), count(*) FILTER (is_error) FROM tool_calls
GROUP BY name ORDER BY 2 DESC, 1 LIMIT {_TOOLS}
"""
_SLOWEST = f"""
SELECT name, median(latency_s) FROM tool_calls WHERE latency_s IS NOT NULL
GROUP BY name ORDER BY 2 DESC, 1 LIMIT {_TOOLS}
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a report."""

    threads: int
    checkpoints: int
    writes: int
    messages: int
    tool_calls: int
    first_ts: Any
    last_ts: Any
    growth: list[tuple[int, int, int]]
    """By step: bytes stored up to it, and what whole values at every step would have taken."""
    replay_depth: list[int]
    snapshot_spacing: list[int]
    """Steps between one snapshot of a channel and the next."""
    messages_a_thread: list[int]
    tokens_a_thread: list[int]
    """Of threads whose messages tell their tokens."""
    tools: list[tuple[str, int, int]]
    """Name, calls, and failed ones."""
    slowest: list[tuple[str, float]]
    """Name and median seconds."""
    tail: list[tuple[str, int]]
    """By partition: segments that no compaction has merged."""


def figures(snapshot: StoreSnapshot) -> Figures:
    """Ask a snapshot for the figures of a report.

    Raises:
        SnapshotExpiredError: a run is gone.
    """

    def ask(query: str) -> list[tuple[Any, ...]]:
        columns = snapshot.sql(query).read_all().columns
        return list(zip(*(column.to_pylist() for column in columns), strict=True))

    def numbers(query: str) -> list[int]:
        return [int(row[0]) for row in ask(query)]

    threads, checkpoints, writes, messages, tool_calls, first_ts, last_ts = ask(_FACTS)[0]
    return Figures(
        threads=threads,
        checkpoints=checkpoints,
        writes=writes,
        messages=messages,
        tool_calls=tool_calls,
        first_ts=first_ts,
        last_ts=last_ts,
        growth=[(step, int(stored), int(whole)) for step, stored, whole in ask(_GROWTH)],
        replay_depth=numbers(_DEPTH),
        snapshot_spacing=numbers(_SPACING),
        messages_a_thread=numbers(_LENGTHS),
        tokens_a_thread=numbers(_TOKENS),
        tools=[(name or "unnamed", calls, failed) for name, calls, failed in ask(_CALLS)],
        slowest=[(name or "unnamed", seconds) for name, seconds in ask(_SLOWEST)],
        tail=[(f"partition {p.number}", p.tail_segments) for p in snapshot.partitions],
    )
