"""A small world: one object store, savers and jobs on it, and a model that says what is right.

Conversations are driven by the calls that LangGraph makes (`put`, `put_writes`,
`delete_thread`), with a delta channel `messages` and a plain channel `note`. The model is
LangGraph's `InMemorySaver`, fed with the same calls; `told` is all that a saver tells of a
thread, and two savers agree if they tell the same.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from compactor.folding.channels import ChannelTable, default_serde, table_of
from compactor.job import Job, PartitionJob
from compactor.plan import Plan, make_plan
from compactor.report import Outcome, PartitionReport
from logstore import LogStoreSaver
from logstore.keys import log_prefix, partition_manifest_key, snapshot_manifest_key
from logstore.objects.base import ObjectStore
from logstore.objects.memory import MemoryObjectStore
from logstore.reader import until_stable
from logstore.store import LogStore, StoreOptions

K = 3
CHANNEL = "messages"
THREAD = "talk"
WAIT_S = 20.0


def append(state: list[Any], writes: Sequence[Any]) -> list[Any]:
    return [*state, *writes]


def channel(k: int = K) -> DeltaChannel[list[Any]]:
    return DeltaChannel(append, list, snapshot_frequency=k)


def table(k: int = K) -> ChannelTable:
    return table_of(channels={CHANNEL: channel(k)})


def config_of(thread: str, checkpoint_id: str | None = None) -> dict[str, Any]:
    configurable = {"thread_id": thread, "checkpoint_ns": ""}
    if checkpoint_id is not None:
        configurable["checkpoint_id"] = checkpoint_id
    return {"configurable": configurable}


# -- calls ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Put:
    """A checkpoint of a conversation: `step` updates of the delta channel lie behind it."""

    thread: str
    checkpoint_id: str
    parent: str | None
    step: int
    note: str = ""

    def apply(self, saver: BaseCheckpointSaver[str]) -> None:
        version = f"{self.step + 1:032}.{self.checkpoint_id}"
        versions = {"note": version}
        if self.step:
            versions[CHANNEL] = version
        checkpoint: Any = {
            "v": 4,
            "id": self.checkpoint_id,
            "ts": "2024-05-04T06:32:42+00:00",
            "channel_values": {"note": self.note or f"note of {self.checkpoint_id}"},
            "channel_versions": versions,
            "versions_seen": {},
            "updated_channels": None,
        }
        metadata: Any = {"source": "loop", "step": self.step, "parents": {}}
        if self.step:
            metadata["counters_since_delta_snapshot"] = {CHANNEL: (self.step, self.step)}
        saver.put(config_of(self.thread, self.parent), checkpoint, metadata, dict(versions))


@dataclass(frozen=True)
class Writes:
    """A task's writes at a checkpoint."""

    thread: str
    checkpoint_id: str
    values: tuple[Any, ...]
    task: str = "task"
    channel: str = CHANNEL

    def apply(self, saver: BaseCheckpointSaver[str]) -> None:
        writes = [(self.channel, value) for value in self.values]
        saver.put_writes(config_of(self.thread, self.checkpoint_id), writes, self.task, "~path")


@dataclass(frozen=True)
class Delete:
    """The deletion of a thread."""

    thread: str

    def apply(self, saver: BaseCheckpointSaver[str]) -> None:
        saver.delete_thread(self.thread)


Call = Put | Writes | Delete


def conversation(
    turns: int, thread: str = THREAD, begin: int = 0, prefix: str = "", size: int = 0
) -> list[Call]:
    """A root checkpoint, and for each turn a task's writes and the child that has them.

    Args:
        turns: how many turns.
        thread: the thread.
        begin: go on after so many turns; then there is no root.
        prefix: of the checkpoint ids.
        size: characters that each message has at least.
    """
    calls: list[Call] = [] if begin else [Put(thread, id_of(0, prefix), None, 0)]
    for step in range(begin + 1, begin + turns + 1):
        parent = id_of(step - 1, prefix)
        text = f"{thread} {prefix}{step}".ljust(size, ".")
        calls.append(Writes(thread, parent, (text, f"{text} too")))
        calls.append(Put(thread, id_of(step, prefix), parent, step))
    return calls


def id_of(step: int, prefix: str = "") -> str:
    return f"{prefix}{step:06d}"


def play(calls: Sequence[Call], *savers: BaseCheckpointSaver[str]) -> None:
    for call in calls:
        for saver in savers:
            call.apply(saver)


def model_of(*calls: Call) -> InMemorySaver:
    model = InMemorySaver()
    play(calls, model)
    return model


# -- what a saver tells ----------------------------------------------------------------


def value_at(saver: BaseCheckpointSaver[str], found: CheckpointTuple, config: Any) -> list[Any]:
    """The delta channel's value, as LangGraph rebuilds it."""
    stored = found.checkpoint["channel_values"].get(CHANNEL)
    if isinstance(stored, _DeltaSnapshot):
        return list(stored.value)
    history = saver.get_delta_channel_history(config=config, channels=[CHANNEL])[CHANNEL]
    rebuilt = channel().from_checkpoint(history.get("seed"))
    rebuilt.replay_writes(history["writes"])
    return list(rebuilt.get())


def head_value(saver: BaseCheckpointSaver[str], thread: str = THREAD) -> list[Any] | None:
    """The delta channel's value at the head; None without a head."""
    config = config_of(thread)
    found = saver.get_tuple(config)
    return None if found is None else value_at(saver, found, config)


