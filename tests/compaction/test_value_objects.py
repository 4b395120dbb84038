"""Values that are objects of their own: who names them, and when they go."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver

from compactor.folding.channels import default_serde, table_of
from compactor.job import Job
from compactor.report import Outcome
from compactor.verifying.verify import verify
from logstore.erase import prove_erasure
from logstore.errors import CorruptObjectError, MissingDataError
from logstore.objects import open_object_store
from logstore.store import LogStore
from logstore.testing.pausing import PausingStore
from tests.compaction.damage import flip, overwrite, read, remove
from tests.helpers import Place, Script, append, assert_same_tuple, memory_place, rebuilt, thread

D = {"d": DeltaChannel(append, list, snapshot_frequency=2)}


@pytest.fixture
def place() -> Iterator[Place]:
    with memory_place(short_grace_s=0, long_grace_s=0) as found:
        yield found


def large(seed: int, size: int = 300_000) -> bytes:
    return random.Random(seed).randbytes(size)


def jobs(place: Place, number: int = 1, *, hidden_grace_s: float = 86_400.0) -> None:
    """Jobs that collect whatever they may."""
    for _ in range(number):
        with place.store() as store:
            Job(
                store,
                table_of(channels=D),
                default_serde(),
                purge=True,
                hidden_grace_s=hidden_grace_s,
            ).run()


def assert_sound(place: Place) -> None:
    with place.store() as store:
        found = verify(store, table_of(channels=D), default_serde())
    assert not found.findings, found.findings


def assert_like(place: Place, model: InMemorySaver, thread_id: str = "t") -> None:
    with place.fresh() as saver:
        for entry in model.list(thread(thread_id)):
            assert_same_tuple(saver.get_tuple(entry.config), entry)
            assert rebuilt(saver, entry.config, D) == rebuilt(model, entry.config, D)


def stored_bytes(place: Place) -> int:
    with place.store() as store:
        return sum(info.size for page in store.objects.list("") for info in page.objects)


def test_a_value_that_only_runs_name_stays_through_jobs_merges_and_sweeps(place: Place) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    line = script.chain(3)
    script.write(line[-1], large(1))
    head = script.put(script.put(line[-1]), updates=("d",), values={"d": ["anew"]})
    jobs(place)
    for _ in range(20):
        head = script.chain(2, script.put(head))[-1]
        jobs(place)
    with place.store() as store:
        named = store.reader.snapshot_manifest("t", 0).manifest.object_keys
    assert place.keys("values/")
    assert named == []
    assert_like(place, model)
    assert_sound(place)
    assert stored_bytes(place) < 500_000


def test_equal_and_similar_values_of_a_thread_share_one_object(place: Place) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    value = large(1)
    last = script.put(updates=("x",), values={"x": value})
    jobs(place)
    # Two channels, a write, and a later value that has the first in it; nobody knew of it.
    for saver in (place.saver(), place.saver()):
        script.savers = [saver, model]
        last = script.put(last, updates=("y",), values={"y": value})
        script.write(last, value[:200_000] + b"more", task="t2")
    jobs(place, 3)
    assert len(place.keys("values/")) == 1
    assert stored_bytes(place) < 400_000
    assert_like(place, model)
    assert_sound(place)


def test_a_copy_of_a_thread_outlives_its_source(place: Place) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    line = script.chain(3)
    script.write(line[-1], large(1))
    script.put(line[-1], updates=("d", "x"), values={"x": large(2)})
    jobs(place)
    assert len(place.keys("values/")) == 2
    saver.copy_thread("t", "copy")
    saver.delete_thread("t")
    jobs(place, 3)
    with place.store() as store:
        assert not prove_erasure(store, "t").left
    for entry in model.list(thread()):
        with place.fresh() as fresh:
            at = thread("copy", "", entry.config["configurable"]["checkpoint_id"])
            found = fresh.get_tuple(at)
            assert found is not None
            expected = entry.checkpoint["channel_values"].get("x")
            assert found.checkpoint["channel_values"].get("x") == expected
            assert rebuilt(fresh, at, D) == rebuilt(model, entry.config, D)
    assert len(place.keys("values/")) == 2
    assert_sound(place)


def test_a_value_goes_with_the_rows_that_named_it(place: Place) -> None:
    saver = place.saver()
    script = Script([saver])
    first = script.put(updates=("x",), values={"x": large(1)})
    second = script.put(first, updates=("x",), values={"x": large(2)})
    jobs(place)
    assert len(place.keys("values/")) == 2
    saver.prune(["t"], newest=1)
    jobs(place, 2)
    assert len(place.keys("values/")) == 2, "what is hidden is kept for a while"
    jobs(place, 4, hidden_grace_s=0)
    assert len(place.keys("values/")) == 1
    with place.fresh() as fresh:
        found = fresh.get_tuple(thread("t", "", second))
        assert found is not None
        assert found.checkpoint["channel_values"]["x"] == large(2)
    assert_sound(place)


def test_what_was_patched_against_the_value_of_a_dropped_row_keeps_it(place: Place) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    value = large(1)
    first = script.put(updates=("x",), values={"x": value})
    jobs(place)
    script.savers = [place.saver(), model]  # knows of nothing, and stores it whole
    second = script.put(first, updates=("x",), values={"x": value + b"more"})
    jobs(place, 2)
    assert len(place.keys("values/")) == 1
    saver.prune(["t"], newest=1)
    jobs(place, 4, hidden_grace_s=0)
    with place.fresh() as fresh:
        assert [
            entry.config["configurable"]["checkpoint_id"] for entry in fresh.list(thread())
        ] == [second]
        found = fresh.get_tuple(thread("t", "", second))
        assert found is not None
        assert found.checkpoint["channel_values"]["x"] == value + b"more"
    assert len(place.keys("values/")) == 1
    assert_sound(place)


def test_a_value_that_is_gone_or_damaged_is_an_error_that_names_it(place: Place) -> None:
    script = Script([place.saver()])
    first = script.put(updates=("x",), values={"x": large(1)})
    script.put(first, updates=("x",), values={"x": 1})
    jobs(place)
    (key,) = place.keys("values/")
    flip(place, key)
    with place.fresh() as saver, pytest.raises(CorruptObjectError, match=key):
        saver.get_tuple(thread("t", "", first))
    remove(place, key)
    with place.fresh() as saver, pytest.raises(MissingDataError, match=key):
        saver.get_tuple(thread("t", "", first))
    with place.fresh() as saver:
        found = saver.get_tuple(thread())
        assert found is not None
        assert found.checkpoint["channel_values"] == {"x": 1}, "the head does not need it"


def test_a_lost_value_stops_its_thread_only_and_is_reported_until_it_is_back(place: Place) -> None:
    model = InMemorySaver()
    script = Script([place.saver(), model])
    line = script.chain(3)
    script.write(line[-1], large(1))
    last = script.put(line[-1])
    place.compact(channels=D)
    keys = place.keys("values/")
    bodies = {key: read(place, key) for key in keys}
    remove(place, *keys)
    script.chain(4, last)
    other = Script([place.saver(), model], "other")
    other.chain(3)
    done = place.compact(channels=D)
    assert done.partitions[0].outcome == Outcome.COMMITTED
    assert done.total("segments_merged") > 0
    assert list(done.unreadable) == ["thread 't'"]
    assert keys[0] in done.unreadable["thread 't'"]
    assert_like(place, model, "other")
    with place.fresh() as saver, pytest.raises(MissingDataError, match="values/"):
        list(saver.list(thread()))
    for key, body in bodies.items():
        overwrite(place, key, body)
    jobs(place, 2)
    assert_like(place, model)
    assert_sound(place)


def test_after_a_loss_merges_of_all_tiers_go_on(place: Place) -> None:
    model = InMemorySaver()
    script = Script([place.saver(), model])
    last = script.put(values={"x": large(1)}, updates=("x",))
    jobs(place)
    keys = place.keys("values/")
    bodies = {key: read(place, key) for key in keys}
    remove(place, *keys)
    for number in range(12):
        last = script.put(last, values={"x": large(1) + b"%d" % number}, updates=("x",))
        jobs(place)
    for key, body in bodies.items():
        overwrite(place, key, body)
    jobs(place, 2)
    assert_like(place, model)
    assert_sound(place)


def test_a_sweep_deletes_nothing_that_a_later_job_is_about_to_name(place: Place) -> None:
    """A stale job forgets an object, a sweep has found it unnamed, a third job names it again."""
    script = Script([place.saver()])
    base = large(1, 60_000).hex()
    value = [base + large(2, 8_000).hex()]
    last = script.put(updates=("d", "x"), values={"x": [base]})
    script.writes(last, [("d", value)])
    for number in range(6):
        last = script.put(last)
        script.writes(last, [("d", [large(10 + number, 20_000).hex()])])
    last = script.put(last)
    stale, sweeping, later = (PausingStore(open_object_store(place.uri)) for _ in range(3))

    def job(objects: PausingStore, channels: Any, purge: bool = False) -> Outcome:
        store = LogStore(objects)
        compaction = Job(store, table_of(channels=channels), default_serde(), purge=purge)
        return compaction.run().partitions[0].outcome

    with (
        ThreadPoolExecutor(3) as pool,
        stale.hold(lambda m, k: m.startswith("get") and k.endswith("/manifest")) as reading,
        sweeping.hold(lambda m, k: m == "list" and k.startswith("snapshots/")) as listing,
        later.hold(lambda m, k: m == "compare_and_swap" and k.startswith("manifests/")) as swap,
    ):
        first = pool.submit(job, stale, D)
        reading.wait_until_blocked()
        second = pool.submit(job, sweeping, {}, True)
        listing.wait_until_blocked()
        script.savers = [place.saver()]
        at = script.put(last, updates=("x",), values={"x": value})
        script.put(at, updates=("x",), values={"x": 1})
        third = pool.submit(job, later, {})
        swap.wait_until_blocked()
        for held, running in ((reading, first), (listing, second), (swap, third)):
            held.release()
            running.result(30)
    jobs(place, 2)
    with place.fresh() as saver:
        found = saver.get_tuple(thread("t", "", at))
        assert found is not None
        assert found.checkpoint["channel_values"]["x"] == value
    assert_sound(place)
