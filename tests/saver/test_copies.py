"""Copies of threads of which something is hidden or gone: they tell what their sources tell."""

from __future__ import annotations

import pytest
from langgraph.channels.delta import DeltaChannel

from logstore import LogStoreSaver, copying
from logstore.errors import MissingDataError
from tests.helpers import Place, Script, append, rebuilt, thread
from tests.saver.test_prune import ids, of_run

D = {"d": DeltaChannel(append, list, snapshot_frequency=1000)}


def assert_equal(saver: LogStoreSaver, source: str, target: str) -> None:
    assert ids(saver, target) == ids(saver, source)
    for id_ in ids(saver, source):
        found = rebuilt(saver, thread(target, "", id_), D)
        assert found == rebuilt(saver, thread(source, "", id_), D), id_


def test_two_deletes_with_nothing_between_both_count_in_the_copy(place: Place) -> None:
    saver = place.saver()
    script = Script([saver])
    last = None
    for run in ("a", "b", "c"):
        of_run(script, run)
        last = script.chain(3, last)[-1]
    saver.delete_for_runs(["a"])
    saver.delete_for_runs(["b"])
    saver.prune(["t"], newest=2)
    saver.copy_thread("t", "copy")
    assert len(ids(saver)) == 2
    assert_equal(saver, "t", "copy")


def test_a_hidden_write_counts_in_a_copy_of_many_parts(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = place.saver()
    script = Script([saver])
    of_run(script, "a")
    last = script.chain(3)[-1]
    script.write(last, "of a")
    of_run(script, "b")
    script.put(last)
    saver.delete_for_runs(["a"])
    monkeypatch.setattr(copying, "MAX_SEGMENT_BYTES", 100)
    saver.copy_thread("t", "copy")
    assert_equal(saver, "t", "copy")
    saver.copy_thread("copy", "again")
    assert_equal(saver, "t", "again")
    place.compact()
    with place.fresh() as other:
        assert_equal(other, "t", "again")


def test_what_cannot_be_rebuilt_cannot_be_rebuilt_in_the_copy(place: Place) -> None:
    with place.fresh() as saver:
        script = Script([saver])
        chain = script.chain(9)
        saver.prune(["t"], newest=2)
    for _ in range(2):
        place.compact(channels=D, hidden_grace_s=0)
    with place.fresh() as saver:
        script.savers = [saver]
        late = script.put(chain[3])
        saver.copy_thread("t", "copy")
        for thread_id in ("t", "copy"):
            with pytest.raises(MissingDataError):
                rebuilt(saver, thread(thread_id, "", late), D)
            assert rebuilt(saver, thread(thread_id, "", chain[-1]), D)["d"]


def test_a_run_without_a_name_is_a_run(place: Place) -> None:
    with place.fresh() as saver:
        script = Script([saver])
        of_run(script, "")
        last = script.chain(3)[-1]
        of_run(script, "a")
        kept = script.chain(2, last)
        saver.delete_for_runs([""])
        assert ids(saver) == kept[::-1]
