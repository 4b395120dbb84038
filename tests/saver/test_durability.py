"""What is durable when: the three acknowledgement modes, crashes, and writes that fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from logstore import (
    ClosedError,
    CommitUnknownError,
    InvalidOptionError,
    LogStoreError,
    LogStoreSaver,
    ThreadPoisonedError,
)
from logstore.objects.memory import MemoryObjectStore
from logstore.store import LogStore, StoreOptions
from logstore.testing.wrappers import CountingStore, Fault, FaultyStore, PausingStore
from tests.helpers import Place, Script, linear_graph, memory_place, thread

MODES = ["strict", "checkpoint", "buffered"]
modes = pytest.mark.parametrize("mode", MODES)
REPOSITORY = Path(__file__).parents[2]


def is_segment(method: str, key: str) -> bool:
    return method == "put_if_absent" and key.startswith("log/")


@pytest.fixture
def name() -> Iterator[str]:
    with memory_place() as found:
        yield found.uri.removeprefix("memory://")


def saver_on(objects: Any, mode: Any, **options: Any) -> LogStoreSaver:
    hold_s = 0.5 if mode == "checkpoint" else 0.0
    store = LogStore(objects, StoreOptions(**{"hold_s": hold_s, **options}))
    return LogStoreSaver(store, durability=mode)


def fresh(name: str) -> LogStoreSaver:
    return LogStoreSaver(LogStore(MemoryObjectStore(name)))


def pending(saver: LogStoreSaver, thread_id: str = "t") -> list[Any] | None:
    found = saver.get_tuple(thread(thread_id))
    return None if found is None else [value for _, _, value in found.pending_writes or ()]


# -- when a call returns ----------------------------------------------------------------------


@modes
def test_what_each_mode_has_made_durable_when_a_call_returns(name: str, mode: str) -> None:
    objects = PausingStore(MemoryObjectStore(name))
    with saver_on(objects, mode) as saver:
        script = Script([saver])
        first = script.put()
        saver.flush()
        with objects.hold(is_segment) as held:
            done = threading.Event()

            def write() -> None:
                script.write(first, "w")
                done.set()

            worker = threading.Thread(target=write)
            worker.start()
            if mode == "strict":
                held.wait_until_blocked()
                assert not done.wait(0.1)
            else:
                assert done.wait(5)
            held.release()
            worker.join()
        with objects.hold(is_segment) as held:
            done = threading.Event()

            def put() -> None:
                script.put(first)
                done.set()

            worker = threading.Thread(target=put)
            worker.start()
            if mode == "buffered":
                assert done.wait(5)
            else:
                held.wait_until_blocked()
                assert not done.wait(0.1)
            held.release()
            worker.join()
        if mode == "buffered":
            saver.flush()
        with fresh(name) as other:
            assert len(list(other.list(thread()))) == 2
            assert other.get_tuple(script.config(first)).pending_writes  # type: ignore[union-attr]


def test_a_checkpoints_put_makes_all_earlier_writes_of_its_thread_durable(name: str) -> None:
    with saver_on(MemoryObjectStore(name), "checkpoint") as saver:
        script = Script([saver])
        head = script.put()
        for number in range(5):
            for task in range(4):
                script.write(head, number, task, task=f"t{task}")
            with fresh(name) as other:
                assert pending(other) == []
            head = script.put(head)
            with fresh(name) as other:
                parent = list(other.list(thread()))[1]
                assert len(parent.pending_writes or ()) == 4


@pytest.mark.parametrize("channel", ["__error__", "__interrupt__", "__resume__", "__scheduled__"])
def test_in_checkpoint_mode_a_special_write_waits_with_all_before_and_after_it(
    name: str, channel: str
) -> None:
    with saver_on(MemoryObjectStore(name), "checkpoint", hold_s=30.0) as saver:
        script = Script([saver])
        at = script.put()
        script.write(at, "before", task="a")
        with fresh(name) as other:
            assert pending(other) == []
        script.writes(at, [(channel, "special")], "b")
        with fresh(name) as other:
            assert pending(other) == [["before"], "special"]
        script.write(at, "after", task="c")
        with fresh(name) as other:
            assert pending(other) == [["before"], "special", ["after"]]
        # Another checkpoint's writes go on without waiting.
        next_ = script.put(at)
        script.write(next_, "held", task="a")
        with fresh(name) as other:
            assert pending(other) == []


def test_acknowledged_writes_are_stored_soon_even_if_nothing_follows(name: str) -> None:
    with saver_on(MemoryObjectStore(name), "checkpoint", hold_s=0.05) as saver:
        script = Script([saver])
        at = script.put()
        script.write(at, "alone")
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            with fresh(name) as other:
                if pending(other):
                    break
            time.sleep(0.02)
        with fresh(name) as other:
            assert pending(other) == [["alone"]]


def test_checkpoint_mode_spends_one_put_a_superstep(name: str) -> None:
    objects = CountingStore(MemoryObjectStore(name))
    with saver_on(objects, "checkpoint") as saver:
        script = Script([saver])
        head = script.put()
        objects.reset()
        for _ in range(10):
            for task in range(3):
                script.write(head, "x", task=f"t{task}")
            head = script.put(head)
        puts = [r for r in objects.requests if is_segment(r.method, r.key)]
        # A slow machine may let the hold run out now and then.
        assert 10 <= len(puts) <= 12


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="strict"):
        LogStoreSaver.from_conn_string("memory://x", durability="eventually")  # type: ignore[arg-type]


# -- reading one's own writes --------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["checkpoint", "buffered"])
def test_a_process_reads_its_own_writes_before_they_are_stored(name: str, mode: str) -> None:
    objects = PausingStore(MemoryObjectStore(name))
    with saver_on(objects, mode, hold_s=0.0) as saver:
        script = Script([saver])
        first = script.put()
        script.put(first)
        saver.flush()
        with objects.hold(is_segment):
            ids = [first]
            for number in range(3):
                script.write(ids[-1], f"{number}", task="t9")
                if mode == "buffered":
                    ids.append(script.put(ids[-1]))
            found = saver.get_tuple(script.config(first))
            assert found is not None
            assert [value for _, _, value in found.pending_writes or ()][-1] != []
            listed = [t.checkpoint["id"] for t in saver.list(thread())]
            assert set(ids) <= set(listed)
            assert {t.checkpoint["id"] for t in saver.list(None)} == set(listed)
            if mode == "buffered":
                head = saver.get_tuple(thread())
                assert head is not None
                assert head.checkpoint["id"] == ids[-1]
                history = saver.get_delta_channel_history(config=thread(), channels=["d"])["d"]
                assert [value for _, _, value in history["writes"]] == [["0"], ["1"], ["2"]]
                with fresh(name) as other:
                    assert len(list(other.list(thread()))) == 2
        saver.flush()
        with fresh(name) as other:
            assert {t.checkpoint["id"] for t in other.list(thread())} >= set(ids)


@pytest.mark.parametrize("mode", ["checkpoint", "buffered"])
def test_own_writes_are_read_while_jobs_merge_what_was_stored(name: str, mode: str) -> None:
    place = Place(f"memory://{name}")
    with saver_on(MemoryObjectStore(name), mode) as saver:
        make = linear_graph(1000)
        graph = make(saver)
        for turn in range(8):
            live = graph.invoke({"delta": [turn], "plain": [turn]}, thread())
            place.compact(graph=make(None), frequency=3)
            state = graph.get_state(thread()).values
            assert state == live
            assert state["delta"] == state["plain"]


# -- writes that fail ------------------------------------------------------------------------------


def later_calls(saver: LogStoreSaver, script: Script, at: str) -> dict[str, Callable[[], Any]]:
    config = script.config(at)
    return {
        "put": lambda: script.put(at),
        "put_writes": lambda: script.write(at, "more", task="t9"),
        "get_tuple": lambda: saver.get_tuple(thread(script.thread_id)),
        "get_tuple by id": lambda: saver.get_tuple(config),
        "list": lambda: list(saver.list(thread(script.thread_id))),
        "history": lambda: saver.get_delta_channel_history(config=config, channels=["d"]),
        "delete_thread": lambda: saver.delete_thread(script.thread_id),
    }


CALLS = ["put", "put_writes", "get_tuple", "get_tuple by id", "list", "history", "delete_thread"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("mode", ["checkpoint", "buffered"])
def test_a_lost_acknowledged_write_poisons_its_thread_and_only_that(
    name: str, mode: str, call: str
) -> None:
    objects = FaultyStore(MemoryObjectStore(name))
    saver = saver_on(objects, mode, partitions=1)
    good, bad = Script([saver], thread_id="good"), Script([saver], thread_id="bad")
    good_head, bad_head = good.put(), bad.put()
    saver.flush()
    objects.fail_when(is_segment, Fault.REFUSED)
    bad.write(bad_head, "lost")
    with pytest.raises(LogStoreError):
        saver.flush()
    objects.heal()
    for _ in range(2):
        with pytest.raises(ThreadPoisonedError, match=f"(?s)'bad'.*{bad_head}"):
            later_calls(saver, bad, bad_head)[call]()
    later_calls(saver, good, good_head)[call]()
    saver.store.close()
    with fresh(name) as other:
        assert pending(other, "bad") == []
        bad_again = Script([other], thread_id="bad", _serial=50)
        bad_again.put(bad_head)


@pytest.mark.parametrize("call", ["put", "put_writes", "get_tuple"])
async def test_a_poisoned_thread_refuses_async_calls_too(name: str, call: str) -> None:
    objects = FaultyStore(MemoryObjectStore(name))
    saver = saver_on(objects, "buffered")
    script = Script([saver])
    at = script.put()
    saver.flush()
    objects.fail_when(is_segment, Fault.REFUSED)
    script.write(at, "lost")
    with pytest.raises(LogStoreError):
        await saver.aflush()
    objects.heal()
    with pytest.raises(ThreadPoisonedError):
        if call == "put":
            await saver.aput(*script.calls[at])
        elif call == "put_writes":
            await saver.aput_writes(script.config(at), [("d", 1)], "t")
        else:
            await saver.aget_tuple(thread())


def test_what_was_acknowledged_behind_a_lost_write_is_lost_with_it(name: str) -> None:
    objects = FaultyStore(PausingStore(MemoryObjectStore(name)))
    pausing = objects.inner
    assert isinstance(pausing, PausingStore)
    saver = saver_on(objects, "buffered", partitions=1)
    script, other = Script([saver]), Script([saver], thread_id="other")
    at, elsewhere = script.put(), other.put()
    saver.flush()
    with pausing.hold(lambda method, key: method == "put_if_absent") as held:
        script.write(at, "stored")
        held.wait_until_blocked()
        script.write(at, "lost", task="t2")
        objects.fail_when(is_segment, Fault.REFUSED, times=1)
        held.release()
        time.sleep(0.1)
        with pytest.raises(ThreadPoisonedError):
            for number in range(50):
                script.write(at, "never", task=f"u{number}")
                time.sleep(0.01)
    other.write(elsewhere, "fine")
    saver.store.close()
    with fresh(name) as again:
        assert pending(again) == [["stored"]]
        assert pending(again, "other") == [["fine"]]


@pytest.mark.parametrize("barrier", ["flush", "close"])
def test_a_barrier_tells_of_a_loss_that_happened_before_it(name: str, barrier: str) -> None:
    objects = FaultyStore(MemoryObjectStore(name))
    saver = saver_on(objects, "buffered")
    script = Script([saver])
    at = script.put()
    saver.flush()
    objects.fail_when(is_segment, Fault.REFUSED)
    script.write(at, "lost")
    deadline = time.monotonic() + 5
    while objects.failed == 0 and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.05)
    objects.heal()
    with pytest.raises(ThreadPoisonedError, match="'t'"):
        getattr(saver, barrier)()
    saver.store.close()


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.ERROR, Fault.DROPPED_ANSWER, Fault.LATE])
def test_in_strict_mode_a_failed_call_raises_and_the_thread_goes_on(
    name: str, fault: Fault
) -> None:
    objects = FaultyStore(MemoryObjectStore(name))
    with saver_on(objects, "strict") as saver:
        script = Script([saver])
        at = script.put()
        objects.fail_when(is_segment, fault, times=1)
        error = LogStoreError if fault is Fault.REFUSED else CommitUnknownError
        with pytest.raises(error):
            script.write(at, "perhaps")
        script.write(at, "certain", task="t2")
        objects.land()
        expected = [["certain"]]
        if fault in (Fault.DROPPED_ANSWER, Fault.LATE):
            expected.insert(0, ["perhaps"])
        for one in (saver, fresh(name)):
            assert pending(one) == expected


# -- barriers and bounds -----------------------------------------------------------------------------


@modes
@pytest.mark.parametrize("barrier", ["flush", "close", "with"])
def test_a_barrier_makes_everything_durable(name: str, mode: str, barrier: str) -> None:
    saver = saver_on(CountingStore(MemoryObjectStore(name), latency=0.005), mode)
    scripts = [Script([saver], thread_id=f"t{number}") for number in range(8)]
    for script in scripts:
        ids = script.chain(3)
        script.write(ids[-1], "last")
    if barrier == "with":
        with saver:
            pass
    else:
        getattr(saver, barrier)()
    with fresh(name) as other:
        for script in scripts:
            assert len(list(other.list(thread(script.thread_id)))) == 3
            assert pending(other, script.thread_id) == [["last"]]
    saver.close()


async def test_the_async_barriers_work_too(name: str) -> None:
    async with saver_on(MemoryObjectStore(name), "buffered") as saver:
        script = Script([saver])
        at = script.put()
        await saver.aflush()
        with fresh(name) as other:
            assert pending(other) == []
        script.write(at, "last")
    with fresh(name) as other:
        assert pending(other) == [["last"]]


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "dropped"])
def test_a_process_that_ends_without_a_barrier_still_stores_what_it_acknowledged(
    tmp_path: Path, kept: bool
) -> None:
    """Whether it still holds its savers or not."""
    run_python(ENDING, str(tmp_path), str(kept))
    for mode in ("checkpoint", "buffered"):
        with Place(f"file://{tmp_path}/{mode}").fresh() as saver:
            assert pending(saver) == [["last"]], mode


ENDING = """
import gc, sys
from logstore import LogStoreSaver
from tests.helpers import Script

