"""A real agent on this store: latency of runs, of the state and of the history.

Four ways to keep the messages are compared: whole lists (`full`), deltas with snapshots in line
(`inline`), deltas without any (`bare`), and deltas whose snapshots the compactor makes beside
the agent (`compactor`). In each the log is merged as it grows. One JSON line each on stdout,
then one a comparison; a table on stderr.

`snapshot_write_spike` is the 99th percentile of the checkpoints' writes over the median, in
milliseconds and in bytes: a snapshot in line is a spike on the write path, one that the
compactor makes is none. `cache_effect_ms` is what a second read of the state saves (cold minus
warm, medians).

    python -m tests.benchmarks.production_bench --turns 100 --store s3://bucket/bench
"""

# No `from __future__ import annotations`: LangGraph evaluates the annotations of states,
# which name things that only the function around them knows.

import argparse
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.graph import END, START, StateGraph

from compactor import compact
from logstore import LogStoreSaver
from logstore.channels import delta_messages, messages_channel
from logstore.config import ChannelMode
from logstore.guard import with_mode
from logstore.modes import unfreeze_for_tests
from tests.benchmarks.channel_bench import (
    CONFIG,
    digest_of,
    emit,
    milliseconds,
    numbers,
    percentile,
    print_table,
    text_of,
)

NEVER = 1_000_000
"""A cadence that no thread reaches: no snapshots in line."""
WARM_UP = 2
"""Turns that are not counted."""
SHOWN = (
    "variant",
    "run_p50_ms",
    "put_p50_ms",
    "put_p99_ms",
    "snapshot_write_spike",
    "snapshot_byte_spike",
    "state_cold_ms",
    "state_warm_ms",
    "cache_effect_ms",
    "history_cold_ms",
    "history_warm_ms",
)


@dataclass(frozen=True)
class Variant:
    """A way to keep the messages."""

    variant: str
    mode: ChannelMode
    snapshot_frequency: int | None
    """The graph's K."""
    compactor_frequency: int | None = None
    """The compactor's K; None: it merges, and makes no snapshots."""


def variants(k: int) -> list[Variant]:
    """The four that are compared."""
    return [
        Variant("full", "full", None),
        Variant("inline", "delta", k),
        Variant("bare", "delta", NEVER),
        Variant("compactor", "delta", NEVER, k),
    ]


# -- the agent ----------------------------------------------------------------------------


def build_agent(variant: Variant, payload_bytes: int, saver: Any) -> Any:
    """`START -> model <-> tools -> END`, with a model that says what a script says.

    Each turn is four updates: the question, a tool call, its result, the answer.
    """
    unfreeze_for_tests()
    channel = messages_channel(variant.mode, variant.snapshot_frequency)

    class State(TypedDict):
        messages: Annotated[list[AnyMessage], channel]

    def model(state: State) -> dict[str, Any]:
        number = len(state["messages"])
        text = text_of(payload_bytes, f"model {number}")
        calls = []
        if isinstance(state["messages"][-1], HumanMessage):
            calls = [{"name": "look_up", "args": {"number": number}, "id": f"call-{number}"}]
        return {"messages": [AIMessage(text, id=f"ai-{number:06d}", tool_calls=calls)]}

    def tools(state: State) -> dict[str, Any]:
        last = state["messages"][-1]
        number = len(state["messages"])
        text = text_of(payload_bytes, f"tool {number}")
        call = last.tool_calls[0]["id"] if isinstance(last, AIMessage) else ""
        return {"messages": [ToolMessage(text, tool_call_id=call, id=f"tool-{number:06d}")]}

    def after_model(state: State) -> str:
        last = state["messages"][-1]
        return "tools" if isinstance(last, AIMessage) and last.tool_calls else END

    builder = StateGraph(State)
    builder.add_node("model", model)
    builder.add_node("tools", tools)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", after_model, ["tools", END])
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


