"""Questions to the whole history: in place, on PostgresSaver's tables, on a Parquet export.

The same threads are put into a store, which is compacted, into the tables of LangGraph's
PostgresSaver, and into Parquet files made by hand. Three questions are asked of each: writes by
channel and day, where no value has to be decoded; tokens by thread; and the slowest tools.
`first` is the question on a snapshot that was just opened, `again` the same on the same
snapshot. The store is asked in a process of its own, whose peak memory is told: as it is, and again
(`kept`) after a job that keeps the tables of messages and of tool calls.

One JSON line an answer on stdout, a table on stderr.

    python -m tests.benchmarks.analytics_bench --threads 10000 --writes 100
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from compactor import compact
from logstore import LogStoreSaver, analytics
from logstore.manifest import KEPT
from tests.benchmarks.channel_bench import emit, milliseconds, print_table, text_of
from tests.benchmarks.postgres import postgres

WRITES_A_STEP = 5
FILES = ("writes", "messages", "tool_calls")
COUNTS = "SELECT channel, ts::DATE AS day, count(*) AS n FROM writes GROUP BY ALL ORDER BY ALL"
TOKENS = "SELECT thread_id, sum(total_tokens) AS tokens FROM messages GROUP BY ALL ORDER BY ALL"
SLOWEST = "SELECT name, round(median(latency_s), 6) AS s FROM tool_calls GROUP BY ALL ORDER BY ALL"
QUESTIONS = {"counts": COUNTS, "tokens": TOKENS, "slowest": SLOWEST}
BEGIN = datetime.now(UTC)
"""A store's writes carry the time at which they were made, PostgresSaver's only their
checkpoint's; so that both fall on one day, the threads begin now."""


@dataclass(frozen=True, slots=True)
class Step:
    """One superstep: a checkpoint, and what its tasks wrote at it."""

    checkpoint_id: str
    at: datetime
    number: int
    versions: dict[str, str]
    writes: list[tuple[str, Any]]


