"""Merging: a union with one winner a key, in Python and in Arrow alike."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from compactor.merging.merge import merge_streams, merge_tables
from compactor.merging.output import RunWriter
from compactor.merging.spill import pieces
from logstore.cache import ByteCache
from logstore.manifest import RunEntry
from logstore.objects.memory import MemoryObjectStore
from logstore.records import SCHEMA, Kind, Record, Tombstone, ValueRef, key_of, merge
from logstore.runs import RunReader
from logstore.segment import records_to_table, table_to_records
from logstore.view import ThreadView
from tests.compaction.strategies import THREADS, dealt, record_sets

properties = settings(max_examples=50, deadline=None)


@properties
@given(dealt())
def test_merging_is_associative_commutative_and_idempotent(
    drawn: tuple[list[Record], list[list[Record]]],
) -> None:
    found, (a, b, c) = drawn
    whole = merge(found)
    assert merge([*merge([*merge(a).values(), *b]).values(), *c]) == whole
    assert merge([*a, *merge([*b, *merge(c).values()]).values()]) == whole
    assert merge([*c, *b, *a]) == whole
    assert merge(whole.values()) == whole


@properties
@given(dealt(late_copies=True))
def test_a_copy_that_arrives_late_changes_nothing(
    drawn: tuple[list[Record], list[list[Record]]],
) -> None:
    found, (a, b, c) = drawn
    assert merge([*c, *a, *b]) == merge(found)


@properties
@given(dealt(late_copies=True))
def test_the_arrow_merge_is_associative_commutative_and_idempotent(
    drawn: tuple[list[Record], list[list[Record]]],
) -> None:
    found, parts = drawn
    a, b, c = map(records_to_table, parts)
    whole = union(records_to_table(found))
    assert rows(union(a, b, c)) == rows(whole)
    assert rows(union(c, b, a)) == rows(whole)
    assert rows(union(union(a, b), c)) == rows(whole)
    assert rows(union(a, union(c, b))) == rows(whole)
    assert union(whole).equals(whole)
    assert rows(union(whole, a, whole)) == rows(whole)


@properties
@given(record_sets())
def test_the_arrow_merge_repeats_nothing_and_hides_what_is_deleted(found: list[Record]) -> None:
    merged = table_to_records(union(records_to_table(found)))
    assert set(merged) <= set(found)
    names = [(r.writer, r.stamp) for r in merged]
    assert len(names) == len(set(names))
    snapshots = [key_of(r) for r in merged if r.kind == Kind.SNAPSHOT]
    assert len(snapshots) == len(set(snapshots))
    for thread_id in THREADS:
        graves = [
            Tombstone.from_record(r)
            for r in found
            if r.kind == Kind.TOMBSTONE and r.thread_id == thread_id
        ]
        mine = [r for r in merged if r.thread_id == thread_id]
        assert not any(grave.deletes(r) for grave in graves for r in mine)
        assert sum(r.kind == Kind.TOMBSTONE for r in mine) == len(graves)


@properties
@given(record_sets())
def test_a_view_shows_the_same_before_and_after_the_merge(found: list[Record]) -> None:
    merged = table_to_records(union(records_to_table(found)))
    for thread_id in THREADS:
        assert shown(view_of(thread_id, merged)) == shown(view_of(thread_id, found))


@settings(max_examples=200, deadline=None)
@given(dealt(late_copies=True))
def test_a_view_of_separate_runs_shows_what_a_view_of_the_log_shows(
    drawn: tuple[list[Record], list[list[Record]]],
) -> None:
    found, parts = drawn
    apart = [record for part in parts for record in table_to_records(union(records_to_table(part)))]
    for thread_id in THREADS:
        assert shown(view_of(thread_id, apart)) == shown(view_of(thread_id, found))


def test_a_write_stays_when_an_equal_one_that_came_first_was_deleted() -> None:
    """A deleter saw one writer's record, and not the other's of the same key and content."""
    base = Record("t", "", "1", Kind.WRITE, "d", task_id="t1", task_path="", idx=0)
    base = base._replace(type="bytes", value=b"1", checksum=1)
    seen = base._replace(writer="w1", seq=0, stamp=1, arrived=1)
    unseen = base._replace(writer="w2", seq=0, stamp=2, arrived=2)
    grave = Record("t", "", "", Kind.TOMBSTONE, stamp=3, writer="w1", seq=1, arrived=3)
    grave = grave._replace(cover=Tombstone({"w1": 0}).to_json())
    expected = shown(view_of("t", [seen, unseen, grave]))
    merged = table_to_records(union(records_to_table([seen, unseen])))
    assert shown(view_of("t", [*merged, grave])) == expected
    again = union(records_to_table(merged), records_to_table([grave]))
    assert shown(view_of("t", table_to_records(again))) == expected


@settings(max_examples=60, deadline=None)
@given(record_sets(40), st.integers(1, 7))
def test_a_run_reads_back_as_it_was_written(found: list[Record], group: int) -> None:
    merged = union(records_to_table(found))
    assume(merged.num_rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("compactor.merging.output.ROW_GROUP_ROWS", group)
        place = run_of(merged)
    with place as (reader, run):
        assert pa.concat_tables(reader.batches(run, 100)).equals(merged)
        for thread_id in THREADS:
            near = reader.rows(run, thread_id)
            refs = [r.value for r in near if isinstance(r.value, ValueRef)]
            values = reader.values({run.key: run}, refs)
            read = [r._replace(value=values[r.value]) for r in near]  # type: ignore[index]
            assert read == [r for r in table_to_records(merged) if r.thread_id == thread_id]


def test_a_run_of_many_row_groups_finds_each_threads_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compactor.merging.output.ROW_GROUP_ROWS", 10)
    found = [
        Record(f"t{n:03d}", "", f"{i}", Kind.CHECKPOINT, value=b"%d" % i, type="bytes", stamp=i)
        for n in range(30)
        for i in range(7)
    ]
    found = [r._replace(arrived=1_750_000_000_000_000) for r in found]
    merged = union(records_to_table(found[::-1]))
    with run_of(merged) as (reader, run):
        for n in range(30):
            assert [r.checkpoint_id for r in reader.rows(run, f"t{n:03d}")] == list("0123456")
        assert reader.rows(run, "t0005") == []


def test_an_empty_merge_is_an_empty_table() -> None:
    assert union(records_to_table([])).num_rows == 0


# -- what the rules say -----------------------------------------------------------------


def union(*tables: pa.Table) -> pa.Table:
    """The merge of tables, each sorted and read a few rows at a time."""
    streams = [pieces(merge_tables([table]), 1000) for table in tables]
    return pa.concat_tables([SCHEMA.empty_table(), *merge_streams(streams)])


def rows(table: pa.Table) -> list[Record]:
    """A table's records in an order of their own."""
    return sorted(table_to_records(table), key=lambda r: (r.stamp, r.writer, r.arrived))


