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

BUDGET_MB = 256
PARTITION_MB = 3 * BUDGET_MB
THREADS = 40
WRITE_BYTES = 120 << 10
"""Just below the size from which a value is an object of its own."""

COMPACT = """
import sys
from pathlib import Path
from compactor.commands.cli import main

def memory_mb(name):
    # Not getrusage: its peak is the parent's until this process exceeds it.
    status = Path("/proc/self/status").read_text()
    return int(status.split(name)[1].split()[0]) / 1024

started = memory_mb("VmRSS:")
try:
    main()
finally:
    print(memory_mb("VmHWM:") - started, file=sys.stderr)
"""


def compact_apart(uri: str) -> tuple[dict[str, Any], float]:
    """Run the command in a process of its own: what it did, and the megabytes it grew by."""
    done = subprocess.run(
        [sys.executable, "-c", COMPACT, "run", uri, "--memory", f"{BUDGET_MB}MB", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [part] = json.loads(done.stdout)["partitions"]
    return part, float(done.stderr.splitlines()[-1])


def small_values(uri: str) -> None:
    """Write many small values to many threads, for a job of many batches."""
    rng = random.Random(2)
    words = [rng.randbytes(6).hex() for _ in range(3000)]
    with LogStoreSaver.from_conn_string(
        uri, partitions=1, compaction="off", durability="buffered"
    ) as saver:
        for number in range(3000):
            config: Any = {"configurable": {"thread_id": f"thread {number}", "checkpoint_ns": ""}}
            config = saver.put(config, empty_checkpoint(), {"step": 0}, {})
            for task in range(20):
                text = " ".join(rng.choices(words, k=50))
                saver.put_writes(config, [("data", text)], f"task {task}", "")


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


@pytest.mark.timeout(400)
def test_a_partition_of_many_times_the_budget_is_compacted_within_it(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/store"
    written = fill(uri, PARTITION_MB, 1)
    done, grown_mb = compact_apart(uri)
    assert done["outcome"] == "committed"
    assert done["runs_written"] > 8, "no run may have to be in memory as a whole"
    assert done["bytes_written"] > 2 * PARTITION_MB << 20, "runs were merged as well"
    assert grown_mb < BUDGET_MB
    with LogStoreSaver.from_conn_string(uri, compaction="off") as saver:
        for name in ("thread 0", f"thread {THREADS - 1}"):
            found = saver.get_tuple(thread(name))
            assert found is not None
            assert [value for _, _, value in found.pending_writes or ()] == written[name]


@pytest.mark.timeout(400)
def test_memory_does_not_grow_with_the_batches_of_a_job(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/store"
    small_values(uri)
    done, grown_mb = compact_apart(uri)
    assert done["segments_merged"] > 100
    assert grown_mb < BUDGET_MB


@pytest.mark.parametrize("text", ["", "640", "640 KB", "-640MB", "1.5GB", "255MB", "0GB"])
def test_a_size_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InvalidOptionError):
        MemoryBudget.parse(text)


def test_sizes_are_read_as_people_write_them() -> None:
    assert MemoryBudget.parse("256MB").total == 256 << 20
    assert MemoryBudget.parse("2 gb").total == 2 << 30
