"""Random schedules: every request of every process waits for its turn, drawn from a seed.

Two writers, two compactors, a deleter and two readers work on one partition without any
grace. One request at a time goes through, chosen at random among those that wait, with
weights that change now and then, so that a process may sleep while the others go on.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver

from compactor.folding.channels import default_serde
from compactor.job import Job
from logstore import LogStoreSaver
from logstore.objects.base import ObjectStore
from logstore.testing.wrapped import T, WrappedStore
from tests.protocol.world import (
    THREAD,
    Call,
    Put,
    World,
    Writes,
    config_of,
    head_value,
    model_of,
    table,
    value_at,
)

SEEDS = 200
CHUNK = 25
_SETTLE_S = 0.0001


@dataclass(eq=False)
class Waiting:
    actor: str
    method: str
    key: str
    turn: threading.Event = field(default_factory=threading.Event)


class Scheduler:
    """Lets one waiting request through at a time."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._waiting: list[Waiting] = []
        self._ended = False
        self._weights: dict[str, float] = {}
        self.steps: list[str] = []

    def wait(self, actor: str, method: str, key: str) -> None:
        request = Waiting(actor, method, key)
        with self._lock:
            if self._ended:
                return
            self._waiting.append(request)
        request.turn.wait()

    def run(self, actors: list[threading.Thread]) -> None:
        deadline = time.monotonic() + 30
        while any(actor.is_alive() for actor in actors):
            assert time.monotonic() < deadline, f"stuck after {self.steps[-20:]}"
            known = -1
            while known != len(self._waiting):
                known = len(self._waiting)
                time.sleep(_SETTLE_S)
            if known:
                self._let_one_through()
        self.end()

    def end(self) -> None:
        with self._lock:
            self._ended = True
            for request in self._waiting:
                request.turn.set()
            self._waiting.clear()

    def _let_one_through(self) -> None:
        if len(self.steps) % 12 == 0:
            self._weights.clear()
        with self._lock:
            ready = sorted(self._waiting, key=lambda r: (r.actor, r.method))
            weights = [
                self._weights.setdefault(r.actor, self._rng.choice([0.02, 1.0, 8.0])) for r in ready
            ]
            chosen = self._rng.choices(ready, weights)[0]
            self._waiting.remove(chosen)
        self.steps.append(f"{chosen.actor} {chosen.method} {chosen.key}")
        chosen.turn.set()


class SteppedStore(WrappedStore):
    """Every request waits for the scheduler."""

    def __init__(self, inner: ObjectStore, scheduler: Scheduler, actor: str) -> None:
        super().__init__(inner)
        self._scheduler = scheduler
        self._actor = actor

    def around(self, method: str, key: str, sent: int, answer: Callable[[], T]) -> T:
        """Carry out one request, in its turn."""
        self._scheduler.wait(self._actor, method, key)
        return answer()