def view_of(thread_id: str, found: Iterable[Record]) -> ThreadView:
    return ThreadView(thread_id, [r for r in found if r.thread_id == thread_id])


def shown(view: ThreadView) -> object:
    """All that a view of a thread can answer."""
    answer = []
    for ns in ("", "sub:1"):
        for checkpoint_id in view.checkpoint_ids(ns):
            answer.append(
                (
                    view.checkpoint(ns, checkpoint_id),
                    dict(view.snapshots(ns, checkpoint_id)),
                    dict(view.inline_values(ns, checkpoint_id)),
                )
            )
        for checkpoint_id in ("1", "2"):
            answer.append(view.writes(ns, checkpoint_id))  # type: ignore[arg-type]
        for version in ("", "v1", "v2"):
            answer.extend(view.blob(ns, channel, version) for channel in ("", "d", "e"))  # type: ignore[misc]
    return answer


class run_of:
    """A run that holds a table, and a reader of it."""

    def __init__(self, table: pa.Table) -> None:
        self._name = secrets.token_hex(6)
        objects = MemoryObjectStore(self._name)
        with tempfile.TemporaryDirectory() as folder:
            writer = RunWriter(objects, Path(folder), 0, 0, 1, "test", max_bytes=None)
            writer.add(table)
            (run,) = writer.close()
        self._opened = RunReader(objects, ByteCache(1 << 20)), run

    def __enter__(self) -> tuple[RunReader, RunEntry]:
        return self._opened

    def __exit__(self, *error: object) -> None:
        MemoryObjectStore.forget(self._name)