savers = []

def run(mode):
    saver = LogStoreSaver.from_conn_string(
        f"file://{sys.argv[1]}/{mode}", durability=mode, compaction="off"
    )
    script = Script([saver])
    script.write(script.put(), "last")
    if sys.argv[2] == "True":
        savers.append(saver)

for mode in ("checkpoint", "buffered"):
    run(mode)
gc.collect()
"""


def test_a_full_buffer_makes_callers_wait(name: str) -> None:
    objects = PausingStore(MemoryObjectStore(name))
    with saver_on(objects, "buffered", max_buffered_bytes=20_000) as saver:
        script = Script([saver])
        at = script.put()
        saver.flush()
        written: list[int] = []

        def write() -> None:
            for number in range(20):
                script.write(at, "x" * 5_000, task=f"t{number:02}")
                written.append(number)

        with objects.hold(is_segment) as held:
            worker = threading.Thread(target=write)
            worker.start()
            held.wait_until_blocked()
            worker.join(0.5)
            assert worker.is_alive()
            assert 1 <= len(written) <= 5
            held.release()
            worker.join(10)
        assert written == list(range(20))
        assert len(pending(saver) or ()) == 20


@pytest.mark.parametrize("call", CALLS)
@modes
def test_a_closed_saver_refuses_every_call(name: str, mode: str, call: str) -> None:
    saver = saver_on(MemoryObjectStore(name), mode)
    script = Script([saver])
    at = script.put()
    calls = later_calls(saver, script, at)
    saver.close()
    saver.close()
    before = len(keys_of(name))
    with pytest.raises(ClosedError):
        calls[call]()
    assert len(keys_of(name)) == before


def keys_of(name: str) -> list[str]:
    return [info.key for page in MemoryObjectStore(name).list("") for info in page.objects]


def test_a_closed_saver_that_was_never_used_refuses_too(name: str) -> None:
    saver = saver_on(MemoryObjectStore(name), "strict")
    saver.close()
    with pytest.raises(ClosedError):
        saver.get_tuple(thread())


# -- crashes ------------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY)}


def run_python(script: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *args],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


WRITER = """
import sys
from logstore import LogStoreSaver
from tests.helpers import Script