class Simulation:
    """One seed's world, and the log of what was submitted and acknowledged."""

    def __init__(self, seed: int) -> None:
        self.world = World()
        self.scheduler = Scheduler(seed)
        self.rng = random.Random(seed)
        self.errors: list[BaseException] = []
        self.submitted: list[Call] = []
        self.acknowledged: list[Call] = []
        self.next_step = 1
        self.lock = threading.Lock()
        self.deletes_begun = 0
        self.deleted: list[tuple[set[str], set[str]]] = []
        """For each delete: the roots acknowledged before it began; submitted before it ended."""

    def saver(self, actor: str) -> LogStoreSaver:
        saver = self.world.saver(
            lambda objects: SteppedStore(objects, self.scheduler, actor), io_threads=2
        )
        saver.store._settings = self.settings
        saver.store._probed = True
        return saver

    def run(self) -> None:
        with self.world.saver() as first:
            self.settings = first.store.create()
            self.call(Put(THREAD, "000000", None, 0), first)
        actors: dict[str, Callable[[str], None]] = {
            "writer 1": self.write,
            "writer 2": self.write,
            "reader 1": self.read,
            "reader 2": self.read_anew,
            "job 1": self.compact,
            "job 2": self.compact,
            "deleter": self.delete,
        }
        threads = [
            threading.Thread(target=self._guarded, args=(function, name), daemon=True)
            for name, function in actors.items()
        ]
        for thread in threads:
            thread.start()
        try:
            self.scheduler.run(threads)
        finally:
            self.scheduler.end()
        if self.errors:
            raise self.errors[0]
        self.check_end()
        self.world.close()

    def _guarded(self, function: Callable[[str], None], name: str) -> None:
        try:
            function(name)
        except BaseException as error:
            self.errors.append(error)

    # -- the processes ---------------------------------------------------------------

    def call(self, call: Call, saver: LogStoreSaver) -> None:
        with self.lock:
            self.submitted.append(call)
        call.apply(saver)
        with self.lock:
            self.acknowledged.append(call)

    def write(self, name: str) -> None:
        saver = self.saver(name)
        for turn in range(2):
            config = config_of(THREAD)
            head = saver.get_tuple(config)
            assert head is not None
            parent = head.checkpoint["id"]
            step = int(head.metadata["step"]) + 1
            with self.lock:
                checkpoint_id = f"{self.next_step:06d}"
                self.next_step += 1
            text = f"{name} {turn}"
            self.call(Writes(THREAD, parent, (text,), task=text), saver)
            self.call(Put(THREAD, checkpoint_id, parent, step), saver)
            self.call(Put("gone", f"{name} {turn}", None, 0), saver)

    def look(self, saver: LogStoreSaver) -> None:
        with self.lock:
            before = list(self.acknowledged)
        found = saver.get_tuple(config_of(THREAD))
        assert found is not None
        config = found.config
        newest = max(c.checkpoint_id for c in before if isinstance(c, Put) and c.thread == THREAD)
        assert found.checkpoint["id"] >= newest
        value = value_at(saver, found, config)
        with self.lock:
            after = list(self.submitted)
        path = self._ancestors(after, found.checkpoint["id"])
        assert self._written(before, path) <= set(value) <= self._written(after, path)
        assert len(value) == len(set(value))

    @staticmethod
    def _ancestors(calls: list[Call], checkpoint_id: str) -> set[str]:
        parents = {c.checkpoint_id: c.parent for c in calls if isinstance(c, Put)}
        path: set[str] = set()
        current = parents[checkpoint_id]
        while current is not None:
            path.add(current)
            current = parents[current]
        return path

    @staticmethod
    def _written(calls: list[Call], path: set[str]) -> set[Any]:
        return {
            v for c in calls if isinstance(c, Writes) and c.checkpoint_id in path for v in c.values
        }

    def read(self, name: str) -> None:
        saver = self.saver(name)
        for _ in range(2):
            self.look(saver)
            self.look_at_deleted(saver)

    def read_anew(self, name: str) -> None:
        for number in range(1):
            saver = self.saver(f"{name}.{number}")
            self.look(saver)

    def look_at_deleted(self, saver: LogStoreSaver) -> None:
        with self.lock:
            hidden, shown = self._deleted()
            begun = self.deletes_begun
        found = {t.checkpoint["id"] for t in saver.list(config_of("gone"))}
        assert not hidden & found
        with self.lock:
            if self.deletes_begun == begun:
                assert shown <= found

    def _deleted(self) -> tuple[set[str], set[str]]:
        """The roots that must be hidden, and those that are shown unless a delete begins."""
        hidden = {root for before, _ in self.deleted for root in before}
        maybe = {root for _, until in self.deleted for root in until}
        if len(self.deleted) < self.deletes_begun:
            return hidden, set()
        return hidden, self._roots(self.acknowledged) - maybe

    @staticmethod
    def _roots(calls: list[Call]) -> set[str]:
        return {c.checkpoint_id for c in calls if isinstance(c, Put) and c.thread == "gone"}

    def delete(self, name: str) -> None:
        saver = self.saver(name)
        for _ in range(2):
            with self.lock:
                before = self._roots(self.acknowledged)
                self.deletes_begun += 1
            saver.delete_thread("gone")
            with self.lock:
                self.deleted.append((before, self._roots(self.submitted)))

    def compact(self, name: str) -> None:
        saver = self.saver(name)
        for _ in range(2):
            Job(saver.store, table(), default_serde()).run([0])

    # -- the end -----------------------------------------------------------------------

    @staticmethod
    def _values(saver: BaseCheckpointSaver[str]) -> dict[str, list[Any]]:
        """The delta channel's value at every checkpoint, by id."""
        shown = list(saver.list(config_of(THREAD)))
        return {t.checkpoint["id"]: value_at(saver, t, t.config) for t in shown}

    def check_end(self) -> None:
        talk = model_of(*(c for c in self.acknowledged if c.thread == THREAD))
        with self.world.saver() as reader:
            assert head_value(reader) == head_value(talk)
        for _ in range(3):
            self.world.compact()
        with self.world.saver() as reader:
            assert self._values(reader) == self._values(talk)
            hidden, shown = self._deleted()
            found = {t.checkpoint["id"] for t in reader.list(config_of("gone"))}
            assert shown <= found
            assert not hidden & found
        assert not self.world.segments()


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again waits for its turn; it need not sleep as well."""
    monkeypatch.setattr("logstore.reader.random.uniform", lambda low, high: 0.0)


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("begin", range(0, SEEDS, CHUNK))
def test_in_any_schedule_what_was_acknowledged_is_visible_and_equals_the_model(
    begin: int,
) -> None:
    for seed in range(begin, begin + CHUNK):
        simulation = Simulation(seed)
        try:
            simulation.run()
        except BaseException as error:
            steps = "\n".join(simulation.scheduler.steps[-60:])
            raise AssertionError(f"seed {seed}: {error!r}, after\n{steps}") from error
