"""A thread of which hidden rows were dropped: whatever happens then, its values stay what they were."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.channels.delta import DeltaChannel

from compactor.folding.channels import default_serde, table_of
from compactor.rebuild import RebuildJob
from compactor.verifying.verify import verify
from logstore import LogStoreSaver
from tests.compaction.test_dropping import drop, kinds
from tests.compaction.test_verify import other_append
from tests.helpers import Place, Script, append, memory_place, rebuilt, thread
from tests.saver.test_prune import ids

D = {"d": DeltaChannel(append, list, snapshot_frequency=4)}


def pruned(place: Place, newest: int = 9) -> tuple[list[str], dict[str, Any]]:
    """A thread with dropped rows: its checkpoints, and the value of each one that is left."""
    with place.fresh() as saver:
        chain = Script([saver]).chain(30)
        place.compact(channels=D)
        saver.prune(["t"], newest=newest)
    with place.fresh() as saver:
        before = values(saver)
    assert drop(place, channels=D) > 0
    assert kinds(place)["checkpoint"] == newest
    return chain, before


def values(saver: LogStoreSaver, thread_id: str = "t") -> dict[str, Any]:
    return {
        id_: rebuilt(saver, thread(thread_id, "", id_), D)["d"] for id_ in ids(saver, thread_id)
    }


def assert_kept(place: Place, before: dict[str, Any], thread_id: str = "t") -> None:
    with place.fresh() as saver:
        found = values(saver, thread_id)
        assert {id_: found.get(id_) for id_ in before} == before
        assert rebuilt(saver, thread(thread_id), D)["d"] == found[max(found)]


def assert_sound(place: Place, channels: Any = D) -> None:
    with place.store() as store:
        found = verify(store, table_of(channels=channels), default_serde())
    assert not found.findings, found.findings


def test_it_verifies(place: Place) -> None:
    _, before = pruned(place)
    assert_sound(place)
    assert_kept(place, before)


@pytest.mark.parametrize("channels", [D, None])
def test_it_can_be_rebuilt(place: Place, channels: Any) -> None:
    _, before = pruned(place)
    with place.store() as store:
        RebuildJob(store, table_of(channels=channels), default_serde()).run()
    assert_kept(place, before)
    assert_sound(place)


@pytest.mark.parametrize("retention", ["newest 1", "powers of two"])
def test_keeping_fewer_snapshots_keeps_its_values(place: Place, retention: str) -> None:
    chain, before = pruned(place)
    script = Script([place.saver()], _serial=50)
    for _ in range(2):
        script.chain(9, chain[-1])
        place.compact(channels=D, retention=retention)
    assert_kept(place, before)


def test_another_reducer_folds_on_from_what_is_left(place: Place) -> None:
    chain, before = pruned(place)
    other = {"d": DeltaChannel(other_append, list, snapshot_frequency=1)}
    place.compact(channels=other)
    with place.fresh() as saver:
        script = Script([saver], _serial=50)
        script.put(chain[-1])
    place.compact(channels=other)
    assert_kept(place, before)


def test_a_copy_of_it_tells_the_same(place: Place) -> None:
    _, before = pruned(place)
    with place.fresh() as saver:
        saver.copy_thread("t", "copy")
    assert_kept(place, before, "copy")
    place.compact(channels=D)
    assert_kept(place, before, "copy")
    assert_sound(place)


def test_it_goes_on_after_further_jobs_and_prunes(place: Place) -> None:
    chain, before = pruned(place)
    script = Script([place.saver()], _serial=50)
    last = chain[-1]
    for _ in range(4):
        last = script.chain(9, last)[-1]
        place.compact(channels=D)
        assert_kept(place, before)
        with place.fresh() as saver:
            head = values(saver)
            saver.prune(["t"], newest=4)
            before = {id_: head[id_] for id_ in ids(saver)}
        drop(place, channels=D)
        assert_kept(place, before)
    assert_sound(place)


def test_deleting_it_leaves_no_byte() -> None:
    with memory_place(short_grace_s=0, long_grace_s=0) as place:
        pruned(place)
        with place.fresh() as saver:
            saver.delete_thread("t")
        for _ in range(3):
            place.compact(channels=D)
        assert set(kinds(place)) == {"tombstone"}
