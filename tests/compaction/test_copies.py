"""A partition manifest that is lost: what jobs left that never committed must not count."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from langgraph.channels.delta import DeltaChannel

from compactor import Outcome, Report
from compactor.copies import read_copy
from compactor.folding.channels import default_serde, table_of
from compactor.job import Job
from compactor.rebuild import RebuildJob
from compactor.recover import recovered_manifest
from compactor.verifying.verify import verify
from logstore.errors import CorruptObjectError, LogStoreError
from logstore.keys import manifest_copy_key, partition_manifest_key
from logstore.objects.memory import MemoryObjectStore
from logstore.store import LogStore
from logstore.testing.faults import Fault, FaultyStore
from logstore.testing.pausing import PausingStore
from tests.compaction.damage import overwrite, read, remove
from tests.helpers import Place, Script, append, memory_place, rebuilt, thread

D = {"d": DeltaChannel(append, list, snapshot_frequency=1000)}


@pytest.fixture
def place() -> Iterator[Place]:
    """A store that deletes what was merged at the next job, and what was left over not at all."""
    with memory_place(short_grace_s=0) as found:
        yield found


def objects_of(place: Place) -> MemoryObjectStore:
    return MemoryObjectStore(place.uri.removeprefix("memory://"))


def job(store: LogStore, hidden_grace_s: float) -> Report:
    return Job(store, table_of(channels=D), default_serde(), hidden_grace_s=hidden_grace_s).run()


def killed_while_dropping(place: Place, number: int) -> None:
    """A job that drops what is hidden and does not get to store its run of that number."""
    faulty = FaultyStore(objects_of(place))
    runs = 0

    def matches(method: str, key: str) -> bool:
        nonlocal runs
        runs += method == "put_if_absent" and key.startswith("runs/")
        return runs > number

    faulty.fail_when(matches, Fault.REFUSED)
    with pytest.raises(LogStoreError):
        job(LogStore(faulty), 0)


def rebuild(place: Place) -> None:
    with place.store() as store:
        RebuildJob(store, table_of(channels=D), default_serde()).run()
        found = verify(store, table_of(channels=D), default_serde())
    assert not found.findings, found.findings


@pytest.mark.parametrize("number", [0, 1])
def test_a_drop_that_was_killed_takes_no_value_away(place: Place, number: int) -> None:
    with place.fresh() as saver:
        script = Script([saver])
        line = script.chain(12)
        before = rebuilt(saver, thread(), D)
        saver.prune(["t"])
        for _ in range(2):
            place.compact(channels=D)
        killed_while_dropping(place, number)
        remove(place, partition_manifest_key(0))
        rebuild(place)
    with place.fresh() as saver:
        assert rebuilt(saver, thread(), D) == before
        assert len(list(saver.list(thread()))) == 1
    assert line


def test_nothing_is_deleted_before_there_is_a_copy_of_what_lists_it(place: Place) -> None:
    script = Script([place.saver()])
    last = script.put()
    for number in range(5):
        script.write(last, number)
        last = script.put(last)
        place.compact(channels=D)
        with place.store() as store:
            merged = store.reader.partition_manifest(0)[0].merged
            copy = read_copy(store, 0)[0]
        assert merged.keys() == set(place.keys("log/"))
        if number:
            assert copy is not None
            assert copy.generation == number


def test_what_was_merged_since_the_copy_is_merged_again(place: Place) -> None:
    saver = place.saver()
    script = Script([saver])
    last = script.chain(5)[-1]
    for _ in range(3):
        script.write(last, "more")
        last = script.put(last)
        place.compact(channels=D)
    before = rebuilt(saver, thread(), D)
    with place.store() as store:
        merged = store.reader.partition_manifest(0)[0].merged
        remove(place, partition_manifest_key(0))
        recovered = recovered_manifest(store, 0, "job")
        assert recovered is not None
        assert not recovered.merged.keys() & merged.keys()
        assert len(recovered.runs) == 2
    rebuild(place)
    with place.fresh() as fresh:
        assert rebuilt(fresh, thread(), D) == before


def test_runs_of_what_is_done_again_retire(place: Place) -> None:
    saver = place.saver()
    script = Script([saver])
    last = script.chain(5)[-1]
    for _ in range(3):
        script.write(last, "more")
        last = script.put(last)
        place.compact(channels=D)
    remove(place, partition_manifest_key(0))
    rebuild(place)
    with place.store() as store:
        manifest = store.reader.partition_manifest(0)[0]
    assert {*(run.key for run in manifest.runs), *manifest.retired} == set(place.keys("runs/"))


def test_records_of_which_only_a_newer_run_tells_are_not_lost(place: Place) -> None:
    saver = place.saver()
    script = Script([saver])
    last = script.chain(5)[-1]
    for _ in range(3):
        script.write(last, "more")
        last = script.put(last)
        place.compact(channels=D)
    before = rebuilt(saver, thread(), D)
    remove(place, partition_manifest_key(0), *place.keys("log/"))
    rebuild(place)
    with place.fresh() as fresh:
        assert rebuilt(fresh, thread(), D) == before


def test_a_job_that_began_from_a_lost_manifest_deletes_nothing(place: Place) -> None:
    saver = place.saver()
    script = Script([saver])
    last = script.chain(5)[-1]
    for _ in range(2):
        script.write(last, "more")
        last = script.put(last)
        place.compact(channels=D)
    pausing = PausingStore(objects_of(place))
    with (
        ThreadPoolExecutor(1) as pool,
        pausing.hold(lambda m, k: m == "get" and k == manifest_copy_key(0)) as held,
    ):
        slow = pool.submit(job, LogStore(pausing), 0)
        held.wait_until_blocked()
        before = rebuilt(saver, thread(), D)
        remove(place, partition_manifest_key(0))
        rebuild(place)
        keys = place.keys()
        held.release()
        assert {p.outcome for p in slow.result().partitions} == {Outcome.LOST}
        assert set(keys) <= set(place.keys())
    with place.fresh() as fresh:
        assert rebuilt(fresh, thread(), D) == before


def test_a_manifest_that_is_older_than_its_copy_is_noticed(place: Place) -> None:
    script = Script([place.saver()])
    last = script.chain(5)[-1]
    place.compact(channels=D)
    old = read(place, partition_manifest_key(0))
    for _ in range(3):
        script.write(last, "more")
        last = script.put(last)
        place.compact(channels=D)
    before = rebuilt(script.savers[0], thread(), D)
    overwrite(place, partition_manifest_key(0), old)
    with place.store() as store:
        found = verify(store, table_of(channels=D), default_serde())
        assert any("its copy copies/partition=0000" in f.detail for f in found.findings)
        # What the old one lists may be deleted only by a job that knows all that came after.
        with pytest.raises(CorruptObjectError, match=r"its copy.*compactor rebuild"):
            Job(store, table_of(channels=D), default_serde(), purge=True).run()
    rebuild(place)
    with place.fresh() as fresh:
        assert rebuilt(fresh, thread(), D) == before


def test_a_drop_that_lost_to_a_late_write_does_not_hide_it(place: Place) -> None:
    with place.fresh() as saver:
        script = Script([saver])
        line = script.chain(12)
        saver.prune(["t"])
        for _ in range(2):
            place.compact(channels=D)
        pausing = PausingStore(objects_of(place))
        commit = partition_manifest_key(0)
        with (
            ThreadPoolExecutor(1) as pool,
            pausing.hold(lambda m, k: m == "compare_and_swap" and k == commit) as held,
        ):
            slow = pool.submit(job, LogStore(pausing), 0)
            held.wait_until_blocked()
            script.write(line[3], "late", task="t9")
            place.compact(channels=D)
            held.release()
            slow.result()
        before = rebuilt(saver, thread(), D)
        assert "late" in before["d"]
        remove(place, partition_manifest_key(0))
        rebuild(place)
    with place.fresh() as saver:
        assert rebuilt(saver, thread(), D) == before