def steps_of(thread: int, writes: int) -> Iterator[Step]:
    """A thread's supersteps: an agent that calls tools, and their results, in turn."""
    at = BEGIN + timedelta(milliseconds=thread)
    calls: list[dict[str, Any]] = []
    for number in range(writes // WRITES_A_STEP + 1):
        at += timedelta(milliseconds=50 + 10 * (thread % 7))
        said: list[BaseMessage]
        if number % 2 == 0:
            calls = [
                {"name": f"tool_{(thread + i) % 9}", "args": {"q": i}, "id": f"c{number}-{i}"}
                for i in range(WRITES_A_STEP - 2)
            ]
            usage = {
                "input_tokens": 100 + number,
                "output_tokens": 20,
                "total_tokens": 120 + number,
            }
            text = text_of(200, f"{thread} {number}")
            said = [AIMessage(text, id=f"a{number}", tool_calls=calls, usage_metadata=usage)]
            others = [("branch:to:tools", None)] * (WRITES_A_STEP - 1)
        else:
            said = [
                ToolMessage(
                    text_of(200, f"{thread} {call['id']}"), tool_call_id=call["id"], id=call["id"]
                )
                for call in calls
            ]
            others = [("branch:to:agent", None)] * (WRITES_A_STEP - len(said))
        messages: list[tuple[str, Any]] = [("messages", [message]) for message in said]
        versions = {"messages": f"{number + 1:032}.0"}
        yield Step(str(uuid6(clock_seq=number)), at, number, versions, [*messages, *others])


def checkpoint_of(step: Step) -> dict[str, Any]:
    """The checkpoint that both savers get."""
    return {
        "v": 4,
        "id": step.checkpoint_id,
        "ts": step.at.isoformat(),
        "channel_values": {},
        "channel_versions": step.versions,
        "versions_seen": {},
        "updated_channels": ["messages"],
    }


def metadata_of(step: Step) -> dict[str, Any]:
    """The metadata of a delta channel's checkpoint."""
    counters = {"messages": [step.number, step.number]}
    return {
        "source": "loop",
        "step": step.number,
        "parents": {},
        "counters_since_delta_snapshot": counters,
    }


def fill_store(uri: str, threads: int, writes: int) -> None:
    """Put the threads into a store, and compact it."""
    saver = LogStoreSaver.from_conn_string(uri, compaction="off", durability="buffered")
    with saver:
        for thread in range(threads):
            config: Any = {
                "configurable": {"thread_id": f"thread-{thread:06}", "checkpoint_ns": ""}
            }
            for step in steps_of(thread, writes):
                checkpoint: Any = checkpoint_of(step)
                metadata: Any = metadata_of(step)
                config = saver.put(config, checkpoint, metadata, dict(step.versions))
                if step.number < writes // WRITES_A_STEP:
                    saver.put_writes(config, step.writes, f"task-{step.number}")
            if thread % 500 == 499:
                saver.flush()
                compact(uri)
    compact(uri)


def fill_postgres(conninfo: str, threads: int, writes: int) -> None:
    """Copy the threads into the tables of PostgresSaver, as it would store them."""
    serde = JsonPlusSerializer()
    with PostgresSaver.from_conn_string(conninfo) as saver:
        saver.setup()
    with psycopg.connect(conninfo) as connection, connection.cursor() as cursor:
        for first in range(0, threads, 500):
            chunk = range(first, min(first + 500, threads))
            rows = [(f"thread-{t:06}", s) for t in chunk for s in steps_of(t, writes)]
            with cursor.copy(
                "COPY checkpoints (thread_id, checkpoint_id, checkpoint, metadata) FROM STDIN"
            ) as copy:
                for thread_id, step in rows:
                    doc, metadata = json.dumps(checkpoint_of(step)), json.dumps(metadata_of(step))
                    copy.write_row((thread_id, step.checkpoint_id, doc, metadata))
            with cursor.copy(
                "COPY checkpoint_writes (thread_id, checkpoint_id, task_id, idx, channel, type, blob) FROM STDIN"
            ) as copy:
                for thread_id, step in rows:
                    if step.number == writes // WRITES_A_STEP:
                        continue
                    for idx, (channel, value) in enumerate(step.writes):
                        type_, blob = serde.dumps_typed(value)
                        task = f"task-{step.number}"
                        copy.write_row(
                            (thread_id, step.checkpoint_id, task, idx, channel, type_, blob)
                        )
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")


def export_parquet(uri: str, folder: Path) -> None:
    """The tables by hand: sorted, columns that a query needs, no other rows between them."""
    with analytics.open(uri) as snapshot:
        for name in FILES:
            reader = snapshot.scan(name)
            with pq.ParquetWriter(
                folder / f"{name}.parquet", reader.schema, compression="zstd"
            ) as out:
                for batch in reader:
                    out.write_table(pa.Table.from_batches([batch]))


# -- the questions -------------------------------------------------------------------------


def ask_store(uri: str) -> dict[str, Any]:
    """Each question on a new snapshot, twice, and the memory that it took."""
    found: dict[str, Any] = {}
    for name, query in QUESTIONS.items():
        begun = time.perf_counter()
        with analytics.open(uri) as snapshot, snapshot.duckdb() as connection:
            opened = milliseconds(begun)
            begun = time.perf_counter()
            answer = connection.sql(query).fetchall()
            first = milliseconds(begun)
            begun = time.perf_counter()
            connection.sql(query).fetchall()
            again = milliseconds(begun)
        rows = [[str(cell) for cell in row] for row in answer]
        found[name] = {"open_ms": opened, "first_ms": first, "again_ms": again, "rows": rows}
    found["peak_mb"] = _peak_mb()
    return found


def _peak_mb() -> float:
    """The most that this process held; `getrusage` counts its parent before the exec."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [peak] = [line for line in lines if line.startswith("VmHWM:")]
    return int(peak.split()[1]) / 1024


def ask_parquet(folder: Path) -> dict[str, Any]:
    """The same on the export; the best of three."""
    found = {}
    for name, query in QUESTIONS.items():
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            for file in FILES:
                connection.execute(f"CREATE VIEW {file} AS FROM '{folder}/{file}.parquet'")
            times = []
            for _ in range(3):
                begun = time.perf_counter()
                rows = connection.sql(query).fetchall()
                times.append(milliseconds(begun))
        found[name] = {"first_ms": min(times), "rows": [[str(c) for c in row] for row in rows]}
    return found


def ask_postgres(conninfo: str) -> dict[str, Any]:
    """The same on PostgresSaver's tables; values are decoded as LangGraph does."""
    found = {}
    with psycopg.connect(conninfo) as connection:
        for name, question in (
            ("counts", _postgres_counts),
            ("tokens", _postgres_tokens),
            ("slowest", _postgres_slowest),
        ):
            begun = time.perf_counter()
            rows = question(connection)
            found[name] = {
                "first_ms": milliseconds(begun),
                "rows": [[str(c) for c in r] for r in rows],
            }
    return found


def _postgres_counts(connection: Any) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = connection.execute(
        "SELECT w.channel, ((c.checkpoint->>'ts')::timestamptz AT TIME ZONE 'UTC')::date, count(*) "
        "FROM checkpoint_writes w JOIN checkpoints c USING (thread_id, checkpoint_ns, checkpoint_id) "
        "GROUP BY 1, 2"
    ).fetchall()
    return sorted(rows)


_MESSAGES = (
    "SELECT w.thread_id, w.type, w.blob, (c.checkpoint->>'ts')::timestamptz FROM checkpoint_writes w "
    "JOIN checkpoints c USING (thread_id, checkpoint_ns, checkpoint_id) WHERE w.channel = 'messages'"
)


def _decoded(connection: Any) -> Iterator[tuple[str, BaseMessage, datetime]]:
    serde = JsonPlusSerializer()
    with connection.cursor(name="messages") as cursor:
        cursor.itersize = 10_000
        for thread_id, type_, blob, at in cursor.execute(_MESSAGES):
            for message in serde.loads_typed((type_, blob)):
                yield thread_id, message, at


def _postgres_tokens(connection: Any) -> list[tuple[Any, ...]]:
    tokens: dict[str, int] = defaultdict(int)
    for thread_id, message, _ in _decoded(connection):
        usage = getattr(message, "usage_metadata", None)
        tokens[thread_id] += usage["total_tokens"] if usage else 0
    return sorted(tokens.items())


def _postgres_slowest(connection: Any) -> list[tuple[Any, ...]]:
    called: dict[tuple[str, str], tuple[str, datetime]] = {}
    answered: dict[tuple[str, str], datetime] = {}
    for thread_id, message, at in _decoded(connection):
        for call in getattr(message, "tool_calls", ()):
            called[(thread_id, call["id"])] = (call["name"], at)
        if isinstance(message, ToolMessage):
            answered[(thread_id, message.tool_call_id)] = at
    latencies: dict[str, list[float]] = defaultdict(list)
    for key, (name, at) in called.items():
        if key in answered:
            latencies[name].append((answered[key] - at).total_seconds())
    return sorted((name, round(median(found), 6)) for name, found in latencies.items())


# -- the bench -----------------------------------------------------------------------------


def run(threads: int, writes: int, folder: Path) -> list[dict[str, Any]]:
    """Fill all three, ask all three, and compare."""
    uri = (folder / "store").as_uri()
    _told("filling the store", lambda: fill_store(uri, threads, writes))
    _told("exporting", lambda: export_parquet(uri, folder))
    plain = _asked(uri)
    _told("keeping tables", lambda: compact(uri, keep=KEPT))
    kept = _asked(uri)
    exported = ask_parquet(folder)
    server = folder / "pg"
    server.mkdir()
    with postgres(server) as conninfo:
        _told("filling PostgreSQL", lambda: fill_postgres(conninfo, threads, writes))
        theirs = ask_postgres(conninfo)
    return [
        {
            "question": name,
            "kept": ours is kept,
            "writes": threads * writes,
            **_compared(ours[name], exported[name], theirs[name]),
            "peak_mb": ours["peak_mb"],
        }
        for name in QUESTIONS
        for ours in (plain, kept)
    ]


def _asked(uri: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.benchmarks.analytics_bench", "--ask", uri]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _told(what: str, work: Any) -> None:
    begun = time.perf_counter()
    work()
    print(f"{what}: {milliseconds(begun) / 1000:.1f} s", file=sys.stderr)


def _compared(ours: Any, exported: Any, theirs: Any) -> dict[str, Any]:
    first, again = ours["first_ms"], ours["again_ms"]
    return {
        "open_ms": ours["open_ms"],
        "first_ms": first,
        "again_ms": again,
        "parquet_ms": exported["first_ms"],
        "postgres_ms": theirs["first_ms"],
        "again_to_parquet": again / exported["first_ms"],
        "postgres_to_first": theirs["first_ms"] / (ours["open_ms"] + first),
        "postgres_to_again": theirs["first_ms"] / again,
        "same_answer": ours["rows"] == exported["rows"] == theirs["rows"],
    }


def main() -> None:
    """Run the bench, or ask a store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=10_000)
    parser.add_argument("--writes", type=int, default=100, help="of each thread")
    parser.add_argument("--ask", metavar="URI", help="only ask this store, and print the answers")
    arguments = parser.parse_args()
    if arguments.ask:
        print(json.dumps(ask_store(arguments.ask)))
        return
    with tempfile.TemporaryDirectory(prefix="ab-") as name:
        Path(name).chmod(0o755)
        rows = run(arguments.threads, arguments.writes, Path(name))
    for row in rows:
        emit(row)
    print_table(rows, list(rows[0]))


if __name__ == "__main__":
    main()
