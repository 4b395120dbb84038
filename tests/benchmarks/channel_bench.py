"""The channel of messages in full and in delta mode: rows, bytes and reads, on several savers.

One JSON line a case on stdout, then one a comparison (ratios are always delta / full); a table
on stderr. Rows and bytes are counted through the savers' public interface, so they mean the
same on each: bytes are the serde's. What a saver takes on disk is told beside them.

    python -m tests.benchmarks.channel_bench --updates 200 --payload-bytes 4096
"""

# No `from __future__ import annotations`: LangGraph evaluates the annotations of states,
# which name things that only the function around them knows.

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from compactor import compact
from logstore import LogStoreSaver
from logstore.channels import delta_messages, messages_channel
from logstore.config import ChannelMode
from logstore.guard import with_mode
from logstore.modes import unfreeze_for_tests

Saver = BaseCheckpointSaver[Any]
CONFIG: Any = {"configurable": {"thread_id": "bench"}}
BACKENDS = ("memory", "sqlite", "logstore")
RATIOS = (
    "logical_bytes",
    "value_bytes",
    "stored_bytes",
    "write_total_ms",
    "write_p50_ms",
    "write_p99_ms",
    "warm_read_ms",
    "cold_read_ms",
)


@dataclass(frozen=True)
class Case:
    """One cell of the matrix."""

    backend: str
    mode: ChannelMode
    snapshot_frequency: int | None
    """K; None in full mode."""
    updates: int
    payload_bytes: int


# -- what both benchmarks share -----------------------------------------------------------


def digest_of(messages: Iterable[BaseMessage]) -> str:
    """The canonical digest of messages: kind, id and content, in their order."""
    plain = [[m.type, m.id, m.content] for m in messages]
    text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile."""
    ordered = sorted(values)
    rank = max(0, min(len(ordered) - 1, round(percent / 100 * len(ordered) + 0.5) - 1))
    return ordered[rank]


def milliseconds(begun: float) -> float:
    """Since a reading of the performance counter."""
    return (time.perf_counter() - begun) * 1000


def emit(row: dict[str, Any]) -> None:
    """One JSON line."""
    print(json.dumps(row, separators=(",", ":")), flush=True)


def print_table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    """The rows for people, on stderr."""
    shown = [[_shown(row.get(column)) for column in columns] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(columns, *shown, strict=True)]
    for line in (columns, *shown):
        print("  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)), file=sys.stderr)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
    return f"{value}"


def numbers(text: str) -> list[int]:
    """A comma-separated list of positive numbers."""
    found = [int(part) for part in text.split(",")]
    if min(found) < 1:
        raise argparse.ArgumentTypeError("numbers of at least 1, separated by commas")
    return found


def text_of(size: int, seed: str) -> str:
    """Words that differ from message to message, so that they compress as words do."""
    words: list[str] = []
    number = 0
    while sum(map(len, words)) + len(words) < size:
        words.append(hashlib.blake2b(f"{seed} {number}".encode(), digest_size=4).hexdigest())
        number += 1
    return " ".join(words)[:size]


# -- a case -----------------------------------------------------------------------------


def build_graph(mode: ChannelMode, k: int | None, saver: Saver) -> Any:
    """A graph that takes messages and does nothing, as a new process builds it."""
    unfreeze_for_tests()
    channel = messages_channel(mode, k)

    class State(TypedDict):
        messages: Annotated[list[AnyMessage], channel]

    builder = StateGraph(State)
    builder.add_node("noop", lambda state: {})
    builder.add_edge(START, "noop")
    builder.add_edge("noop", END)
    return builder.compile(checkpointer=with_mode(saver, mode))


@contextmanager
def opened(backend: str, folder: Path) -> Iterator[Saver]:
    """The backend's saver; opened again, it has nothing in memory."""
    if backend == "sqlite":
        with SqliteSaver.from_conn_string(f"{folder}/bench.sqlite") as saver:
            saver.setup()
            yield saver
    else:
        with LogStoreSaver.from_conn_string(store_uri(folder), compaction="off") as store:
            yield store


def store_uri(folder: Path) -> str:
    """Where a case's store is."""
    return f"file://{folder}/store"


def message_at(number: int, payload_bytes: int) -> BaseMessage:
    """The same messages in every case."""
    kind = AIMessage if number % 2 else HumanMessage
    return kind(text_of(payload_bytes, f"{number}"), id=f"message-{number:06d}")


def run_case(case: Case, folder: Path) -> Iterator[dict[str, Any]]:
    """Write a thread, read it warm and cold, count what is stored; a store also compacted."""
    if case.backend == "memory":
        # It has nothing to open again: a cold read is one with a new graph.
        saver = InMemorySaver()
        written = _write(case, saver)
        yield _row(case, written, _read_cold(case, saver), count(saver))
        return
    with opened(case.backend, folder) as saver:
        written = _write(case, saver)
    yield _reopened(case, written, folder)
    if case.backend == "logstore":
        k = case.snapshot_frequency or 1
        compact(store_uri(folder), channels={"messages": delta_messages(k)})
        yield _reopened(replace(case, backend="logstore-compacted"), written, folder)


