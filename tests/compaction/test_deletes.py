"""Deleting a thread: what was seen stays hidden for good, what comes later is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver

from compactor import job as compactor_job
from compactor.folding.channels import default_serde, table_of
from logstore import LogStoreSaver
from tests.helpers import Place, Script, append, assert_same_tuple, rebuilt, thread

D = {"d": DeltaChannel(append, list, snapshot_frequency=2)}
Job = Callable[[Place], None]


def folding(place: Place) -> None:
    place.compact(channels=D)


def merging(place: Place) -> None:
    place.compact()


def twice(place: Place) -> None:
    place.compact(channels=D)
    place.compact(channels=D)


def nothing(place: Place) -> None:
    pass


jobs = pytest.mark.parametrize("job", [nothing, folding, merging, twice])


def assert_empty(place: Place, thread_id: str = "t") -> None:
    with place.fresh() as saver:
        assert saver.get_tuple(thread(thread_id)) is None
        assert list(saver.list(thread(thread_id))) == []
        assert all(t.config["configurable"]["thread_id"] != thread_id for t in saver.list(None))


def assert_like(place: Place, model: InMemorySaver, thread_id: str = "t") -> None:
    expected = list(model.list(thread(thread_id)))
    for warm in (True, False):
        with place.fresh() as saver:
            if warm:
                assert_same_tuple(
                    saver.get_tuple(thread(thread_id)), model.get_tuple(thread(thread_id))
                )
            found = list(saver.list(thread(thread_id)))
            assert len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                assert_same_tuple(one, other)
                assert_same_tuple(saver.get_tuple(other.config), other)
                assert rebuilt(saver, other.config, D) == rebuilt(model, other.config, D)


@jobs
def test_a_deleted_thread_is_empty_before_and_after_compaction(place: Place, job: Job) -> None:
    saver = place.saver()
    Script([saver]).chain(6)
    job(place)
    saver.delete_thread("t")
    assert_empty(place)
    job(place)
    assert_empty(place)
    job(place)
    assert_empty(place)


@jobs
@pytest.mark.parametrize("between", [nothing, folding])
def test_a_thread_that_is_created_anew_shows_only_its_new_life(
    place: Place, job: Job, between: Job
) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    script.chain(5)
    job(place)
    saver.delete_thread("t")
    model.delete_thread("t")
    between(place)
    again = Script([saver, model], _serial=50)
    again.chain(5)
    assert_like(place, model)
    job(place)
    assert_like(place, model)
    again.chain(3, again.put())
    job(place)
    assert_like(place, model)


@jobs
def test_a_thread_can_be_deleted_again_and_again(place: Place, job: Job) -> None:
    model = InMemorySaver()
    for life in range(3):
        with place.fresh() as saver:
            Script([saver, model], _serial=life * 10).chain(4)
        job(place)
        assert_like(place, model)
        with place.fresh() as saver:
            saver.delete_thread("t")
            model.delete_thread("t")
        assert_empty(place)
        job(place)
        assert_empty(place)


@jobs
def test_a_branch_from_an_old_checkpoint_of_a_recreated_thread_is_read(
    place: Place, job: Job
) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    script.chain(3)
    saver.delete_thread("t")
    model.delete_thread("t")
    first, *_ = Script([saver, model], _serial=20).chain(6)
    job(place)
    branch = Script([saver, model], _serial=40)
    branch._known[first] = ({}, 0, 0)
    branch.put(first)
    assert_like(place, model)
    job(place)
    assert_like(place, model)


def test_compaction_goes_on_after_a_fork_in_a_recreated_thread(place: Place) -> None:
    saver, model = place.saver(), InMemorySaver()
    Script([saver, model]).chain(3)
    merging(place)
    saver.delete_thread("t")
    model.delete_thread("t")
    script = Script([saver, model], _serial=20)
    first, *_ = script.chain(4)
    merging(place)
    script.write(first, "late")
    script.put(first)
    merging(place)
    assert_like(place, model)


@pytest.mark.parametrize("where", ["parent", "write"])
@jobs
def test_a_late_put_below_a_deleted_checkpoint_stays_hidden(
    place: Place, job: Job, where: str
) -> None:
    saver = place.saver()
    script = Script([saver])
    ids = script.chain(4)
    job(place)
    with place.fresh() as other:
        other.delete_thread("t")
    job(place)
    late = Script([place.saver()], _serial=30)
    late._known = script._known
    if where == "parent":
        late.put(ids[-1])
    late.write(ids[-1], "late")
    assert_empty(place)
    job(place)
    assert_empty(place)
    late.put(late.put(ids[1]))
    assert_empty(place)
    job(place)
    assert_empty(place)


@pytest.mark.parametrize("jobs_before", [0, 1, 2])
def test_a_delayed_copy_of_an_old_segment_stays_hidden(place: Place, jobs_before: int) -> None:
    saver = place.saver()
    Script([saver]).chain(4)
    with place.store() as store:
        copies = {key: store.objects.get(key).data for key in place.keys("log/")}
    for _ in range(jobs_before):
        folding(place)
    saver.delete_thread("t")
    for _ in range(3):
        folding(place)
    assert place.keys("log/") == []
    with place.store() as store:
        for key, body in copies.items():
            store.objects.put_if_absent(key, body)
    assert_empty(place)
    folding(place)
    assert_empty(place)
    folding(place)
    assert_empty(place)
    assert {r.kind for r in place.run_records()} <= {"tombstone"}


@pytest.mark.parametrize("jobs_before", [0, 1, 2, 9])
def test_the_bytes_of_a_deleted_thread_are_gone_after_the_next_compaction(
    place: Place, jobs_before: int
) -> None:
    secret = "the secret of the deleted thread"
    saver = place.saver()
    script, other = Script([saver]), Script([saver], thread_id="other")
    last = None
    for number in range(max(jobs_before, 1)):
        last = script.put(last, secret=secret)
        script.write(last, f"{secret} {number}")
        other.chain(2)
        if jobs_before:
            folding(place)
    saver.delete_thread("t")
    for _ in range(3):
        folding(place)
    assert all(r.kind == "tombstone" for r in place.run_records() if r.thread_id == "t")
    assert any(r.thread_id == "other" for r in place.run_records())
    assert_bytes_gone(place, secret)


def test_the_large_values_of_a_deleted_thread_are_gone_too(place: Place) -> None:
    saver = place.saver()
    script = Script([saver])
    large = "x" * 300_000
    script.write(script.put(), large)
    script.put(script.chain(3, "1f000001")[-1], updates=["d", "x"], values={"x": large})
    folding(place)
    assert place.keys("values/")
    saver.delete_thread("t")
    for _ in range(2):
        with place.store() as store:
            compactor_job.Job(store, table_of(channels=D), default_serde(), purge=True).run()
    assert not place.keys("values/")


def assert_bytes_gone(place: Place, secret: str) -> None:
    import zstandard

    needle = secret.encode()
    for record in place.run_records():
        assert needle not in repr(record).encode()
    with place.store() as store:
        for key in place.keys():
            data = store.objects.get(key).data
            assert needle not in data, key
            if key.startswith("snapshots/") and key.endswith("/manifest"):
                decoded = zstandard.ZstdDecompressor().decompress(
                    data[20:], max_output_size=1 << 30
                )
                assert needle not in decoded, key


@jobs
def test_the_neighbours_of_a_deleted_thread_are_untouched(place: Place, job: Job) -> None:
    saver, model = place.saver(), InMemorySaver()
    names = ["a", "t", "t1", "u"]
    for name in names:
        Script([saver, model], thread_id=name).chain(5)
    job(place)
    for life in range(2):
        saver.delete_thread("t")
        model.delete_thread("t")
        job(place)
        for name in ("a", "t1", "u"):
            assert_like(place, model, name)
            Script([saver, model], thread_id=name, _serial=20 + 10 * life).chain(2)
        job(place)
        assert_empty(place)


def test_deleting_what_does_not_exist_does_nothing(place: Place) -> None:
    saver = place.saver()
    saver.delete_thread("never")
    Script([saver]).chain(2)
    folding(place)
    saver.delete_thread("never")
    assert place.keys("log/") == place.keys("log/")
    assert saver.get_tuple(thread()) is not None


@pytest.mark.parametrize("durability", ["strict", "checkpoint", "buffered"])
def test_a_delete_hides_what_the_same_process_has_not_flushed_yet(
    place: Place, durability: Any
) -> None:
    saver: LogStoreSaver = place.saver(durability=durability)
    script = Script([saver])
    ids = script.chain(4)
    script.write(ids[-1], "in flight")
    saver.delete_thread("t")
    assert saver.get_tuple(thread()) is None
    saver.flush()
    assert_empty(place)


@jobs
async def test_a_thread_is_deleted_by_the_async_call_too(place: Place, job: Job) -> None:
    saver = place.saver()
    Script([saver]).chain(3)
    job(place)
    await saver.adelete_thread("t")
    assert await saver.aget_tuple(thread()) is None
    job(place)
    assert_empty(place)