root, mode = sys.argv[1:]
saver = LogStoreSaver.from_conn_string(f"file://{root}", durability=mode, compaction="off")
script, head = Script([saver]), None
for number in range(100_000):
    head = script.put(head)
    print("put", head, flush=True)
    for task in "ab":
        script.write(head, f"{head}{task}", task=task)
        print("write", f"{head}{task}", flush=True)
    if mode == "buffered" and number % 5 == 4:
        saver.flush()
        print("flush", head, flush=True)
"""


@modes
@pytest.mark.parametrize("after", [1, 50])
def test_what_was_promised_survives_a_kill_and_nothing_has_a_hole(
    tmp_path: Path, mode: str, after: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "store"), mode],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        for _ in range(after):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    with Place(f"file://{tmp_path}/store").fresh() as saver:
        found = sorted(saver.list(thread()), key=lambda t: t.checkpoint["id"])
    checkpoints = [t.checkpoint["id"] for t in found]
    writes = [[value[0] for _, _, value in t.pending_writes or ()] for t in found]
    lines = promised(mode, after)
    assert len(checkpoints) >= sum(kind == "put" for kind, _ in lines)
    assert sum(map(len, writes)) >= sum(kind == "write" for kind, _ in lines)
    # A prefix of what the process wrote: ids are consecutive, and only the end may lack writes.
    assert checkpoints == [f"1f0{number:05d}" for number in range(1, len(checkpoints) + 1)]
    for checkpoint_id, values in list(zip(checkpoints, writes, strict=True))[:-1]:
        assert values == [f"{checkpoint_id}a", f"{checkpoint_id}b"]
    if writes:
        assert writes[-1] == [f"{checkpoints[-1]}{task}" for task in "ab"][: len(writes[-1])]


def promised(mode: str, after: int) -> list[tuple[str, int]]:
    """Of the first lines that the writer printed, those that must be found again."""
    lines: list[tuple[str, int]] = []
    number = 0
    while len(lines) < after:
        lines += [("put", number), ("write", number), ("write", number)]
        if mode == "buffered" and number % 5 == 4:
            lines.append(("flush", number))
        number += 1
    lines = lines[:after]
    barrier = {"strict": None, "checkpoint": "put", "buffered": "flush"}[mode]
    if barrier is None:
        return lines
    last = max((at for at, (kind, _) in enumerate(lines) if kind == barrier), default=-1)
    return lines[: last + 1]


PAUSER = """
import os, signal, sys, time
from typing import Annotated, TypedDict
import operator
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from logstore import LogStoreSaver

