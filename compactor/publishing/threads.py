"""Publishing all threads of a batch: several at a time, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from compactor.memory import ROW_BYTES
from compactor.merging.spill import SortedChunks
from compactor.publishing.publish import PublishResult
from logstore.records import Encoding, Record
from logstore.segment import records_to_table, table_to_records

_VALUES_AT_ONCE = 16
"""So many of a thread's largest value are in memory while its values are decoded."""
Publish = Callable[[str, Sequence[Record]], PublishResult]


@dataclass
class Published:
    """What publishing did, summed over the threads."""

    manifests: int = 0
    snapshots: int = 0
    voided: int = 0
    retired: int = 0
    bytes_written: int = 0
    hiding: set[str] = field(default_factory=set)
    """The threads with hidden rows."""
    shown_whole: set[str] = field(default_factory=set)
    """The threads that are known to have none."""
    unfolded: dict[str, str] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)

    def add(self, result: PublishResult) -> None:
        """Count one thread."""
        self.manifests += 1
        self.snapshots += sum(r.encoding != Encoding.VOID for r in result.work.made)
        self.voided += result.work.voided
        self.retired += result.work.retired
        self.bytes_written += result.bytes_written
        if result.hides:
            self.hiding.add(result.thread_id)
        elif result.complete:
            self.shown_whole.add(result.thread_id)
        self.unfolded.update(result.work.unfolded)
        self.changed.update(result.work.changed)


def publish_threads(
    publish: Publish,
    threads: Iterable[tuple[str, pa.Table]],
    made: SortedChunks,
    parallel: int,
    max_bytes: int,
) -> Published:
    """Publish threads.

    Args:
        publish: publishes one.
        threads: their names and new rows.
        made: gets the new snapshots and the threads' tombstones.
        parallel: how many threads at a time.
        max_bytes: about what all of these may hold; a single larger one goes alone.
    """
    published = Published()
    running: dict[Future[PublishResult], int] = {}

    def finish_some() -> None:
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            del running[future]
            result = future.result()
            published.add(result)
            made.add(records_to_table([*result.work.made, *result.tombstones]))

    with ThreadPoolExecutor(parallel, "compactor") as pool:
        for thread_id, rows in threads:
            need = _need(rows)
            while running and (
                len(running) >= parallel or sum(running.values()) + need > max_bytes
            ):
                finish_some()
            future = pool.submit(publish, thread_id, table_to_records(rows))
            running[future] = need
        while running:
            finish_some()
    return published


def by_thread(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """A sorted table's rows, a thread at a time."""
    if not table.num_rows:
        return
    threads = table["thread_id"].combine_chunks()
    start = 0
    for end in pc.run_end_encode(threads).run_ends.to_pylist():
        yield threads[start].as_py(), table.slice(start, end - start)
        start = end


def _need(rows: pa.Table) -> int:
    """About what publishing a thread takes: its records, and decoding its largest values."""
    largest = int(pc.max(rows["size"]).as_py() or 0)
    return int(2 * rows.nbytes + rows.num_rows * ROW_BYTES) + _VALUES_AT_ONCE * largest
