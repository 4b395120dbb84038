"""What a commit takes of the log, and how runs are cut and counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.backlog import BatchLimit, take_segments
from compactor.memory import MemoryBudget
from compactor.merging.output import RunWriter
from compactor.merging.spill import SortedChunks, ThreadRows
from compactor.plan import choose_tier, make_plan
from logstore.cache import ByteCache
from logstore.manifest import PartitionManifest, RunEntry
from logstore.objects.memory import MemoryObjectStore
from logstore.reader import until_stable
from logstore.records import SCHEMA, Kind, Record
from logstore.runs import RunReader
from logstore.segment import records_to_table
from tests.helpers import Place, memory_place, thread


@pytest.fixture
def place() -> Iterator[Place]:
    with memory_place() as place:
        yield place


def write(place: Place, steps: int) -> None:
    saver = place.saver()
    for step in range(steps):
        saver.put_writes(thread("t", "", "1"), [("data", step)], f"task {step:03d}", "")


def run(sequence: int, part: int) -> RunEntry:
    return RunEntry(f"{sequence}.{part}", 0, 1, 1, "a", "z", 1, f"{sequence}", part)


def test_every_batch_is_closed_under_what_its_segments_build_on(place: Place) -> None:
    write(place, 40)
    with place.store() as store:
        listing = store.log.list(0)
        merged: dict[str, None] = {}
        rounds = 0
        while merged.keys() != listing.arrived.keys():
            tail = take_segments(store.log, listing, merged, BatchLimit(20_000), lambda *_: None)
            for segment in tail.segments.values():
                named = {key for keys in segment.builds_on.values() for key in keys}
                assert named <= tail.segments.keys() | merged.keys()
            assert tail.segments
            merged |= dict.fromkeys(tail.segments)
            rounds += 1
        assert rounds > 3


def test_a_segment_larger_than_the_budget_is_taken_alone(place: Place) -> None:
    write(place, 5)
    with place.store() as store:
        tail = take_segments(store.log, store.log.list(0), {}, BatchLimit(1), lambda *_: None)
    assert len(tail.segments) == 1


def test_a_job_commits_until_nothing_waits(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    write(place, 30)
    monkeypatch.setattr(MemoryBudget, "batch", 20_000)
    (part,) = place.compact().partitions
    assert part.segments_merged == 30
    assert part.runs_written > 3
    with place.store() as store:
        settings = store.settings()
        assert settings is not None
        assert not until_stable(lambda: make_plan(store, settings, 0)).tail.segments
    found = place.saver().get_tuple(thread("t", "", "1"))
    assert found is None, "no checkpoint has arrived"
    assert sum(r.kind == Kind.WRITE for r in place.run_records()) == 30


def test_runs_that_were_cut_from_one_sequence_count_as_one_of_their_level() -> None:
    cut = [run(sequence, part) for part in range(9) for sequence in range(7)]
    few = PartitionManifest(0, runs=tuple(r for r in cut if r.sequence != "6"))
    reader = RunReader(MemoryObjectStore("none"), ByteCache(1))
    assert choose_tier(few, reader, []).sequences == ()
    full = choose_tier(PartitionManifest(0, runs=tuple(cut)), reader, [])
    assert (len(full.sequences), len(full.inputs), full.level) == (7, 63, 1)
    for sequence in full.sequences:
        assert [entry.part for entry in sequence] == list(range(9))


def rows_of(sizes: list[int], **fields: object) -> pa.Table:
    records = [
        Record(f"t{n:04d}", "", f"{n}", Kind.WRITE, value=bytes(size), arrived=1, stamp=n)
        for n, size in enumerate(sizes)
    ]
    return records_to_table([r._replace(**fields) for r in records])


def written(
    table: pa.Table, folder: Path, max_bytes: int | None = None
) -> tuple[RunReader, list[RunEntry]]:
    objects = MemoryObjectStore(f"batches-{folder.name}")
    writer = RunWriter(objects, folder, 0, 0, 1, "test", max_bytes=max_bytes)
    writer.add(table)
    return RunReader(objects, ByteCache(1 << 20)), writer.close()


def test_row_groups_are_capped_by_the_bytes_of_any_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compactor.merging.output.ROW_GROUP_BYTES", 1000)
    sizes = [10, 5000, 300, 300, 300, 300, 999, 1, 1001, 0]
    reader, (one,) = written(rows_of(sizes, metadata="m" * 100), tmp_path)
    metadata = reader._open(one).metadata
    groups = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
    assert groups == [1, 1, 2, 2, 1, 1, 1, 1]
    assert one.rows == len(sizes)
    assert pa.concat_tables(reader.batches(one, 100))["value"].to_pylist() == [
        bytes(size) for size in sizes
    ]


def test_no_column_of_values_has_offsets_that_end_at_two_gigabytes() -> None:
    """Row groups end long before; of a single value Parquet itself allows no more."""
    assert SCHEMA.field("value").type == pa.large_binary()
    assert MemoryBudget(1 << 40).batch <= 1 << 30


def test_a_sequence_is_cut_into_runs_of_a_greatest_size(tmp_path: Path) -> None:
    table = rows_of([10] * 100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("compactor.merging.output.ROW_GROUP_ROWS", 10)
        reader, runs = written(table, tmp_path, max_bytes=1)
    assert [entry.rows for entry in runs] == [10] * 10
    assert [entry.first_thread for entry in runs] == [f"t{n:04d}" for n in range(0, 100, 10)]
    assert [entry.last_thread for entry in runs] == [f"t{n:04d}" for n in range(9, 100, 10)]
    assert pa.concat_tables(t for entry in runs for t in reader.batches(entry, 50)).equals(table)


def test_rows_that_went_to_files_come_back_sorted(tmp_path: Path) -> None:
    table = rows_of([100] * 60)
    chunks = SortedChunks(tmp_path, 3_000)
    for start in range(50, -1, -10):
        chunks.add(table.slice(start, 10))
    streams = chunks.streams(500)
    assert len(streams) > 2
    for stream in streams:
        threads = [t for piece in stream for t in piece["thread_id"].to_pylist()]
        assert threads == sorted(threads)
    found = [
        t for stream in chunks.streams(500) for piece in stream for t in piece["stamp"].to_pylist()
    ]
    assert sorted(found) == list(range(60))


def test_single_threads_are_found_in_a_sorted_stream() -> None:
    table = rows_of([1] * 20)
    rows = ThreadRows(table.slice(start, 3) for start in range(0, 20, 3))
    assert rows.of("t").num_rows == 0
    assert rows.of("t0004")["stamp"].to_pylist() == [4]
    assert rows.of("t0011x").num_rows == 0
    assert rows.of("t0019")["stamp"].to_pylist() == [19]
    assert rows.of("z").num_rows == 0
