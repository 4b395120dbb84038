"""How fast one core merges: a partition's runs of text, several jobs' worth, into one sequence.

One JSON line: MB of decoded values a second of processor time, reading, merging, compressing and
writing included.

    python -m tests.benchmarks.compaction_bench --megabytes 64
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from compactor.merging.merge import merge_streams, merge_tables
from compactor.merging.output import RunWriter
from logstore.cache import ByteCache
from logstore.demo.conversations import DEFAULT_INPUT, read_conversations
from logstore.manifest import RunEntry
from logstore.objects.file import FileObjectStore
from logstore.records import Kind, Record, checksum_of
from logstore.runs import RunReader
from logstore.segment import records_to_table
from tests.benchmarks.channel_bench import emit

RUNS = 8
THREADS = 200
VALUE_BYTES = 700
WINDOW_BYTES = 4 << 20


def values() -> Iterator[bytes]:
    """Messages of real words."""
    words = [
        word
        for conversation in read_conversations(DEFAULT_INPUT)
        for message in conversation.messages
        for word in str(message.content).split()
    ]
    rng = random.Random(1)
    while True:
        yield " ".join(rng.choices(words, k=VALUE_BYTES // 6)).encode()[:VALUE_BYTES]


def make_table(number: int, rows: int, texts: Iterator[bytes]) -> pa.Table:
    """A job's worth of writes, to all threads."""
    records = []
    for row in range(rows):
        value = next(texts)
        checkpoint = f"{number:04d}-{row // THREADS:08d}"
        records.append(
            Record(
                f"thread-{row % THREADS:05d}",
                "",
                checkpoint,
                Kind.WRITE,
                channel="messages",
                task_id=f"{random.getrandbits(128):032x}",
                task_path="",
                idx=0,
                type="msgpack",
                value=value,
                size=len(value),
                checksum=checksum_of("msgpack", value),
                stamp=number * rows + row,
                writer=f"writer-{number}",
                arrived=1_700_000_000_000_000 + number,
            )
        )
    return merge_tables([records_to_table(records)])


def main(argv: Sequence[str] | None = None) -> int:
    """Merge, and tell how fast."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=64, help="values in all runs together")
    args = parser.parse_args(argv)
    rows = (args.megabytes << 20) // (RUNS * VALUE_BYTES)
    with tempfile.TemporaryDirectory() as name:
        folder, objects = Path(name), FileObjectStore(Path(name) / "store")
        texts = values()
        runs = [
            run
            for number in range(RUNS)
            for run in _written(objects, folder, [make_table(number, rows, texts)])
        ]
        reader = RunReader(objects, ByteCache(WINDOW_BYTES))
        begun, processor = time.perf_counter(), time.process_time()
        streams = [reader.batches(run, WINDOW_BYTES // RUNS) for run in runs]
        written = _written(objects, folder, merge_streams(streams))
        elapsed_s, used_s = time.perf_counter() - begun, time.process_time() - processor
    megabytes = RUNS * rows * VALUE_BYTES / (1 << 20)
    emit(
        {
            "benchmark": "compaction",
            "values_mb": round(megabytes, 1),
            "read_mb": round(sum(run.size for run in runs) / (1 << 20), 1),
            "written_mb": round(sum(run.size for run in written) / (1 << 20), 1),
            "rows": sum(run.rows for run in written),
            "seconds": round(elapsed_s, 2),
            "mb_a_second_and_core": round(megabytes / used_s, 1),
        }
    )
    return 0


def _written(
    objects: FileObjectStore, folder: Path, tables: Iterator[pa.Table] | list[pa.Table]
) -> list[RunEntry]:
    writer = RunWriter(objects, folder, 0, 0, 1, "bench", max_bytes=32 << 20)
    for table in tables:
        writer.add(table)
    return writer.close()


if __name__ == "__main__":
    raise SystemExit(main())
