"""Rebuilding: whatever derived object is lost or wrong, all reads as before afterwards."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver

from compactor import Outcome, Report
from compactor.folding.channels import default_serde, table_of
from compactor.rebuild import RebuildJob
from compactor.recover import recovered_manifest
from compactor.verifying.verify import verify
from logstore.errors import CorruptObjectError
from logstore.keys import manifest_copy_key, partition_manifest_key
from logstore.records import Encoding, Record
from tests.compaction.damage import (
    change_runs,
    flip,
    flip_value,
    overwrite,
    read,
    remove,
    the_manifest,
    the_runs,
)
from tests.compaction.test_verify import other_append, wrong_snapshot
from tests.helpers import (
    Place,
    Script,
    append,
    assert_same_tuple,
    assert_twins,
    both,
    linear_graph,
    memory_place,
    rebuilt,
    thread,
)

D = {"d": DeltaChannel(append, list, snapshot_frequency=2)}
THREADS = ("t", "u", "gone", "new")


@pytest.fixture
def place() -> Iterator[Place]:
    """A store that deletes what was merged at the next job."""
    with memory_place(short_grace_s=0) as found:
        yield found


def rebuild(place: Place, *threads: str, channels: Any = D) -> Report:
    with place.store() as store:
        return RebuildJob(store, table_of(channels=channels), default_serde(), threads).run()


def sound(place: Place, channels: Any = D) -> bool:
    with place.store() as store:
        found = verify(store, table_of(channels=channels), default_serde())
    assert not found.findings, found.findings
    return found.checked.proved == found.checked.snapshots > 0


def lived_in(place: Place) -> InMemorySaver:
    """Branches, late writes, large values, deleted and recreated threads, and a tail."""
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    line = script.chain(9)
    Script([saver, model], "u").chain(6)
    for name in ("gone", "new"):
        Script([saver, model], name).chain(5)
    place.compact(channels=D)
    script.write(line[3], "late")
    script.write(line[4], "x" * 300_000)
    for part in range(2):  # together too large for a manifest, each small enough for a row
        script.write(line[4], random.Random(part).randbytes(120_000), task=f"part{part}")
    script.chain(4, script.put(line[4], values={"x": "y" * 200_000}, updates=("d", "x")))
    for one in (saver, model):
        one.delete_thread("gone")
        one.delete_thread("new")
    Script([saver, model], "new", _serial=50).chain(4)
    place.compact(channels=D)
    place.compact(channels=D)
    script.write(line[8], "tail")
    script.put(line[8])
    return model


def assert_like(place: Place, model: InMemorySaver) -> None:
    for thread_id in THREADS:
        with place.fresh() as saver:
            expected = list(model.list(thread(thread_id)))
            assert_same_tuple(
                saver.get_tuple(thread(thread_id)), model.get_tuple(thread(thread_id))
            )
            assert len(list(saver.list(thread(thread_id)))) == len(expected)
            for entry in expected:
                assert_same_tuple(saver.get_tuple(entry.config), entry)
                assert rebuilt(saver, entry.config, D) == rebuilt(model, entry.config, D)


def without_snapshots(record: Record) -> Record | None:
    return None if record.kind == "snapshot" else record


def unreadable_snapshots(record: Record) -> Record:
    if record.kind != "snapshot" or record.encoding == Encoding.VOID:
        return record
    return record._replace(checksum=1)


def manifests_gone(place: Place) -> None:
    remove(place, *(k for k in place.keys("snapshots/") if k.endswith("/manifest")))


def objects_gone(place: Place) -> None:
    remove(place, *(k for k in place.keys("snapshots/") if "/c." in k))


def old_manifest(place: Place) -> None:
    """The thread's manifest is put back to how it was before its last job."""
    old = read(place, the_manifest(place, "u"))
    with place.fresh() as saver:
        found = saver.get_tuple(thread("u"))
        assert found is not None
        saver.put_writes(found.config, [("d", [])], "late")
    for _ in range(2):
        place.compact(channels=D)
    overwrite(place, the_manifest(place, "u"), old)


