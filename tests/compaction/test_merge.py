"""Merging: a union with one winner a key, in Python and in Arrow alike."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.merge import merge_tables, write_run
from logstore.cache import ByteCache
from logstore.keys import run_key
from logstore.manifest import RunEntry
from logstore.objects.memory import MemoryObjectStore
from logstore.records import Kind, Record, Tombstone, ValueRef, arrival_of, key_of, merge
from logstore.runs import RunReader
from logstore.segment import records_to_table, table_to_records
from logstore.view import ThreadView
from tests.compaction.strategies import THREADS, record_sets

properties = settings(max_examples=150, deadline=None)


@st.composite
def shuffled_parts(draw: st.DrawFn) -> tuple[list[Record], list[list[Record]]]:
    """Records, and a division of them into parts that overlap and are in any order."""
    found = draw(record_sets())
    again = draw(st.lists(st.sampled_from(found), max_size=8)) if found else []
    dealt = draw(st.permutations([*found, *again]))
    cuts = sorted(draw(st.lists(st.integers(0, len(dealt)), min_size=2, max_size=2)))
    return found, [dealt[: cuts[0]], dealt[cuts[0] : cuts[1]], dealt[cuts[1] :]]


@properties
@given(shuffled_parts())
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
@given(shuffled_parts())
def test_the_arrow_merge_is_associative_commutative_and_idempotent(
    drawn: tuple[list[Record], list[list[Record]]],
) -> None:
    found, parts = drawn
    a, b, c = map(records_to_table, parts)
    whole = merge_tables([records_to_table(found)])
    assert rows(merge_tables([merge_tables([a, b]), c])) == rows(whole)
    assert rows(merge_tables([a, merge_tables([c, b])])) == rows(whole)
    assert rows(merge_tables([c, a, b])) == rows(whole)
    assert merge_tables([whole]).equals(whole)


@properties
@given(record_sets())
def test_the_arrow_merge_keeps_exactly_what_the_rules_keep(found: list[Record]) -> None:
    merged = merge_tables([records_to_table(found)])
    assert rows(merged) == by_rules(found)


@properties
@given(record_sets())
def test_a_view_shows_the_same_before_and_after_the_merge(found: list[Record]) -> None:
    merged = table_to_records(merge_tables([records_to_table(found)]))
    for thread_id in THREADS:
        before = ThreadView(thread_id, [r for r in found if r.thread_id == thread_id])
        after = ThreadView(thread_id, [r for r in merged if r.thread_id == thread_id])
        assert shown(before) == shown(after)


@properties
@given(shuffled_parts())
def test_a_view_of_separate_runs_shows_what_a_view_of_one_run_shows(
    drawn: tuple[list[Record], list[list[Record]]],
) -> None:
    found, parts = drawn
    apart = [
        record
        for part in parts
        for record in table_to_records(merge_tables([records_to_table(part)]))
    ]
    for thread_id in THREADS:
        one = ThreadView(thread_id, [r for r in found if r.thread_id == thread_id])
        several = ThreadView(thread_id, [r for r in apart if r.thread_id == thread_id])
        assert shown(one) == shown(several)


@settings(max_examples=60, deadline=None)
@given(record_sets(40), st.integers(1, 7))
def test_a_run_reads_back_as_it_was_written(found: list[Record], group: int) -> None:
    merged = merge_tables([records_to_table(found)])
    with run_of(merged) as (reader, run):
        assert rows(reader.whole(run)) == rows(merged)
        for thread_id in THREADS:
            near = reader.rows(run, thread_id)
            refs = [r.value for r in near if isinstance(r.value, ValueRef)]
            values = reader.values({run.key: run}, refs)
            read = [r._replace(value=values[r.value]) for r in near]  # type: ignore[index]
            assert read == [r for r in table_to_records(merged) if r.thread_id == thread_id]


def test_a_run_of_many_row_groups_finds_each_threads_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compactor.merge.ROW_GROUP_ROWS", 10)
    found = [
        Record(f"t{n:03d}", "", f"{i}", Kind.CHECKPOINT, value=b"%d" % i, type="bytes", stamp=i)
        for n in range(30)
        for i in range(7)
    ]
    found = [r._replace(arrived=1_750_000_000_000_000) for r in found]
    merged = merge_tables([records_to_table(found[::-1])])
    with run_of(merged) as (reader, run):
        for n in range(30):
            assert [r.checkpoint_id for r in reader.rows(run, f"t{n:03d}")] == list("0123456")
        assert reader.rows(run, "t0005") == []


def test_an_empty_merge_is_an_empty_table() -> None:
    assert merge_tables([records_to_table([])]).num_rows == 0


# -- what the rules say -----------------------------------------------------------------


def fine_key(record: Record) -> tuple[object, ...]:
    """What a run holds once: losers of clashes stay where a reader may need them."""
    if record.kind == Kind.SNAPSHOT:
        return key_of(record)
    if record.kind == Kind.WRITE and (record.idx or 0) >= 0:
        return (*key_of(record), record.checksum)
    return (*key_of(record), record.stamp, record.writer)


def rows(table: pa.Table) -> dict[tuple[object, ...], Record]:
    found = table_to_records(table)
    keyed = {fine_key(r): r for r in found}
    assert len(keyed) == len(found)
    return keyed


def by_rules(found: Iterable[Record]) -> dict[tuple[object, ...], Record]:
    """The merge, written row by row: hidden rows go, then repetitions."""
    found = list(found)
    kept: list[Record] = []
    for record in found:
        graves = {
            key_of(r): Tombstone.from_record(r)
            for r in found
            if r.kind == Kind.TOMBSTONE and r.thread_id == record.thread_id
        }
        if any(grave.hides(record) for grave in graves.values()):
            continue
        if record.kind == Kind.SNAPSHOT and _graves_seen(record) < len(graves):
            continue
        kept.append(record)
    once: dict[tuple[object, ...], Record] = {}
    for record in kept:
        key = fine_key(record)
        rivals = [record, once.get(key, record)]
        if record.kind == Kind.SNAPSHOT:
            once[key] = max(rivals, key=lambda r: (r.seq, r.stamp, r.writer))
        else:
            once[key] = min(rivals, key=arrival_of)
    return once


def _graves_seen(record: Record) -> int:
    return int((record.cover or "").partition('"graves":')[2].rstrip("}") or 0)


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
        self._table = table
        self._name = secrets.token_hex(6)

    def __enter__(self) -> tuple[RunReader, RunEntry]:
        objects = MemoryObjectStore(self._name)
        body = write_run(self._table, {"job": "test", "generation": 1})
        key = run_key(0, 0, "0" * 24)
        objects.put_if_absent(key, body)
        threads: Sequence[str] = self._table["thread_id"].to_pylist() or [""]
        run = RunEntry(key, 0, self._table.num_rows, len(body), min(threads), max(threads), 1)
        return RunReader(objects, ByteCache(1 << 20)), run

    def __exit__(self, *error: object) -> None:
        MemoryObjectStore.forget(self._name)
