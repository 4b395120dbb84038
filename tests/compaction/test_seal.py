"""A damaged object is an error that names it, and never a wrong or a shorter answer."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from langgraph.channels.delta import DeltaChannel

from logstore.errors import CorruptObjectError
from logstore.seal import SEAL_BYTES, check_end, check_ranges, check_whole, end_bytes, sealed
from tests.compaction.damage import overwrite, read, the_runs
from tests.helpers import Place, Script, append, rebuilt, thread

D = {"d": DeltaChannel(append, list, snapshot_frequency=2)}


def answers(place: Place) -> list[Any]:
    """All that a fresh process reads of a thread."""
    with place.fresh() as saver:
        found = list(saver.list(thread("u")))
        return [*found, *(rebuilt(saver, entry.config, D) for entry in found)]


def stock(place: Place) -> None:
    saver = place.saver()
    for name in ("a", "u", "z"):
        Script([saver], name).chain(5)


def damaged_everywhere(place: Place, key: str, step: int) -> int:
    """Change one byte here and there; how often that was noticed."""
    expected, body = answers(place), read(place, key)
    noticed = 0
    for at in range(0, len(body), step):
        changed = bytearray(body)
        changed[at] ^= 0x55
        overwrite(place, key, bytes(changed))
        found: Any
        try:
            found = answers(place)
        except CorruptObjectError as error:
            found, noticed = None, noticed + (key in str(error))
        assert found in (None, expected), at
    overwrite(place, key, body)
    assert answers(place) == expected
    return noticed


def test_no_changed_byte_of_a_run_gives_another_answer(place: Place) -> None:
    stock(place)
    place.compact(channels=D)
    place.compact(channels=D)
    (run,) = the_runs(place)
    assert damaged_everywhere(place, run, 61) > 100


def test_every_changed_byte_of_a_segment_is_noticed(place: Place) -> None:
    stock(place)
    key = next(k for k in sorted(place.keys("log/")) if b"1f0" in read(place, k))
    with place.store() as store:
        segment = store.log.fetch(key)
    assert segment.table.num_rows
    body = read(place, key)
    for at in range(0, len(body), 23):
        changed = bytearray(body)
        changed[at] ^= 0x55
        with pytest.raises(CorruptObjectError, match=key):
            check_whole(key, bytes(changed))


def parquet(rows: int = 1000) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": list(range(rows))}), sink, row_group_size=100)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def test_a_sealed_object_is_parquet_for_every_reader(tmp_path: Any) -> None:
    body = sealed(parquet())
    assert len(body) == len(parquet()) + SEAL_BYTES
    path = tmp_path / "sealed.parquet"
    path.write_bytes(body)
    assert pq.read_table(path).num_rows == 1000
    assert duckdb.sql(f"SELECT sum(n) FROM '{path}'").fetchall() == [(499_500,)]
    check_whole("k", body)
    check_end("k", body[-end_bytes(body[-8:]) :])
    check_ranges("k", len(body), lambda start, length: body[start : start + length])


@pytest.mark.parametrize("length", [0, 1, 8, 100, 4000])
def test_what_is_cut_off_or_never_sealed_is_refused(length: int) -> None:
    body = sealed(parquet())
    for wrong in (body[:length], body[length + 1 :], parquet()):
        with pytest.raises(CorruptObjectError):
            check_whole("k", wrong)
        with pytest.raises(CorruptObjectError):
            check_ranges("k", len(wrong), lambda start, n, wrong=wrong: wrong[start : start + n])


def test_a_footer_that_is_longer_than_the_first_look_is_read_whole(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock(place)
    place.compact(channels=D)
    place.compact(channels=D)
    expected = answers(place)
    monkeypatch.setattr("logstore.runs._FOOTER_GUESS", 64)
    assert answers(place) == expected
