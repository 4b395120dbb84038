"""Garbage collection beside jobs that have not committed, and after races that were lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver

from compactor import Outcome, Report
from compactor.cleaning.sweep import Sweep
from compactor.folding.channels import default_serde, table_of
from compactor.job import Job
from compactor.plan import make_plan
from compactor.verifying.verify import verify
from logstore.keys import partition_manifest_key
from logstore.objects.memory import MemoryObjectStore
from logstore.store import LogStore
from logstore.testing.pausing import Held, PausingStore
from tests.helpers import Place, Script, append, assert_same_tuple, memory_place, rebuilt, thread

D = {"d": DeltaChannel(append, list, snapshot_frequency=2)}
LARGE = "x" * 200_000
"""Large enough for a snapshot object."""


def job(store: LogStore, *, purge: bool = True) -> Report:
    """A job that collects whatever it may; the store's graces are zero."""
    return Job(store, table_of(channels=D), default_serde(), purge=purge).run()


@contextmanager
def paused_before_its_commit(place: Place) -> Iterator[Held]:
    """A job in another thread that has stored everything but its partition manifest."""
    pausing = PausingStore(MemoryObjectStore(place.uri.removeprefix("memory://")))

    def is_commit(method: str, key: str) -> bool:
        return method == "compare_and_swap" and key == partition_manifest_key(0)

    with ThreadPoolExecutor(1) as pool, pausing.hold(is_commit) as held:
        slow = pool.submit(job, LogStore(pausing), purge=False)
        held.wait_until_blocked()
        yield held
        held.release()
        assert {p.outcome for p in slow.result().partitions} == {Outcome.LOST}


def assert_like(place: Place, model: InMemorySaver) -> None:
    with place.fresh() as saver:
        assert_same_tuple(saver.get_tuple(thread()), model.get_tuple(thread()))
        for entry in model.list(thread()):
            assert_same_tuple(saver.get_tuple(entry.config), entry)
            assert rebuilt(saver, entry.config, D) == rebuilt(model, entry.config, D)


def assert_sound(place: Place) -> None:
    """With graces of zero whatever nothing names is a finding."""
    with place.store() as store:
        found = verify(store, table_of(channels=D), default_serde())
    assert not found.findings, found.findings


def settled_count(place: Place) -> int:
    """How many objects there are once everything was collected."""
    for _ in range(4):
        with place.store() as store:
            job(store)
    assert_sound(place)
    return len(place.keys())


def test_what_a_job_has_stored_and_not_committed_may_go_and_nothing_else(place: Place) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    last = script.chain(7)[-1]
    with place.store() as store:
        job(store)
    script.write(last, LARGE)
    script.chain(4, script.put(last))
    with paused_before_its_commit(place):
        for _ in range(3):
            with place.store() as store:
                job(store)
            assert_like(place, model)
    assert_like(place, model)
    settled = settled_count(place)
    # store.json, two manifests, a copy, the runs, and the large value, which is stored once.
    runs = len(place.keys("runs/"))
    assert len(place.keys("values/")) == 1
    assert settled == 5 + runs + len(place.keys("log/")) + len(place.keys("probe/"))
    assert_like(place, model)


def test_after_ten_lost_races_in_a_row_the_objects_are_as_many_as_without_them(
    place: Place,
) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    last = script.put()
    for number in range(10):
        script.write(last, f"{number}{LARGE}")
        last = script.put(last)
        with paused_before_its_commit(place), place.store() as store:
            assert job(store).partitions[0].outcome == Outcome.COMMITTED
    assert_like(place, model)
    raced = settled_count(place)
    with place.store() as store:
        manifest, _ = store.reader.partition_manifest(0)
    assert {run.key for run in manifest.runs} == set(place.keys("runs/"))
    # The same history, and one job after each step that nobody disturbs.
    with memory_place(short_grace_s=0, long_grace_s=0) as other:
        twin = Script([other.saver()])
        last = twin.put()
        for number in range(10):
            twin.write(last, f"{number}{LARGE}")
            last = twin.put(last)
            with other.store() as store:
                job(store)
        assert settled_count(other) - len(other.keys("runs/")) == raced - len(place.keys("runs/"))


def test_a_job_never_names_an_object_that_was_swept_while_it_slept(place: Place) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    last = script.chain(3)[-1]
    with place.store() as store:
        job(store)
    script.write(last, LARGE)
    script.chain(4, script.put(last))
    pausing = PausingStore(MemoryObjectStore(place.uri.removeprefix("memory://")))

    def is_publishing(method: str, key: str) -> bool:
        return method == "compare_and_swap" and key.endswith("/manifest")

    with ThreadPoolExecutor(1) as pool, pausing.hold(is_publishing) as held:
        slow = pool.submit(job, LogStore(pausing), purge=False)
        held.wait_until_blocked()
        (stored,) = place.keys("values/")
        # Another job has nothing to publish, and sweeps.
        with place.store() as store:
            settings = store.settings()
            assert settings is not None
            plan = make_plan(store, settings, 0)
            store.objects.delete(Sweep(store, plan, plan.manifest, "sweeper", 0).run().gone)
        assert stored not in place.keys("values/")
        held.release()
        assert {p.outcome for p in slow.result().partitions} == {Outcome.COMMITTED}
    assert_like(place, model)
    assert_sound(place)


@pytest.mark.parametrize("purge", [True, False])
def test_two_compactors_at_once_beside_a_writer_lose_nothing(place: Place, purge: bool) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    script.put()
    done = threading.Event()
    faults: list[BaseException] = []

    def compact() -> None:
        try:
            while not done.is_set():
                with place.store() as store:
                    job(store, purge=purge)
        except BaseException as error:
            faults.append(error)

    workers = [threading.Thread(target=compact) for _ in range(2)]
    for worker in workers:
        worker.start()
    last = script.put()
    for number in range(25):
        script.write(last, f"{number}" + (LARGE if number % 5 == 0 else ""))
        last = script.put(last)
        with place.fresh() as fresh:
            assert_same_tuple(fresh.get_tuple(thread()), model.get_tuple(thread()))
    done.set()
    for worker in workers:
        worker.join()
    assert not faults
    settled_count(place)
    assert_like(place, model)