def _reopened(case: Case, written: dict[str, Any], folder: Path) -> dict[str, Any]:
    with opened(case.backend, folder) as saver:
        read = _read_cold(case, saver)
    with opened(case.backend, folder) as saver:
        counted = count(saver)
    files = [path for path in folder.rglob("*") if path.is_file()]
    return _row(case, written, read, counted, sum(path.stat().st_size for path in files))


def _row(case: Case, *parts: dict[str, Any] | int) -> dict[str, Any]:
    row: dict[str, Any] = {"benchmark": "channel", **asdict(case), "stored_bytes": None}
    for part in parts:
        row |= part if isinstance(part, dict) else {"stored_bytes": part}
    return row


def _write(case: Case, saver: Saver) -> dict[str, Any]:
    graph = build_graph(case.mode, case.snapshot_frequency, saver)
    latencies = []
    for number in range(case.updates):
        update = {"messages": [message_at(number, case.payload_bytes)]}
        begun = time.perf_counter()
        graph.invoke(update, CONFIG)
        latencies.append(milliseconds(begun))
    begun = time.perf_counter()
    messages = graph.get_state(CONFIG).values["messages"]
    return {
        "write_total_ms": sum(latencies),
        "write_p50_ms": percentile(latencies, 50),
        "write_p99_ms": percentile(latencies, 99),
        "warm_read_ms": milliseconds(begun),
        "messages": len(messages),
        "warm_digest": digest_of(messages),
    }


def _read_cold(case: Case, saver: Saver) -> dict[str, Any]:
    graph = build_graph(case.mode, case.snapshot_frequency, saver)
    begun = time.perf_counter()
    messages = graph.get_state(CONFIG).values["messages"]
    return {"cold_read_ms": milliseconds(begun), "digest": digest_of(messages)}


def count(saver: Saver) -> dict[str, Any]:
    """Rows and the serde's bytes, each channel's value counted once a version."""

    def size(value: Any) -> int:
        return len(saver.serde.dumps_typed(value)[1])

    found = {"checkpoint_rows": 0, "value_rows": 0, "write_rows": 0}
    checkpoint_bytes = value_bytes = write_bytes = 0
    seen: set[tuple[str, Any]] = set()
    for one in saver.list(CONFIG):
        values = one.checkpoint["channel_values"]
        versions = one.checkpoint["channel_versions"]
        found["checkpoint_rows"] += 1
        checkpoint_bytes += size({**one.checkpoint, "channel_values": {}}) + size(one.metadata)
        for channel, value in values.items():
            if (channel, versions.get(channel)) not in seen:
                seen.add((channel, versions.get(channel)))
                found["value_rows"] += 1
                value_bytes += size(value)
        for _, _, value in one.pending_writes or ():
            found["write_rows"] += 1
            write_bytes += size(value)
    return {
        **found,
        "checkpoint_bytes": checkpoint_bytes,
        "value_bytes": value_bytes,
        "write_bytes": write_bytes,
        "logical_bytes": checkpoint_bytes + value_bytes + write_bytes,
    }


# -- the whole ----------------------------------------------------------------------------


def compare(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each delta case its ratios to the full case of the same saver."""
    full = {_cell(row): row for row in rows if row["mode"] == "full"}
    return [
        {
            "benchmark": "channel_summary",
            **{key: row[key] for key in ("backend", "snapshot_frequency", "updates")},
            "payload_bytes": row["payload_bytes"],
            **{f"ratio_{name}": _ratio(row, full[_cell(row)], name) for name in RATIOS},
        }
        for row in rows
        if row["mode"] == "delta"
    ]


def _cell(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["backend"], row["updates"], row["payload_bytes"])


def _ratio(delta: dict[str, Any], full: dict[str, Any], name: str) -> float | None:
    return round(delta[name] / full[name], 4) if delta[name] is not None and full[name] else None


def differing(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The cases whose messages are not those that were written."""
    wrong = []
    for row in rows:
        written = (message_at(n, row["payload_bytes"]) for n in range(row["updates"]))
        if not row["digest"] == row["warm_digest"] == digest_of(written):
            wrong.append(f"{row['backend']}, {row['mode']}, K = {row['snapshot_frequency']}")
    return wrong


def cases(args: argparse.Namespace) -> Iterator[Case]:
    """The matrix."""
    for payload_bytes in args.payload_bytes:
        for updates in args.updates:
            for backend in args.backends:
                yield Case(backend, "full", None, updates, payload_bytes)
                for k in args.snapshot_frequencies:
                    yield Case(backend, "delta", k, updates, payload_bytes)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the matrix; 1 if the messages of two variants differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--updates", type=numbers, default=[30])
    parser.add_argument("--payload-bytes", type=numbers, default=[512])
    parser.add_argument("--snapshot-frequencies", type=numbers, default=[1, 10, 1000])
    parser.add_argument("--backends", type=lambda text: text.split(","), default=list(BACKENDS))
    args = parser.parse_args(argv)
    rows = []
    for case in cases(args):
        with tempfile.TemporaryDirectory() as folder:
            for row in run_case(case, Path(folder)):
                rows.append(row)
                emit(row)
    summary = compare(rows)
    for row in summary:
        emit(row)
    print_table(summary, ("backend", "snapshot_frequency", *(f"ratio_{n}" for n in RATIOS)))
    wrong = differing(rows)
    for case_name in wrong:
        print(f"the messages differ: {case_name}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
