"""Stores, twin graphs and comparisons that the tests of the saver and the compactor share."""

# No `from __future__ import annotations`: LangGraph evaluates the annotations of states,
# which name things that only the function around them knows.

import operator
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Self, TypedDict

from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from compactor import Report, compact
from logstore import LogStoreSaver
from logstore.objects.memory import MemoryObjectStore
from logstore.records import Record
from logstore.store import LogStore, StoreOptions
from logstore.testing.servers import BUCKET

Config = dict[str, Any]


def thread(thread_id: str = "t", ns: str | None = None, checkpoint_id: str | None = None) -> Config:
    """A config that addresses a thread, or a checkpoint of it."""
    configurable = {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}
    return {"configurable": {k: v for k, v in configurable.items() if v is not None}}


# -- stores --------------------------------------------------------------------------


@dataclass
class Place:
    """One test's store. Each saver from here is as good as one in a new process."""

    uri: str
    backend: Mapping[str, Any] = field(default_factory=dict)
    _opened: list[LogStoreSaver] = field(default_factory=list)

    def create(self, **options: Any) -> Self:
        """Create the store with options of `StoreOptions`."""
        with self.store(**options) as store:
            store.create()
        return self

    @contextmanager
    def store(self, **options: Any) -> Iterator[LogStore]:
        """A fresh look at the store."""
        store = LogStore.open(self.uri, StoreOptions(**options), **self.backend)
        try:
            yield store
        finally:
            store.close()

    def saver(self, of: type[LogStoreSaver] = LogStoreSaver, **options: Any) -> LogStoreSaver:
        """A fresh saver, closed at the end of the test."""
        options = {"compaction": "off", **self.backend, **options}
        saver = of.from_conn_string(self.uri, **options)
        self._opened.append(saver)
        return saver

    @contextmanager
    def fresh(self, **options: Any) -> Iterator[LogStoreSaver]:
        """A fresh saver for one block."""
        with LogStoreSaver.from_conn_string(
            self.uri, compaction="off", **self.backend, **options
        ) as saver:
            yield saver

    def compact(self, **how: Any) -> Report:
        """Run one compaction job."""
        return compact(self.uri, **self.backend, **how)

    def snapshots(self) -> set[tuple[str, str, str, str]]:
        """Thread, namespace, checkpoint and channel of the valid snapshots in the runs."""
        return {
            (r.thread_id, r.checkpoint_ns, r.checkpoint_id, r.channel or "")
            for r in self.run_records()
            if r.kind == "snapshot" and r.encoding != "void"
        }

    def run_records(self) -> list[Record]:
        """All records in the live runs, values read."""
        from logstore.records import merge
        from logstore.segment import table_to_records

        found: list[Record] = []
        with self.store() as store:
            settings = store.settings()
            for partition in range(settings.partitions if settings else 0):
                manifest, _ = store.reader.partition_manifest(partition)
                for run in manifest.runs:
                    for table in store.runs.batches(run, 1 << 20):
                        found += table_to_records(table)
        return list(merge(found).values())

    def keys(self, prefix: str = "") -> list[str]:
        """The objects' keys."""
        with self.store() as store:
            return [info.key for page in store.objects.list(prefix) for info in page.objects]

    def close(self) -> None:
        """Close the savers."""
        for saver in self._opened:
            saver.close()


@contextmanager
def memory_place(**options: Any) -> Iterator[Place]:
    """A store in memory with one partition, forgotten at the end."""
    name = f"test-{secrets.token_hex(6)}"
    place = Place(f"memory://{name}").create(**{"partitions": 1, **options})
    try:
        yield place
    finally:
        place.close()
        MemoryObjectStore.forget(name)


def s3_uri() -> str:
    """A prefix of its own in the servers' bucket."""
    return f"s3://{BUCKET}/test-{secrets.token_hex(6)}"


class CompactingSaver(LogStoreSaver):
    """Runs a compaction job after every write: at every point where one can run."""

    how: Mapping[str, Any] = {}
    """The job's options; without a graph it merges only."""

    def _compact(self) -> None:
        compact(self.store, **self.how)

    def put(self, *args: Any, **kwargs: Any) -> Any:
        done = super().put(*args, **kwargs)
        self._compact()
        return done

    # LangGraph looks at the signature for `task_path`.
    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        super().put_writes(config, writes, task_id, task_path)
        self._compact()

    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        done = await super().aput(*args, **kwargs)
        await self._call(self._compact)
        return done

    async def aput_writes(
        self, config: Any, writes: Any, task_id: str, task_path: str = ""
    ) -> None:
        await super().aput_writes(config, writes, task_id, task_path)
        await self._call(self._compact)