def describe(saver: BaseCheckpointSaver[str], found: CheckpointTuple, config: Any) -> Any:
    parent = (found.parent_config or {}).get("configurable", {}).get("checkpoint_id")
    values = {k: v for k, v in found.checkpoint["channel_values"].items() if k != CHANNEL}
    return {
        "id": found.checkpoint["id"],
        "parent": parent,
        "values": values,
        "versions": dict(found.checkpoint["channel_versions"]),
        "messages": value_at(saver, found, config),
        "metadata": dict(found.metadata),
        "pending": list(found.pending_writes or ()),
    }


def told(
    saver: BaseCheckpointSaver[str], thread: str = THREAD, *, by_id: bool = True
) -> dict[str, Any]:
    """All that a saver tells of a thread: the head, and every checkpoint.

    Args:
        saver: the saver.
        thread: the thread.
        by_id: assert that each checkpoint that is listed is the same when read by its id.
    """
    config = config_of(thread)
    head = saver.get_tuple(config)
    listed = list(saver.list({"configurable": {"thread_id": thread}}))
    shown = [describe(saver, found, found.config) for found in listed]
    for one, found in zip(shown, listed if by_id else (), strict=by_id):
        again = saver.get_tuple(found.config)
        assert again is not None
        assert describe(saver, again, found.config) == one
    return {"head": None if head is None else describe(saver, head, config), "all": shown}


# -- the world -------------------------------------------------------------------------


@dataclass
class World:
    """One object store, and what was opened on it."""

    objects: ObjectStore = field(
        default_factory=lambda: MemoryObjectStore(f"protocol-{secrets.token_hex(8)}")
    )
    partitions: int = 1
    short_grace_s: float = 0.0
    long_grace_s: float = 0.0
    _open: list[LogStore] = field(default_factory=list)

    def store(
        self,
        wrap: Callable[[ObjectStore], ObjectStore] | None = None,
        *,
        objects: ObjectStore | None = None,
        **options: Any,
    ) -> LogStore:
        """Open a store of its own on the objects, or on what `wrap` makes of them."""
        base = objects or self.objects
        known = {
            "partitions": self.partitions,
            "short_grace_s": self.short_grace_s,
            "long_grace_s": self.long_grace_s,
            "io_threads": 4,
            **options,
        }
        store = LogStore(wrap(base) if wrap else base, StoreOptions(**known))
        self._open.append(store)
        return store

    def saver(
        self,
        wrap: Callable[[ObjectStore], ObjectStore] | None = None,
        *,
        objects: ObjectStore | None = None,
        durability: Any = "strict",
        **options: Any,
    ) -> LogStoreSaver:
        """Open a saver of its own."""
        return LogStoreSaver(self.store(wrap, objects=objects, **options), durability=durability)

    def compact(
        self, k: int = K, *, objects: ObjectStore | None = None, purge: bool = False
    ) -> PartitionReport:
        """Run one whole job on the first partition."""
        store = self.store(objects=objects)
        try:
            return Job(store, table(k), default_serde(), purge=purge).run([0]).partitions[0]
        finally:
            store.close()

    def planned(
        self, k: int = K, *, objects: ObjectStore | None = None, name: str | None = None
    ) -> PartitionJob:
        """A job that has planned, and done no more."""
        store = self.store(objects=objects)
        chosen = name or f"job{secrets.token_hex(4)}"
        return PartitionJob(store, plan(store), table(k), default_serde(), chosen)

    def agree(self, model: InMemorySaver, *threads: str) -> None:
        """Assert that a fresh reader tells of the threads what the model tells."""
        with self.saver() as reader:
            for thread in threads or (THREAD,):
                assert told(reader, thread) == told(model, thread)

    def keys(self, prefix: str = "") -> set[str]:
        """The keys of the objects that exist."""
        return {found.key for page in self.objects.list(prefix) for found in page.objects}

    def segments(self) -> set[str]:
        return self.keys(log_prefix(0))

    def snapshot_manifest(self, thread: str = THREAD) -> Any:
        store = self.store()
        try:
            return store.reader.snapshot_manifest(thread, 0).manifest
        finally:
            store.close()

    def close(self) -> None:
        for store in self._open:
            store.close()


def plan(store: LogStore) -> Plan:
    settings = store.settings()
    assert settings is not None
    return until_stable(lambda: make_plan(store, settings, 0))


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


# -- stepping --------------------------------------------------------------------------


class Running:
    """A call that runs in a thread of its own."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the call did not return"
        if self._error is not None:
            raise self._error
        return self._result


@contextmanager
def running(function: Callable[[], Any]) -> Iterator[Running]:
    call = Running(function)
    yield call
    call._thread.join(WAIT_S)


def is_partition_swap(method: str, key: str) -> bool:
    return method == "compare_and_swap" and key == partition_manifest_key(0)


def is_snapshot_swap(thread: str = THREAD) -> Callable[[str, str], bool]:
    wanted = snapshot_manifest_key(0, thread)
    return lambda method, key: method == "compare_and_swap" and key == wanted


def is_log_list(method: str, key: str) -> bool:
    return method == "list" and key == log_prefix(0)


def is_segment_put(method: str, key: str) -> bool:
    return method == "put_if_absent" and key.startswith(log_prefix(0))


COMMITTED, LOST, IDLE = Outcome.COMMITTED, Outcome.LOST, Outcome.IDLE
SPECIAL: Mapping[str, int] = WRITES_IDX_MAP


def written(world: World, calls: list[Call]) -> None:
    """Let a saver of its own make calls."""
    with world.saver() as saver:
        play(calls, saver)
