"""How programs use a saver: copies and serdes, threads, loops and forks, and reading."""

from __future__ import annotations

import asyncio
import copy
import operator
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph

from logstore import LogStoreSaver
from logstore.objects.memory import MemoryObjectStore
from logstore.store import LogStore
from logstore.testing.wrappers import CountingStore
from tests.helpers import (
    Place,
    Script,
    append,
    assert_same_tuple,
    memory_place,
    thread,
)
from tests.saver.test_contract import D, Job, checkpoint, jobs, put

# -- versions, copies, serdes ---------------------------------------------------------------------------


@pytest.mark.parametrize("current", [None, 3, 3.0, "3", "00000000000000000000000000000003.5"])
def test_the_next_version_is_greater_and_never_clashes(place: Place, current: Any) -> None:
    saver = place.saver()
    found = {saver.get_next_version(current, None) for _ in range(100)}
    assert len(found) == 100
    for version in found:
        assert int(version.split(".")[0]) == (1 if current is None else 4)
        assert saver.get_next_version(version, None) > version


def test_a_copy_with_another_serde_works_beside_the_original(place: Place) -> None:
    from tests.compaction.test_fold import encrypted

    saver = place.saver()
    clone = copy.copy(saver)
    clone.serde = encrypted()
    put(saver, thread("open"), "1", x="readable")
    put(clone, thread("secret"), "1", x="hidden")
    assert clone.get_tuple(thread("secret")).checkpoint["channel_values"] == {"x": "hidden"}  # type: ignore[union-attr]
    assert saver.get_tuple(thread("open")).checkpoint["channel_values"] == {"x": "readable"}  # type: ignore[union-attr]
    with place.store() as store:
        bodies = b"".join(store.objects.get(key).data for key in place.keys("log/"))
    assert b"hidden" not in bodies
    with pytest.raises((ValueError, NotImplementedError)):
        saver.get_tuple(thread("secret"))


def test_an_allowlisted_clone_shares_the_store(place: Place) -> None:
    saver = place.saver(serde=JsonPlusSerializer(allowed_msgpack_modules=[]))
    clone = saver.with_allowlist([("tests.compaction.test_fold", "Note")])
    assert clone is not saver
    put(clone, thread(), "1", x=1)
    assert saver.get_tuple(thread()) is not None


# -- threads, loops, forks --------------------------------------------------------------------------------


def counting_graph(saver: Any) -> Any:
    class State(TypedDict, total=False):
        plain: Annotated[int, operator.add]
        delta: Annotated[list, DeltaChannel(append, snapshot_frequency=50)]

    builder = StateGraph(State)
    builder.add_node("work", lambda values: {"plain": 1, "delta": ["x"]})
    builder.add_edge(START, "work")
    builder.add_edge("work", END)
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("any_place", ["memory", "file"], indirect=True)
def test_twenty_four_threads_make_the_first_use_at_once(any_place: Place) -> None:
    if any_place.uri.startswith("memory"):
        MemoryObjectStore.forget(any_place.uri.removeprefix("memory://"))
    saver = any_place.saver()
    graph = counting_graph(saver)
    gate = threading.Barrier(24)

    def run(number: int) -> Any:
        gate.wait()
        return graph.invoke({"plain": 0}, thread(f"t{number}"))

    with ThreadPoolExecutor(24) as pool:
        assert [r["plain"] for r in pool.map(run, range(24))] == [1] * 24
    with any_place.fresh() as fresh:
        assert len({t.config["configurable"]["thread_id"] for t in fresh.list(None)}) == 24


def test_one_saver_serves_sync_and_async_callers_of_several_loops(place: Place) -> None:
    saver = place.saver()
    graph = counting_graph(saver)

    async def turns(name: str) -> int:
        for _ in range(2):
            await graph.ainvoke({"plain": 0}, thread(name))
        # The sync call, from the loop's own thread.
        graph.invoke({"plain": 0}, thread(name))
        found = [t async for t in saver.alist(thread(name), limit=2)]
        assert len(found) == 2
        state = await graph.aget_state(thread(name))
        return int(state.values["plain"])

    def loop(number: int) -> int:
        return asyncio.run(turns(f"loop{number}"))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(loop, range(4))) == [3] * 4
    assert graph.invoke({"plain": 0}, thread("loop0"))["plain"] == 4


async def test_async_calls_never_block_the_loop() -> None:
    with memory_place() as place:
        name = place.uri.removeprefix("memory://")
        objects = CountingStore(MemoryObjectStore(name), latency=0.3)
        saver = LogStoreSaver(LogStore(objects))
        beats = 0

        async def heart() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(0.01)
                beats += 1

        beating = asyncio.create_task(heart())
        await saver.aput(thread(ns=""), checkpoint("1", x=1), {"source": "loop"}, {"x": "1.1"})
        await saver.aput_writes(thread(ns="", checkpoint_id="1"), [("x", 2)], "t1")
        await saver.aget_tuple(thread())
        await saver.aget_delta_channel_history(config=thread(), channels=["x"])
        assert [t async for t in saver.alist(thread())]
        await saver.adelete_thread("t")
        beating.cancel()
        # At least eight round trips of 0.3 s; a loop that was blocked once misses 30 beats.
        assert beats > 8 * 20
        await saver.aclose()