# -- twin graphs ---------------------------------------------------------------------


def append(state: list[Any], writes: Sequence[Any]) -> list[Any]:
    """The delta channels' reducer: order counts, batches do not."""
    return state + [item for write in writes for item in write]


def concat(state: list[Any], write: list[Any]) -> list[Any]:
    """The same, one write at a time, for a plain reducer channel."""
    return state + write


def twin_state(k: int) -> Any:
    """A state with a delta channel, its plain twin, and a channel of its own."""

    class State(TypedDict, total=False):
        delta: Annotated[list, DeltaChannel(append, snapshot_frequency=k)]
        plain: Annotated[list, concat]
        other: Annotated[int, operator.add]

    return State


def both(*items: Any) -> dict[str, Any]:
    """One write to the delta channel and the same to its twin."""
    return {"delta": list(items), "plain": list(items)}


Make = Callable[[BaseCheckpointSaver[Any] | None], Any]


def linear_graph(k: int, **compiled: Any) -> Make:
    """`START -> work -> END`: the input, and an answer to it."""
    state = twin_state(k)

    def work(values: Any) -> Any:
        return {**both(f"answer {len(values['plain'])}"), "other": 1}

    builder = StateGraph(state)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    builder.add_edge("work", END)
    return lambda saver: builder.compile(checkpointer=saver, **compiled)


def parallel_graph(k: int, tasks: int = 6, pause_s: float = 0.004) -> Make:
    """Tasks that finish in reverse order, then one that joins them."""
    state = twin_state(k)
    builder = StateGraph(state)

    def task(number: int) -> Callable[[Any], Any]:
        def run(values: Any) -> Any:
            time.sleep((tasks - number) * pause_s)
            return both(f"{len(values['plain'])}:{number}")

        return run

    def join(values: Any) -> Any:
        return both(f"join {len(values['plain'])}")

    builder.add_node("join", join)
    for number in range(tasks):
        builder.add_node(f"n{number}", task(number))
        builder.add_edge(START, f"n{number}")
        builder.add_edge(f"n{number}", "join")
    builder.add_edge("join", END)
    return lambda saver: builder.compile(checkpointer=saver)


def send_graph(k: int, tasks: int = 6, pause_s: float = 0.004) -> Make:
    """The same with `Send`: task paths of another form."""
    state = twin_state(k)
    builder = StateGraph(state)

    def work(arg: Any) -> Any:
        time.sleep((tasks - arg["number"]) * pause_s)
        return both(f"sent {arg['number']}")

    def fan_out(values: Any) -> list[Send]:
        return [Send("work", {"number": number}) for number in range(tasks)]

    builder.add_node("work", work)
    builder.add_conditional_edges(START, fan_out, ["work"])
    builder.add_edge("work", END)
    return lambda saver: builder.compile(checkpointer=saver)


