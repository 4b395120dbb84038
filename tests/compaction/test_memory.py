"""Compaction in bounded memory, whatever waits and however large the runs are."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint

from compactor.memory import MemoryBudget
from logstore import LogStoreSaver
from logstore.errors import InvalidOptionError
from tests.helpers import thread

BUDGET_MB = 64
PARTITION_MB = 3 * BUDGET_MB
BUFFERS_MB = 64
"""What Parquet and zstd take at work, whatever the budget."""
THREADS = 40
WRITE_BYTES = 64 << 10

COMPACT = """
import json, sys
from pathlib import Path
from compactor import compact
from logstore.memory import limit_heap
from tests.helpers import memory_place, thread

def peak_mb():
    # Not getrusage: its peak is the parent's until this process exceeds it.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024

limit_heap()
with memory_place() as place:  # what the libraries take when they are first used
    saver = place.saver()
    for step in range(9):
        saver.put_writes(thread("t", "", "1"), [("data", bytes(1 << 16))], f"{step}", "")
        place.compact(memory=sys.argv[2])
before = peak_mb()
part = compact(sys.argv[1], memory=sys.argv[2]).partitions[0]
print(json.dumps({
    "grown_mb": peak_mb() - before,
    "before_mb": before,
    "outcome": part.outcome,
    "segments": part.segments_merged,
    "runs_written": part.runs_written,
    "bytes_written": part.bytes_written,
}))
"""


def compact_apart(uri: str) -> dict[str, Any]:
    """Run a job in a process of its own: what it did, and by how much its peak memory grew."""
    done = subprocess.run(
        [sys.executable, "-c", COMPACT, uri, f"{BUDGET_MB}MB"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def fill(uri: str, megabytes: int, seed: int) -> dict[str, list[bytes]]:
    """Write incompressible values to many threads; the writes of each."""
    rng = random.Random(seed)
    written: dict[str, list[bytes]] = {f"thread {n}": [] for n in range(THREADS)}
    rounds = (megabytes << 20) // (WRITE_BYTES * THREADS)
    with LogStoreSaver.from_conn_string(
        uri, partitions=1, compaction="off", durability="buffered"
    ) as saver:
        for name, values in written.items():
            config: Any = {"configurable": {"thread_id": name, "checkpoint_ns": ""}}
            config = saver.put(config, empty_checkpoint(), {"step": 0}, {})
            for number in range(rounds):
                values.append(rng.randbytes(WRITE_BYTES))
                saver.put_writes(config, [("data", values[-1])], f"task {number:04d}", "")
    return written


def test_a_partition_of_many_times_the_budget_is_compacted_within_it(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/store"
    written = fill(uri, PARTITION_MB, 1)
    done = compact_apart(uri)
    assert done["outcome"] == "committed"
    assert done["runs_written"] > 8, "no run may have to be in memory as a whole"
    assert done["bytes_written"] > 2 * PARTITION_MB << 20, "runs were merged as well"
    assert done["grown_mb"] < BUDGET_MB + BUFFERS_MB, done
    with LogStoreSaver.from_conn_string(uri, compaction="off") as saver:
        for name in ("thread 0", f"thread {THREADS - 1}"):
            found = saver.get_tuple(thread(name))
            assert found is not None
            assert [value for _, _, value in found.pending_writes or ()] == written[name]


@pytest.mark.parametrize("text", ["", "64", "64 KB", "-64MB", "1.5GB", "63MB", "0GB"])
def test_a_size_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InvalidOptionError):
        MemoryBudget.parse(text)


def test_sizes_are_read_as_people_write_them() -> None:
    assert MemoryBudget.parse("64MB").total == 64 << 20
    assert MemoryBudget.parse("2 gb").total == 2 << 30