root, mode, stop, order = sys.argv[1:5]
resume = len(sys.argv) > 5

class State(TypedDict, total=False):
    log: Annotated[list, operator.add]

def note(name):
    with open(f"{root}.log", "a") as file:
        file.write(name + "\\n")

def sibling(state):
    time.sleep(0.1 if order == "last" else 0)
    note("sibling")
    return {"log": ["sibling"]}

def stopper(state):
    time.sleep(0 if order == "last" else 0.1)
    note("stopper")
    if stop == "interrupt":
        return {"log": [interrupt("?")]}
    if not resume:
        raise ValueError("on purpose")
    return {"log": ["mended"]}

builder = StateGraph(State)
builder.add_node("sibling", sibling)
builder.add_node("stopper", stopper)
builder.add_edge(START, "sibling")
builder.add_edge(START, "stopper")
builder.add_edge("sibling", END)
builder.add_edge("stopper", END)
saver = LogStoreSaver.from_conn_string(f"file://{root}", durability=mode, compaction="off")
graph = builder.compile(checkpointer=saver)
config = {"configurable": {"thread_id": "t"}}
if resume:
    found = graph.invoke(Command(resume="answer") if stop == "interrupt" else None, config)
    print(sorted(found["log"]))
else:
    try:
        found = graph.invoke({"log": []}, config)
        assert found["__interrupt__"]
    except ValueError:
        pass
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("mode", "stop", "order"),
    # After an error nobody waits for a sibling that would be the last.
    [
        ("strict", "interrupt", "first"),
        ("checkpoint", "interrupt", "first"),
        ("checkpoint", "interrupt", "last"),
        ("checkpoint", "error", "first"),
    ],
)
def test_a_crash_after_a_stopped_step_runs_no_finished_sibling_again(
    tmp_path: Path, mode: str, stop: str, order: str
) -> None:
    args = [sys.executable, "-c", PAUSER, f"{tmp_path}/store", mode, stop, order]
    crashed = subprocess.run(args, env=environment(), timeout=60)
    assert crashed.returncode == -signal.SIGKILL
    resumed = subprocess.run(
        [*args, "resume"], env=environment(), timeout=60, capture_output=True, text=True
    )
    assert resumed.returncode == 0, resumed.stderr
    ran = (tmp_path / "store.log").read_text().split()
    assert ran.count("sibling") == 1
    assert ran.count("stopper") == 2
    answer = "answer" if stop == "interrupt" else "mended"
    assert resumed.stdout.strip() == str(sorted([answer, "sibling"]))