def assert_twins(place: Place, make: Make, config: Config, live: Any = None) -> int:
    """Compare twins in the live result, the state and the whole history.

    Returns:
        The number of checkpoints.
    """
    bare = thread(config["configurable"]["thread_id"])
    if live is not None:
        assert live["delta"] == live["plain"]
    with place.fresh() as saver:
        state = make(saver).get_state(bare).values
        assert state.get("delta", []) == state.get("plain", [])
        if live is not None:
            assert state["plain"] == live["plain"]
    with place.fresh() as saver:
        history = list(make(saver).get_state_history(bare))
    for entry in history:
        assert entry.values.get("delta", []) == entry.values.get("plain", []), entry.config
    # Every entry by itself costs a process's start each; a sample stands for a long history.
    for entry in history[:: 1 + len(history) // 4]:
        with place.fresh() as saver:
            again = make(saver).get_state(entry.config).values
        assert again.get("delta", []) == again.get("plain", []), entry.config
        assert again == entry.values
    return len(history)


# -- comparing savers ------------------------------------------------------------------

ADDRESS = ("thread_id", "checkpoint_ns", "checkpoint_id")


def without_made_snapshots(values: Mapping[str, Any], inline: Mapping[str, Any]) -> dict[str, Any]:
    """Channel values without the snapshots that only the compactor made."""
    return {
        channel: value
        for channel, value in values.items()
        if channel in inline or not isinstance(value, _DeltaSnapshot)
    }


def assert_same_tuple(found: CheckpointTuple | None, expected: CheckpointTuple | None) -> None:
    """Field by field, but for the snapshots that the compactor made."""
    assert (found is None) == (expected is None)
    if found is None or expected is None:
        return
    # `InMemorySaver` gives the caller's config back, with whatever else was in it.
    place = {key: expected.config["configurable"].get(key, "") for key in ADDRESS}
    assert found.config == {"configurable": place}
    inline = expected.checkpoint["channel_values"]
    values = without_made_snapshots(found.checkpoint["channel_values"], inline)
    assert {**found.checkpoint, "channel_values": values} == dict(expected.checkpoint)
    assert found.metadata == expected.metadata
    assert found.parent_config == expected.parent_config
    assert found.pending_writes == expected.pending_writes


def rebuilt(
    saver: BaseCheckpointSaver[Any], config: Config, channels: Mapping[str, DeltaChannel]
) -> dict[str, Any]:
    """The delta channels' values at a checkpoint, as LangGraph rebuilds them."""
    found = saver.get_tuple(config)
    assert found is not None
    stored = found.checkpoint["channel_values"]
    versions = found.checkpoint["channel_versions"]
    wanted = [c for c in channels if c in versions and c not in stored]
    histories = saver.get_delta_channel_history(config=config, channels=wanted) if wanted else {}
    values: dict[str, Any] = {}
    for name, spec in channels.items():
        if name in histories:
            channel = spec.from_checkpoint(histories[name].get("seed"))
            channel.replay_writes(histories[name]["writes"])
        else:
            channel = spec.from_checkpoint(stored.get(name))
        values[name] = channel.get()
    return values


# -- scripted calls --------------------------------------------------------------------


@dataclass
class Script:
    """The calls that a graph with a delta channel `d` and a plain one `x` would make.

    They go to every saver given, so that one can be the model of the other.
    """

    savers: Sequence[BaseCheckpointSaver[Any]]
    thread_id: str = "t"
    ns: str = ""
    _serial: int = 0
    _known: dict[str, tuple[dict[str, str], int, int]] = field(default_factory=dict)
    calls: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def config(self, checkpoint_id: str | None = None) -> Config:
        """The config of a checkpoint, or of the thread."""
        return thread(self.thread_id, self.ns, checkpoint_id)

    def next_id(self) -> str:
        """The id of a checkpoint that is still to be put."""
        self._serial += 1
        return f"1f0{self._serial:05d}"

    def put(
        self,
        parent: str | None = None,
        *,
        at: str | None = None,
        updates: Sequence[str] = ("d",),
        values: Mapping[str, Any] | None = None,
        **metadata: Any,
    ) -> str:
        """Put a checkpoint below `parent` that saw writes to the channels `updates`."""
        at = at or self.next_id()
        versions, u, t = self._known.get(parent or "", ({}, 0, 0))
        versions = dict(versions)
        for channel in updates:
            versions[channel] = self.savers[0].get_next_version(versions.get(channel), None)
        u, t = (0, 0) if "d" in (values or {}) else (u + ("d" in updates), t + 1)
        if (u, t) != (0, 0) and "d" in versions:
            metadata.setdefault("counters_since_delta_snapshot", {"d": (u, t)})
        checkpoint = {
            "v": 4,
            "id": at,
            "ts": "2026-01-01T00:00:00+00:00",
            "channel_values": dict(values or {}),
            "channel_versions": versions,
            "versions_seen": {},
            "updated_channels": sorted(updates),
        }
        full = {"source": "loop", "step": self._serial, "parents": {}, **metadata}
        new = {ch: versions[ch] for ch in updates}
        self.calls[at] = (self.config(parent), checkpoint, full, new)
        self._known[at] = (versions, u, t)
        self.again(at)
        return at

    def again(self, at: str) -> None:
        """Repeat a put."""
        for saver in self.savers:
            saver.put(*self.calls[at])

    def write(self, at: str, *items: Any, task: str = "t1", path: str = "", to: str = "d") -> None:
        """Put one write of a task at a checkpoint."""
        self.writes(at, [(to, list(items))], task, path)

    def writes(self, at: str, writes: Sequence[Any], task: str = "t1", path: str = "") -> None:
        """Put a task's writes at a checkpoint."""
        for saver in self.savers:
            saver.put_writes(self.config(at), writes, task, path)

    def chain(self, length: int, parent: str | None = None) -> list[str]:
        """Checkpoints in a row, each but the last with one write."""
        found: list[str] = []
        for number in range(length):
            parent = self.put(parent)
            found.append(parent)
            if number < length - 1:
                self.write(parent, f"{parent}-{number}")
        return found
