"""A fault at every request of a workload: what was acknowledged is there, once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver

import compactor.publishing.publish
from compactor.folding.channels import default_serde
from compactor.job import Job
from logstore import LogStoreError, LogStoreSaver
from logstore.objects.base import ObjectStore
from logstore.testing.wrappers import Fault, FaultyStore
from tests.protocol.stores import retrying
from tests.protocol.world import (
    COMMITTED,
    LOST,
    Call,
    Delete,
    Put,
    World,
    Writes,
    config_of,
    conversation,
    id_of,
    is_segment_put,
    model_of,
    play,
    table,
    told,
)

THREADS = ("talk", "gone")
FAULTS = [Fault.REFUSED, Fault.ERROR, Fault.DROPPED_ANSWER, Fault.LATE]
MAX_REQUESTS = 400


def workload() -> tuple[list[Call], list[Call]]:
    """What happens before a compaction, and what after it."""
    before: list[Call] = [
        *conversation(4),
        Put("gone", id_of(0), None, 0),
        Writes("gone", id_of(0), ("a question",), channel="__interrupt__"),
    ]
    after: list[Call] = [
        Writes("talk", id_of(1), ("late",), task="zz late"),
        *conversation(1, begin=4),
        Delete("gone"),
        Put("gone", id_of(0, "again"), None, 0),
    ]
    return before, after


def all_told(saver: BaseCheckpointSaver[str], *, by_id: bool = False) -> list[object]:
    return [told(saver, thread, by_id=by_id) for thread in THREADS]


def model_told(calls: Sequence[Call]) -> list[object]:
    return _model_told(tuple(calls))


@cache
def _model_told(calls: tuple[Call, ...]) -> list[object]:
    return all_told(model_of(*calls))


class Script:
    """Calls on a saver whose requests may fail; it ends at the first call that raises."""

    def __init__(self, saver: LogStoreSaver) -> None:
        self.saver = saver
        self.acknowledged: list[Call] = []
        self.raised: Call | None = None

    def run(self, calls: Sequence[Call]) -> None:
        for call in calls:
            if self.raised is not None:
                return
            try:
                self.saver.get_tuple(config_of(call.thread))
                call.apply(self.saver)
            except LogStoreError:
                self.raised = call
            else:
                self.acknowledged.append(call)


def fault_in_saver_work(
    fault: Fault, k: int, *, retry: bool, times: int | None
) -> tuple[bool, list[Call]]:
    """Play the workload with a fault at request k, reopen, look, and go on.

    Returns:
        Whether the workload had so many requests, and what was acknowledged.
    """
    world = World()
    before, after = workload()
    try:
        faulty = FaultyStore(world.objects)
        objects: ObjectStore = retrying(faulty) if retry else faulty
        script = Script(world.saver(objects=objects))
        script.saver.store.create()
        faulty.fail_at(k, fault, times=times)
        script.run(before)
        if script.raised is None:
            world.compact()
            world.compact()
            script.run(after)
        reached = faulty.failed > 0
        check_and_go_on(world, script, [*before, *after])
        faulty.heal()
        faulty.land()
        # A write that was given up as unknown may land now: it comes after all the others.
        late = [] if script.raised is None else [script.raised]
        possible = [model_told([*before, *after]), model_told([*before, *after, *late])]
        with world.saver() as reader:
            found = all_told(reader, by_id=True)
        assert found in possible
        world.compact()
        world.compact()
        with world.saver() as reader:
            assert all_told(reader) == found
        return reached, script.acknowledged
    finally:
        world.close()


def check_and_go_on(world: World, script: Script, calls: Sequence[Call]) -> None:
    done = script.acknowledged
    with world.saver() as reader:
        found = all_told(reader)
    possible = [model_told(done)]
    if script.raised is not None:
        possible.append(model_told([*done, script.raised]))
    assert found in possible
    rest = calls[len(done) :]
    with world.saver() as saver:
        play(rest, saver)
    with world.saver() as reader:
        assert all_told(reader) == model_told(calls)
    assert world.compact().outcome == COMMITTED
    with world.saver() as reader:
        assert all_told(reader) == model_told(calls)


@pytest.mark.parametrize("fault", FAULTS)
def test_after_a_fault_at_any_request_of_a_saver_what_was_acknowledged_is_there_once(
    fault: Fault,
) -> None:
    for k in range(1 + FAULTS.index(fault), MAX_REQUESTS, 8):
        reached, _ = fault_in_saver_work(fault, k, retry=False, times=1)
        if not reached:
            assert k > 20
            return
    pytest.fail("the workload never ended")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_single_fault_at_any_request_of_a_saver_is_retried_and_not_seen(fault: Fault) -> None:
    for k in range(1 + FAULTS.index(fault), MAX_REQUESTS, 13):
        reached, acknowledged = fault_in_saver_work(fault, k, retry=True, times=1)
        assert len(acknowledged) == len([*workload()[0], *workload()[1]])
        if not reached:
            return
    pytest.fail("the workload never ended")


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.ACCESS_DENIED])
def test_an_outage_from_any_request_of_a_saver_on_loses_nothing_acknowledged(
    fault: Fault,
) -> None:
    for k in range(1, MAX_REQUESTS, 17):
        reached, _ = fault_in_saver_work(fault, k, retry=False, times=None)
        if not reached:
            return
    pytest.fail("the workload never ended")


def prepared() -> tuple[World, list[object]]:
    """A store with work for a job: late writes, a delete, garbage, large snapshots."""
    world = World()
    before, after = workload()
    with world.saver() as saver:
        play(before, saver)
    world.compact()
    with world.saver() as saver:
        play(after, saver)
    return world, model_told([*before, *after])


def run_jobs(world: World, objects: ObjectStore) -> list[str]:
    """Two jobs on one open store; how each of them ended."""
    store = world.store(objects=objects)
    outcomes = []
    for _ in range(2):
        try:
            report = Job(store, table(), default_serde()).run([0])
            outcomes.append(str(report.partitions[0].outcome))
        except LogStoreError as error:
            outcomes.append(type(error).__name__)
    return outcomes


def fault_in_jobs(fault: Fault, k: int, *, retry: bool, times: int | None) -> bool:
    world, wanted = prepared()
    try:
        faulty = FaultyStore(world.objects)
        store = retrying(faulty) if retry else faulty
        faulty.fail_at(k, fault, times=times)
        outcomes = run_jobs(world, store)
        if retry and times == 1:
            assert LOST not in outcomes
        for step in ("after the faults", "after late answers", "after a job", "after another"):
            with world.saver() as reader:
                assert all_told(reader) == wanted, f"request {k}, {step}"
            if step == "after the faults":
                faulty.heal()
                faulty.land()
            else:
                world.compact()
        assert not world.segments()
        return faulty.failed > 0
    finally:
        world.close()


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "objects"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_request_of_a_job_loses_and_doubles_nothing(
    fault: Fault, inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not inline:
        monkeypatch.setattr(compactor.publishing.large_values, "LARGE_BYTES", 64)
    for k in range(1 + FAULTS.index(fault), MAX_REQUESTS, 4 if inline else 7):
        if not fault_in_jobs(fault, k, retry=False, times=1):
            assert k > 15
            return
    pytest.fail("the jobs never ended")


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.DROPPED_ANSWER, Fault.LATE])
def test_a_single_fault_at_any_request_of_a_job_is_retried_and_the_job_commits(
    fault: Fault,
) -> None:
    for k in range(1, MAX_REQUESTS, 6):
        if not fault_in_jobs(fault, k, retry=True, times=1):
            return
    pytest.fail("the jobs never ended")


def test_an_outage_from_any_request_of_a_job_on_loses_nothing() -> None:
    for k in range(1, MAX_REQUESTS, 3):
        if not fault_in_jobs(Fault.ERROR, k, retry=False, times=None):
            return
    pytest.fail("the jobs never ended")


@pytest.mark.parametrize("status", [Fault.REFUSED, Fault.ACCESS_DENIED])
@pytest.mark.parametrize("method", ["list", "get", "get_if_changed", "get_range"])
def test_a_read_that_cannot_reach_its_data_raises_and_never_answers_with_less(
    world: World, status: Fault, method: str
) -> None:
    with world.saver() as saver:
        play(conversation(6), saver)
    world.compact()
    with world.saver() as saver:
        play(conversation(2, begin=6), saver)
    faulty = FaultyStore(world.objects)
    reader = world.saver(objects=retrying(faulty))
    if method == "get_if_changed":
        reader.get_tuple(config_of("talk"))
    reader.store.settings()
    faulty.fail_when(lambda m, key: m == method, status)
    with pytest.raises(LogStoreError):
        told(reader)
    faulty.heal()
    assert told(reader) == told(model_of(*conversation(8)))


def test_a_conflict_in_progress_is_looked_at_again_and_is_no_lost_race(world: World) -> None:
    # "Unknown" twice, then the store takes the PUT: acknowledged once, stored once.
    faulty = FaultyStore(world.objects)
    saver = world.saver(objects=retrying(faulty))
    saver.store.create()
    faulty.fail_when(is_segment_put, Fault.ERROR, times=2)
    play(conversation(0), saver)
    assert len(world.segments()) == 1
    world.agree(model_of(*conversation(0)))


def test_an_own_earlier_put_that_got_through_counts_as_stored(world: World) -> None:
    faulty = FaultyStore(world.objects)
    saver = world.saver(objects=retrying(faulty))
    saver.store.create()
    faulty.fail_when(is_segment_put, Fault.DROPPED_ANSWER, times=1)
    play(conversation(0), saver)
    assert len(world.segments()) == 1
    world.agree(model_of(*conversation(0)))


def test_a_buffered_write_that_could_not_be_stored_poisons_its_thread_and_no_other(
    world: World,
) -> None:
    faulty = FaultyStore(world.objects)
    saver = world.saver(objects=faulty, durability="buffered")
    play(conversation(2), saver)
    saver.flush()
    faulty.fail_when(is_segment_put, Fault.ERROR, times=1)
    script = Script(saver)
    script.run(conversation(1, begin=2))
    with pytest.raises(LogStoreError) if script.raised is None else nullcontext():
        saver.flush()
    with pytest.raises(LogStoreError, match=id_of(2)):
        conversation(1, begin=3)[0].apply(saver)
    other = conversation(2, thread="other")
    play(other, saver)
    saver.flush()
    world.agree(model_of(*conversation(2), *other), "talk", "other")