async def test_a_cancelled_call_leaves_the_saver_usable(place: Place) -> None:
    saver = place.saver()
    for number in range(20):
        call = asyncio.ensure_future(
            saver.aput(
                thread(ns=""), checkpoint(f"{number:03}", x=number), {"source": "loop"}, {"x": "1"}
            )
        )
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    await saver.aput(thread(ns=""), checkpoint("999", x=1), {"source": "loop"}, {"x": "999.1"})
    found = await saver.aget_tuple(thread())
    assert found is not None
    assert found.checkpoint["id"] == "999"


FORK = """
import os, sys
from logstore import LogStoreSaver

uri, mode = sys.argv[1:]

def checkpoint(name):
    return {"v": 4, "id": name, "ts": "", "channel_values": {"x": name},
            "channel_versions": {"x": name + ".1"}, "versions_seen": {}, "updated_channels": None}

def put(saver, thread_id, name):
    config = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
    saver.put(config, checkpoint(name), {"source": "loop"}, {"x": name + ".1"})
    assert saver.get_tuple(config).checkpoint["id"] == name

saver = LogStoreSaver.from_conn_string(uri, compaction=mode)
for number in range(3):
    put(saver, "shared", f"1-{number}")
children = []
for child in range(3):
    pid = os.fork()
    if pid == 0:
        for number in range(3):
            put(saver, f"child{child}", f"2-{number}")
        saver.close()
        os._exit(0)
    children.append(pid)
for number in range(3):
    put(saver, "shared", f"2-{number}")
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
for number in range(3):
    put(saver, "shared", f"3-{number}")
saver.close()
print("done")
"""


@pytest.mark.parametrize("mode", ["off", "background"])
def test_a_forked_child_writes_and_reads_beside_its_parent(tmp_path: Path, mode: str) -> None:
    uri = f"file://{tmp_path}/store"
    done = subprocess.run(
        [sys.executable, "-c", FORK, uri, mode], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
    with Place(uri).fresh() as fresh:
        assert len(list(fresh.list(thread("shared")))) == 9
        for child in range(3):
            assert len(list(fresh.list(thread(f"child{child}")))) == 3


# -- reading ---------------------------------------------------------------------------------------------


def test_a_thousand_reads_write_nothing() -> None:
    with memory_place() as place:
        script = Script([place.saver()])
        ids = script.chain(12)
        place.compact(channels=D)
        script.write(ids[-1], "tail")
        objects = CountingStore(MemoryObjectStore(place.uri.removeprefix("memory://")))
        with LogStoreSaver(LogStore(objects)) as saver:
            for number in range(250):
                assert saver.get_tuple(thread()) is not None
                assert saver.get_tuple(script.config(ids[number % 12])) is not None
                assert saver.get_delta_channel_history(config=thread(), channels=["d"])
                assert len(list(saver.list(thread(), limit=1))) == 1
            assert saver.get_tuple(thread("nobody")) is None
            assert list(saver.list(thread("nobody"))) == []
            saver.flush()
        assert objects.counts.keys() <= {"get", "get_if_changed", "get_range", "list"}


def test_reading_a_store_that_does_not_exist_creates_nothing() -> None:
    name = "never-created"
    objects = CountingStore(MemoryObjectStore(name))
    with LogStoreSaver(LogStore(objects)) as saver:
        assert saver.get_tuple(thread()) is None
        assert list(saver.list(thread())) == list(saver.list(None)) == []
        history = saver.get_delta_channel_history(config=thread(), channels=["d"])
        assert history == {"d": {"writes": []}}
        assert saver.get_delta_channel_history(config=thread(), channels=[]) == {}
    assert objects.counts.keys() <= {"get", "list"}
    MemoryObjectStore.forget(name)


@jobs
def test_a_saver_reads_on_after_the_segments_it_wrote_were_merged_and_deleted(
    place: Place, job: Job
) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    head = None
    for _ in range(6):
        head = script.put(head)
        script.write(head, "x")
        job(place)
        for expected in model.list(thread()):
            assert_same_tuple(saver.get_tuple(expected.config), expected)
        assert len(list(saver.list(thread()))) == len(list(model.list(thread())))
    place.compact(channels=D)
    for _ in range(2):
        head = script.put(head)
        assert_same_tuple(saver.get_tuple(thread()), model.get_tuple(thread()))
        assert len(list(saver.list(thread()))) == len(list(model.list(thread())))