DAMAGE: dict[str, Callable[[Place], object]] = {
    "nothing": lambda p: None,
    "threads' manifests are gone": manifests_gone,
    "a thread's manifest is damaged": lambda p: flip(p, the_manifest(p)),
    "a thread's manifest is another's": lambda p: overwrite(
        p, the_manifest(p), read(p, the_manifest(p, "u"))
    ),
    "snapshot objects are gone": objects_gone,
    "a snapshot object is damaged": lambda p: flip(
        p, next(k for k in p.keys("snapshots/") if "/c." in k)
    ),
    "snapshots are gone": lambda p: change_runs(p, without_snapshots),
    "snapshots are wrong": lambda p: change_runs(p, wrong_snapshot),
    "snapshots cannot be read": lambda p: change_runs(p, unreadable_snapshots),
    "the partition's manifest is gone": lambda p: remove(p, partition_manifest_key(0)),
    "the partition's manifest is damaged": lambda p: flip(p, partition_manifest_key(0)),
    "the partition's manifest and its copy are gone": lambda p: remove(
        p, partition_manifest_key(0), manifest_copy_key(0)
    ),
    "the partition's manifest and its copy are damaged": lambda p: (
        flip(p, partition_manifest_key(0)),
        flip(p, manifest_copy_key(0)),
    ),
    "the copy of the partition's manifest is damaged": lambda p: flip(p, manifest_copy_key(0)),
    "everything derived is gone": lambda p: (
        manifests_gone(p),
        objects_gone(p),
        change_runs(p, without_snapshots),
        remove(p, partition_manifest_key(0)),
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_all_reads_as_before_when_it_was_rebuilt(place: Place, name: str) -> None:
    model = lived_in(place)
    before = place.snapshots()
    DAMAGE[name](place)
    report = rebuild(place)
    assert {p.outcome for p in report.partitions} == {Outcome.COMMITTED}
    assert_like(place, model)
    assert sound(place)
    assert place.snapshots() >= before
    # The store goes on as ever.
    place.compact(channels=D)
    place.compact(channels=D)
    assert_like(place, model)
    assert sound(place)


def test_an_old_manifest_of_a_thread_is_brought_up_to_date(place: Place) -> None:
    model = lived_in(place)
    found = model.get_tuple(thread("u"))
    assert found is not None
    old_manifest(place)
    model.put_writes(found.config, [("d", [])], "late")
    rebuild(place, "u")
    assert_like(place, model)
    assert sound(place)


def test_a_manifest_that_is_older_than_the_runs_is_made_of_them(place: Place) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    last = script.chain(3)[-1]
    place.compact(channels=D)
    old = read(place, partition_manifest_key(0))
    for _ in range(3):
        script.write(last, "more")
        last = script.put(last)
        place.compact(channels=D)
    overwrite(place, partition_manifest_key(0), old)
    # A job would take the newer runs for left over, and delete them one day.
    script.put(last)
    with pytest.raises(CorruptObjectError, match="compactor rebuild"):
        place.compact(channels=D)
    rebuild(place)
    assert_like(place, model)
    assert sound(place)


def test_a_first_manifest_that_is_lost_with_its_segments_gone_is_noticed(place: Place) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    last = script.chain(5)[-1]
    place.compact(channels=D)
    remove(place, *place.keys("log/"), partition_manifest_key(0))
    with place.store() as store:
        found = verify(store, table_of(channels=D), default_serde())
    assert partition_manifest_key(0) in {f.key for f in found.findings}
    script.put(last)
    with pytest.raises(CorruptObjectError, match="compactor rebuild"):
        place.compact(channels=D)
    rebuild(place)
    assert_like(place, model)
    assert sound(place)


def test_a_run_that_cannot_be_read_keeps_a_lost_manifest_from_being_made_of_the_others(
    place: Place,
) -> None:
    lived_in(place)
    run = the_runs(place)[0]
    flip_value(place, run)
    overwrite(place, run, read(place, run)[:-30])
    flip(place, partition_manifest_key(0))
    with pytest.raises(CorruptObjectError, match=run):
        rebuild(place)


def test_runs_that_were_rewritten_are_told_from_those_that_replaced_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.fresh() as saver:
        for name in ("a", "b"):
            Script([saver], name).chain(3)
        place.compact(channels=D)
        saver.delete_thread("b")
    place.compact(channels=D)
    remove(place, partition_manifest_key(0), *place.keys("copies/"))
    with place.store() as store:
        recovered = recovered_manifest(store, 0, "job")
    assert recovered is not None
    sequences = [run.sequence or run.key for run in recovered.runs]
    assert len(set(sequences)) == len(sequences) == 3, "one after the other they are not sorted"
    monkeypatch.setattr("compactor.plan.FAN_OUT", 3)
    rebuild(place)
    with place.fresh() as saver:
        assert list(saver.list(thread("b"))) == []
        assert len(list(saver.list(thread("a")))) == 3
    assert sound(place)


def test_only_the_threads_that_are_named_are_rebuilt(place: Place) -> None:
    model = lived_in(place)
    place.compact(channels=D)
    before = {t: read(place, the_manifest(place, t)) for t in THREADS}
    rebuild(place, "u")
    after = {t: read(place, the_manifest(place, t)) for t in THREADS}
    assert {t for t in THREADS if before[t] != after[t]} == {"u"}
    assert_like(place, model)


def test_a_changed_reducer_takes_over_all_snapshots(place: Place) -> None:
    model = lived_in(place)
    other = {"d": DeltaChannel(other_append, list, snapshot_frequency=3)}
    rebuild(place, channels=other)
    assert_like(place, model)
    assert sound(place, other)
    # Snapshots that the new cadence does not ask for are taken back.
    with memory_place() as fresh:
        lived_in(fresh)
        rebuild(fresh, channels=other)
        assert fresh.snapshots() == place.snapshots()


def test_without_a_reducer_snapshots_stay_and_manifests_are_rebuilt(place: Place) -> None:
    model = lived_in(place)
    before = place.snapshots()
    manifests_gone(place)
    report = rebuild(place, channels={})
    assert report.unfolded
    assert place.snapshots() == before
    assert_like(place, model)
    assert sound(place)


@pytest.mark.parametrize("policy", ["all", "newest 1", "powers of two"])
def test_what_stands_for_dropped_rows_is_never_made_anew(place: Place, policy: str) -> None:
    """After a prune its writes are gone: folding it again would give an empty value."""
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    last = script.chain(13)[-1]
    place.compact(channels=D, retention=policy)
    saver.prune(["t"], newest=2)
    for number in range(3):
        dropped = sum(
            place.compact(channels=D, retention=policy, hidden_grace_s=0.0).total("rows_dropped")
            for _ in range(2)
        )
        assert bool(dropped) == (number == 0)
        for _ in range(7):
            script.write(last, f"{number} and " + "more " * 100)
            last = script.put(last)
        with place.store() as store:
            table = table_of(channels=D, retention=policy)
            found = verify(store, table, default_serde())
            assert not found.findings, found.findings
            RebuildJob(store, table, default_serde()).run()
            found = verify(store, table, default_serde())
            assert not found.findings, found.findings
        with place.fresh() as fresh:
            for entry in fresh.list(thread()):
                assert rebuilt(fresh, entry.config, D) == rebuilt(model, entry.config, D)
    other = {"d": DeltaChannel(other_append, list, snapshot_frequency=3)}
    for _ in range(7):
        script.write(last, "with another reducer")
        last = script.put(last)
    place.compact(channels=other)
    rebuild(place, channels=other)
    with place.fresh() as fresh:
        for entry in fresh.list(thread()):
            assert rebuilt(fresh, entry.config, D) == rebuilt(model, entry.config, D)


def test_agents_and_jobs_go_on_while_a_store_is_rebuilt(place: Place) -> None:
    make = linear_graph(1000)
    config = thread("busy")
    done = threading.Event()
    faults: list[BaseException] = []

    def work() -> None:
        try:
            with place.fresh() as saver:
                graph = make(saver)
                for number in range(25):
                    live = graph.invoke(both(f"turn {number}"), config)
                    assert live["delta"] == live["plain"]
                    if number % 5 == 4:
                        place.compact(graph=make(None), frequency=3)
        except BaseException as error:
            faults.append(error)
        finally:
            done.set()

    worker = threading.Thread(target=work)
    worker.start()
    table = table_of(graph=make(None), frequency=3)
    while not done.is_set():
        with place.store() as store:
            RebuildJob(store, table, default_serde()).run()
    worker.join()
    assert not faults
    assert_twins(place, make, config)
    with place.store() as store:
        assert not verify(store, table, default_serde()).findings
