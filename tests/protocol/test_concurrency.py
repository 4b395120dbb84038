"""Many writers, readers and jobs at once: none lost, none doubled, nothing left over."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import compactor.publishing.publish
from compactor.folding.channels import default_serde
from compactor.job import Job
from compactor.publishing.publish import LostJob
from logstore import LogStoreSaver
from logstore.keys import partition_manifest_key
from logstore.manifest import PartitionManifest
from logstore.objects.file import FileObjectStore
from logstore.store import LogStore, StoreOptions
from logstore.testing.wrappers import PausingStore
from tests.protocol.world import (
    CHANNEL,
    COMMITTED,
    THREAD,
    Call,
    Put,
    World,
    Writes,
    config_of,
    conversation,
    head_value,
    id_of,
    is_partition_swap,
    model_of,
    play,
    running,
    table,
)


def in_threads(*functions: Callable[[], None]) -> None:
    """Run functions at once; the first error of any of them is raised."""
    errors: list[BaseException] = []

    def run(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def appends(saver: LogStoreSaver, name: str, count: int) -> None:
    """Append to the one thread: tasks of one step, each with a value of its own."""
    for number in range(count):
        Writes(THREAD, id_of(0), (f"{name} {number}",), task=f"{name} {number:03d}").apply(saver)


def assert_all_once(saver: LogStoreSaver, names: list[str], count: int) -> None:
    found = saver.get_tuple(config_of(THREAD, id_of(0)))
    assert found is not None
    values = sorted(value for _, _, value in found.pending_writes or ())
    assert values == sorted(f"{name} {number}" for name in names for number in range(count))


@pytest.mark.parametrize("durability", ["strict", "buffered"])
def test_eight_threads_append_fifty_times_each_to_one_thread_and_none_is_lost_or_doubled(
    world: World, durability: str
) -> None:
    saver = world.saver(durability=durability)
    Put(THREAD, id_of(0), None, 0).apply(saver)
    names = [f"writer {number}" for number in range(8)]
    in_threads(*(lambda n=name: appends(saver, n, 50) for name in names), world.compact)
    assert_all_once(saver, names, 50)
    saver.flush()
    Put(THREAD, id_of(1), id_of(0), 1).apply(saver)
    saver.flush()
    for _ in range(3):
        with world.saver() as reader:
            assert_all_once(reader, names, 50)
            value = head_value(reader) or []
            assert len(value) == len(set(value)) == 400
        world.compact()


def append_in_a_process(root: str, name: str, count: int) -> None:
    store = LogStore(FileObjectStore(root), StoreOptions(partitions=1))
    with LogStoreSaver(store) as saver:
        appends(saver, name, count)


def test_four_processes_append_to_one_thread_of_a_file_store_and_none_is_lost_or_doubled(
    tmp_path: Path,
) -> None:
    world = World(FileObjectStore(tmp_path))
    saver = world.saver()
    Put(THREAD, id_of(0), None, 0).apply(saver)
    names = [f"process {number}" for number in range(4)]
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=append_in_a_process, args=(str(tmp_path), name, 25))
        for name in names
    ]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes):
        world.compact()
        time.sleep(0.05)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    for _ in range(3):
        with world.saver() as reader:
            assert_all_once(reader, names, 25)
        world.compact()
    world.close()


# -- compactors at once, without any grace ---------------------------------------------


class Beside:
    """Writers, readers and compactors at once on one store, everything looked at all the time."""

    def __init__(self, world: World, threads: int, times: int) -> None:
        """Go on until each thread had so many turns, and as many jobs ran."""
        self._world = world
        self._threads = threads
        self._times = times
        self._end = time.monotonic() + 90
        self.turns: dict[str, int] = {}
        self.jobs = 0

    def _going(self) -> bool:
        counts = [self.jobs, *self.turns.values()]
        done = len(self.turns) == self._threads and min(counts) >= self._times
        return not done and time.monotonic() < self._end

    def write(self, thread: str) -> None:
        saver = self._world.saver()
        turn = 0
        play(conversation(0, thread), saver)
        self.turns[thread] = 0
        while self._going():
            play(conversation(1, thread, begin=turn), saver)
            turn += 1
            self.turns[thread] = turn
            time.sleep(0.04)

    def read(self, *, anew: bool) -> None:
        reader = self._world.saver()
        while self._going():
            if anew:
                reader.store.close()
                reader = self._world.saver()
            for thread in list(self.turns):
                self._look(reader, thread)

    def _look(self, reader: LogStoreSaver, thread: str) -> None:
        acknowledged = self.turns[thread]
        found = reader.get_tuple(config_of(thread))
        assert found is not None
        step = int(found.checkpoint["id"])
        assert step >= acknowledged
        value = head_value(reader, thread)
        assert value in (expected(thread, s) for s in range(step, self.turns[thread] + 2))
        below = max(0, acknowledged - 4)
        old = reader.get_delta_channel_history(
            config=config_of(thread, id_of(below)), channels=[CHANNEL]
        )[CHANNEL]
        seed = getattr(old.get("seed"), "value", [])
        assert [*seed, *(v for _, _, v in old["writes"])] == expected(thread, below)
        assert len(list(reader.list(config_of(thread)))) > acknowledged

    def compact(self) -> None:
        store = self._world.store()
        while self._going():
            Job(store, table(), default_serde()).run([0])
            self.jobs += 1


def expected(thread: str, step: int) -> list[Any]:
    return [
        text
        for number in range(1, step + 1)
        for text in (f"{thread} {number}", f"{thread} {number} too")
    ]


def test_two_compactors_without_graces_beside_writers_and_readers_lose_and_double_nothing(
    world: World,
) -> None:
    beside = Beside(world, threads=2, times=25)
    in_threads(
        lambda: beside.write("one"),
        lambda: beside.write("two"),
        lambda: beside.read(anew=True),
        lambda: beside.read(anew=False),
        beside.compact,
        beside.compact,
    )
    assert beside.jobs >= 25
    for thread, turns in beside.turns.items():
        assert turns >= 25
        world.compact()
        world.agree(model_of(*conversation(turns, thread)), thread)


# -- garbage ----------------------------------------------------------------------------


def left_over(world: World, *threads: str) -> set[str]:
    """The objects that no manifest names."""
    key = partition_manifest_key(0)
    manifest = PartitionManifest.decode(key, world.objects.get(key).data)
    named = {run.key for run in manifest.runs} | manifest.retired.keys() | manifest.merged.keys()
    for thread in threads:
        snapshot = world.snapshot_manifest(thread)
        named |= {*snapshot.object_keys, *snapshot.retired}
    stored = world.keys("log/") | world.keys("runs/") | world.keys("snapshots/")
    return {key for key in stored if not key.endswith("manifest")} - named


def a_race_lost(world: World, calls: list[Call]) -> None:
    """A job publishes and uploads; before it commits another one commits, and collects."""
    pausing = PausingStore(world.objects)
    loser = world.planned(objects=pausing)
    with pausing.hold(is_partition_swap) as commit, running(loser.run) as losing:
        commit.wait_until_blocked()
        assert world.compact().outcome == COMMITTED
        world.compact()
        world.agree(model_of(*calls))
        commit.release()
        with pytest.raises(LostJob):
            losing.result()
    world.agree(model_of(*calls))


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "objects"])
def test_ten_lost_races_in_a_row_delete_no_live_object_and_leave_none_over(
    world: World, inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not inline:
        monkeypatch.setattr(compactor.publishing.large_values, "LARGE_BYTES", 64)
    calls: list[Call] = []
    for number in range(10):
        more = conversation(2, begin=2 * number)
        with world.saver() as saver:
            play(more, saver)
        calls += more
        a_race_lost(world, calls)
    more = conversation(1, begin=20)
    with world.saver() as saver:
        play(more, saver)
    for _ in range(3):
        world.compact(purge=True)
    world.agree(model_of(*calls, *more))
    assert not world.segments()
    assert left_over(world, THREAD) == set()


def test_lost_races_for_a_snapshot_manifest_leave_no_object_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compactor.publishing.large_values, "LARGE_BYTES", 64)
    calls: list[Call] = []
    for number in range(3):
        more = conversation(4, begin=4 * number)
        with world.saver() as saver:
            play(more, saver)
        calls += more
        pausing = PausingStore(world.objects)
        loser = world.planned(objects=pausing)
        with (
            pausing.hold(lambda m, k: m == "compare_and_swap" and "snapshots/" in k) as swap,
            running(loser.run) as losing,
        ):
            swap.wait_until_blocked()
            world.compact()
            swap.release()
            with pytest.raises(LostJob):
                losing.result()
    with world.saver() as saver:
        play(conversation(1, begin=12), saver)
    for _ in range(3):
        world.compact(purge=True)
    world.agree(model_of(*calls, *conversation(1, begin=12)))
    assert left_over(world, THREAD) == set()