class MeasuredSaver(LogStoreSaver):
    """Notes how long each put took, and the serde's bytes of the values that it brought."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.put_ms: list[float] = []
        self.put_bytes: list[float] = []

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        values = checkpoint["channel_values"]
        brought = {c: values[c] for c in new_versions if c in values}
        self.put_bytes.append(len(self.serde.dumps_typed(brought)[1]))
        begun = time.perf_counter()
        done = super().put(config, checkpoint, metadata, new_versions)
        self.put_ms.append(milliseconds(begun))
        return done


@contextmanager
def opened(uri: str, mode: ChannelMode) -> Iterator[tuple[MeasuredSaver, Any]]:
    """A saver that has nothing in memory, and the same guarded by the mode."""
    unfreeze_for_tests()
    with MeasuredSaver.from_conn_string(uri, compaction="off") as saver:
        yield saver, with_mode(saver, mode)


# -- a variant ------------------------------------------------------------------------------


def run_variant(variant: Variant, args: argparse.Namespace, uri: str) -> dict[str, Any]:
    """Run the turns, then read the state and the history cold and warm."""
    row: dict[str, Any] = {
        "benchmark": "production",
        **asdict(variant),
        "turns": args.turns,
        "payload_bytes": args.payload_bytes,
    }
    row |= _run(variant, args, uri)
    row |= _state(variant, args, uri)
    for limit in args.history_limits:
        row |= _history(variant, args, uri, limit)
    longest = max(args.history_limits)
    for temperature in ("cold", "warm"):
        row[f"history_{temperature}_ms"] = row[f"history_{longest}_{temperature}_ms"]
    return row


def _run(variant: Variant, args: argparse.Namespace, uri: str) -> dict[str, Any]:
    turn_ms: list[float] = []
    with opened(uri, variant.mode) as (saver, guarded):
        graph = build_agent(variant, args.payload_bytes, guarded)
        for turn in range(WARM_UP + args.turns):
            if turn == WARM_UP:
                saver.put_ms.clear()
                saver.put_bytes.clear()
                turn_ms.clear()
            text = text_of(args.payload_bytes, f"turn {turn}")
            message = HumanMessage(text, id=f"human-{turn:06d}")
            begun = time.perf_counter()
            graph.invoke({"messages": [message]}, CONFIG)
            turn_ms.append(milliseconds(begun))
            if turn % args.compact_every == 0:
                _compact(variant, uri)
        put_ms, put_bytes = list(saver.put_ms), list(saver.put_bytes)
    _compact(variant, uri)
    return {
        "run_p50_ms": percentile(turn_ms, 50),
        "run_p95_ms": percentile(turn_ms, 95),
        "puts": len(put_ms),
        "put_p50_ms": percentile(put_ms, 50),
        "put_p99_ms": percentile(put_ms, 99),
        "put_p50_bytes": percentile(put_bytes, 50),
        "put_p99_bytes": percentile(put_bytes, 99),
        "snapshot_write_spike": percentile(put_ms, 99) / percentile(put_ms, 50),
        "snapshot_byte_spike": percentile(put_bytes, 99) / percentile(put_bytes, 50),
    }


def _compact(variant: Variant, uri: str) -> None:
    """A job, as a process of its own would run it; without a channel it merges only."""
    k = variant.compactor_frequency
    compact(uri, channels={} if k is None else {"messages": delta_messages(k)})


def _state(variant: Variant, args: argparse.Namespace, uri: str) -> dict[str, Any]:
    def read(graph: Any) -> Any:
        return graph.get_state(CONFIG).values["messages"]

    cold, warm, messages = _cold_and_warm(variant, args, uri, read)
    return {
        "state_cold_ms": cold,
        "state_warm_ms": warm,
        "cache_effect_ms": cold - warm,
        "messages": len(messages),
        "digest": digest_of(messages),
    }


def _history(variant: Variant, args: argparse.Namespace, uri: str, limit: int) -> dict[str, Any]:
    def read(graph: Any) -> Any:
        return list(graph.get_state_history(CONFIG, limit=limit))

    cold, warm, states = _cold_and_warm(variant, args, uri, read)
    digests = [digest_of(state.values.get("messages", [])) for state in states]
    return {
        f"history_{limit}_cold_ms": cold,
        f"history_{limit}_warm_ms": warm,
        f"history_{limit}_digests": digests,
    }


def _cold_and_warm(
    variant: Variant, args: argparse.Namespace, uri: str, read: Callable[[Any], Any]
) -> tuple[float, float, Any]:
    """The median of first reads by new savers, that of second reads, and what was read."""
    cold, warm = [], []
    found: Any = None
    for _ in range(args.reads):
        with opened(uri, variant.mode) as (_, guarded):
            graph = build_agent(variant, args.payload_bytes, guarded)
            for taken in (cold, warm):
                begun = time.perf_counter()
                found = read(graph)
                taken.append(milliseconds(begun))
    return median(cold), median(warm), found


# -- the whole --------------------------------------------------------------------------------


def compare(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The delta variants beside the full one: ratios are always delta / full."""
    full = next(row for row in rows if row["variant"] == "full")
    names = [n for n in full if n.endswith("_ms") and n != "cache_effect_ms"]
    return [
        {
            "benchmark": "production_summary",
            "variant": row["variant"],
            "snapshot_write_spike": round(row["snapshot_write_spike"], 3),
            "snapshot_byte_spike": round(row["snapshot_byte_spike"], 3),
            "cache_effect_ms": round(row["cache_effect_ms"], 3),
            **{f"ratio_{n}": round(row[n] / full[n], 3) if full[n] else None for n in names},
        }
        for row in rows
        if row["mode"] == "delta"
    ]


def differing(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What is not the same in all variants."""
    names = [n for n in rows[0] if n.endswith(("digest", "digests"))]
    return [name for name in names if len({str(row[name]) for row in rows}) > 1]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the variants; 1 if their messages differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=24)
    parser.add_argument("--payload-bytes", type=int, default=2048)
    parser.add_argument("--snapshot-frequency", type=int, default=10)
    parser.add_argument("--compact-every", type=int, default=3, help="turns between two jobs")
    parser.add_argument("--reads", type=int, default=3)
    parser.add_argument("--history-limits", type=numbers, default=[10, 30])
    parser.add_argument("--store", help="a store's URI; by default a directory that is removed")
    args = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        place = f"{args.store or f'file://{folder}'}/{secrets.token_hex(4)}"
        for variant in variants(args.snapshot_frequency):
            rows.append(run_variant(variant, args, f"{place}-{variant.variant}"))
            emit(rows[-1])
    for row in compare(rows):
        emit(row)
    print_table(rows, SHOWN)
    wrong = differing(rows)
    for name in wrong:
        print(f"the variants differ in {name}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
