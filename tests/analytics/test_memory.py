"""Full scans and exports hold a bounded part of a store, however its data lies."""

from __future__ import annotations

import base64
import json
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base.id import uuid6

from compactor import compact
from logstore import LogStoreSaver
from tests.helpers import Place

MB = 1 << 20
PEAK = 512 * MB
GROWTH = 128 * MB
"""From N to 4 N records. Half of it is allocators that get warm."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@dataclass(frozen=True)
class Case:
    """How much is in a store, and where."""

    threads: int
    steps: int
    size: int
    """Bytes of each of a step's values."""
    writes: int = 3
    partitions: int = 1
    compacted: bool = True
    images: bool = False

    @property
    def messages(self) -> int:
        """How many messages there are."""
        return self.threads * self.steps * self.writes


CASES = {
    "many threads": (Case(50, 10, 300, partitions=4), Case(200, 10, 300, partitions=4)),
    "a long tail": (Case(50, 10, 4000, compacted=False), Case(200, 10, 4000, compacted=False)),
    "many steps": (Case(1, 250, 20_000), Case(1, 1000, 20_000)),
    "one long thread": (Case(1, 100, 30_000, writes=16), Case(1, 400, 30_000, writes=16)),
    "images": (
        Case(2, 1, 5_000_000, writes=1, images=True),
        Case(8, 1, 5_000_000, writes=1, images=True),
    ),
    "images in a tail": (
        Case(8, 1, 4_000_000, writes=1, compacted=False, images=True),
        Case(32, 1, 4_000_000, writes=1, compacted=False, images=True),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_memory_does_not_grow_with_the_store(name: str, tmp_path: Path) -> None:
    small, large = (peaks_of(case, tmp_path / str(n)) for n, case in enumerate(CASES[name]))
    for what in small:
        assert large[what] < PEAK, (name, what, large[what] // MB)
        grown = large[what] - small[what]
        assert grown < GROWTH, (name, what, small[what] // MB, large[what] // MB)


def peaks_of(case: Case, folder: Path) -> dict[str, int]:
    """The peaks of a process that reads such a store."""
    folder.mkdir()
    uri = (folder / "store").as_uri()
    fill(uri, case)
    command = [sys.executable, "-m", "tests.analytics.peak", uri, str(folder / "exported")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["rows"] == {"messages": case.messages, "writes": case.messages}
    peaks: dict[str, int] = found["peaks"]
    return peaks


def fill(uri: str, case: Case) -> None:
    """Put such a store's threads into it."""
    Place(uri).create(partitions=case.partitions)
    chance = random.Random(1)
    with LogStoreSaver.from_conn_string(uri, compaction="off", durability="buffered") as saver:
        for thread in range(case.threads):
            config: Any = {"configurable": {"thread_id": f"t{thread}", "checkpoint_ns": ""}}
            for step in range(case.steps + 1):
                config = put(saver, config, step)
                if step < case.steps:
                    said = [message(case, chance, f"{step}-{n}") for n in range(case.writes)]
                    saver.put_writes(config, [("messages", [one]) for one in said], f"k{step}")
    if case.compacted:
        compact(uri)


def put(saver: LogStoreSaver, config: Any, step: int) -> Any:
    """A checkpoint of a graph with a delta channel of messages."""
    versions: Any = {"messages": f"{step + 1:032}.0"}
    checkpoint: Any = {
        "v": 4,
        "id": str(uuid6(clock_seq=step)),
        "ts": "2026-05-04T10:00:00+00:00",
        "channel_values": {},
        "channel_versions": versions,
        "versions_seen": {},
        "updated_channels": ["messages"],
    }
    counters = {"messages": [step, step]}
    metadata: Any = {
        "source": "loop",
        "step": step,
        "parents": {},
        "counters_since_delta_snapshot": counters,
    }
    return saver.put(config, checkpoint, metadata, versions)


def message(case: Case, chance: random.Random, message_id: str) -> HumanMessage:
    """A message that hardly compresses."""
    text = base64.b64encode(chance.randbytes(case.size * 3 // 4)).decode()
    if not case.images:
        return HumanMessage(text, id=message_id)
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}
    return HumanMessage([{"type": "text", "text": "look"}, image], id=message_id)
