"""The saver and the compactor against LangGraph's `InMemorySaver`, in any order of events."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Overwrite

from compactor import Outcome, compact
from compactor.cleaning.purge import purge
from compactor.folding.channels import ChannelRule, ChannelSpec, ChannelTable, default_serde
from compactor.folding.policy import Retention
from compactor.job import Job
from compactor.rebuild import RebuildJob
from compactor.verifying.verify import verify
from logstore import LogStoreSaver
from logstore.objects.memory import MemoryObjectStore
from logstore.store import LogStore, StoreOptions
from tests.compaction.oracle import Oracle
from tests.helpers import ADDRESS, Config, append, assert_same_tuple, rebuilt, thread

DELTAS = {name: DeltaChannel(append, list, snapshot_frequency=9) for name in ("d", "e")}
NAMESPACES = ("", "sub:0001")
THREADS = ("a", "b", "c")
INLINE_K = 4
"""The graph itself writes a snapshot after so many updates."""
TEXT = " ".join(f"word{number}" for number in range(60))
"""Makes a value large enough to be patched."""
SMALL = {
    "compactor.plan.FAN_OUT": 3,
    "compactor.merging.rebase.MIN_CHAIN": 2,
    "compactor.merging.output.ROW_GROUP_BYTES": 2 << 10,
    "compactor.memory.MemoryBudget.run": 8 << 10,
    "compactor.memory.MemoryBudget.window": 16 << 10,
    "compactor.memory.MemoryBudget.chunk": 8 << 10,
    "compactor.memory.MemoryBudget.batch": 64 << 10,
}
"""Limits that make tiers of several runs, spilling, commits in parts and the numbering of
patches happen in short histories."""
RUNS = 4
"""So many runs write by turns."""
DAY_S = 86_400.0
POLICIES = ("all", "all", "newest 1", "powers of two")


def table(k: int, retention: str = "all") -> ChannelTable:
    rules = []
    for name, channel in DELTAS.items():
        spec = ChannelSpec(name, channel.from_checkpoint(None), k, "machine")
        rules += [ChannelRule(spec), ChannelRule(spec, namespace="sub")]
    return ChannelTable(rules, Retention.parse(retention))


@dataclass(frozen=True)
class At:
    """A checkpoint's address, which exists from the moment that its id is chosen."""

    thread_id: str
    ns: str
    checkpoint_id: str

    @property
    def place(self) -> tuple[str, str, str]:
        return (self.thread_id, self.ns, self.checkpoint_id)

    @property
    def config(self) -> Config:
        return thread(*self.place)


@dataclass
class Known:
    """What the machine put at an address."""

    versions: dict[str, str] = field(default_factory=dict)
    counters: dict[str, tuple[int, int]] = field(default_factory=dict)
    call: tuple[Any, ...] = ()


numbers = st.integers(0, 99)
items = st.lists(numbers | numbers.map(lambda number: f"{number} {TEXT}"), max_size=2)
writes_of_a_task = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["d", "d", "e"]), items),
        st.tuples(st.just("d"), st.lists(st.integers(0, 9), max_size=2).map(Overwrite)),
        st.tuples(st.sampled_from(["x", "__error__", "__resume__"]), st.integers(0, 9)),
    ),
    max_size=3,
)
tasks = st.sampled_from(["00000000-0", "5a", "c", "ffffffff-0"])
paths = st.sampled_from(["", "~__pregel_pull, a", "~__pregel_push, 1", "~~exit"])


class SaverMachine(RuleBasedStateMachine):
    """Every answer equals the model's, but for the snapshots that the compactor added."""

    checkpoints = Bundle("checkpoints")
    reserved = Bundle("reserved")
    short_grace_s = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.name = f"machine-{secrets.token_hex(6)}"
        options = StoreOptions(1, short_grace_s=self.short_grace_s, long_grace_s=0)
        store = LogStore.open(self.uri, options)
        store.create()
        self.saver = LogStoreSaver(store)
        self.model = Oracle()
        self.runs = [f"run-{number}" for number in range(RUNS)]
        self.hidden_runs: set[str] = set()
        self.known: dict[At, Known] = {}
        self.serial = 0
        self.limits = ExitStack()
        for name, value in SMALL.items():
            self.limits.enter_context(patch(name, value))
        self.touched: At | None = None

    @property
    def uri(self) -> str:
        return f"memory://{self.name}"

    def teardown(self) -> None:
        try:
            self.reopen()
            self.compare(self.saver)
            self.verify()
        finally:
            self.limits.close()
            self.saver.close()
            MemoryObjectStore.forget(self.name)

    # -- the graph's side ------------------------------------------------------------

    @property
    def run(self) -> str:
        """The run that writes now."""
        return self.runs[self.serial // 3 % RUNS]

    def in_run(self, config: Config) -> Config:
        return {**config, "metadata": {"run_id": self.run}}

    def address(self, thread_id: str, ns: str) -> At:
        self.serial += 1
        return At(thread_id, ns, f"1ef{self.serial:05d}")

    @rule(target=checkpoints, thread_id=st.sampled_from(THREADS), ns=st.sampled_from(NAMESPACES))
    def put_a_root(self, thread_id: str, ns: str) -> At:
        at = self.address(thread_id, ns)
        self.put(at, None, {"x"}, thread(thread_id, ns))
        return at

    @rule(target=checkpoints, parent=checkpoints, extra=st.sets(st.sampled_from("dex"), max_size=1))
    def put_a_child(self, parent: At, extra: set[str]) -> Any:
        if parent not in self.known:
            return multiple()
        at = self.address(parent.thread_id, parent.ns)
        self.put(at, parent, extra, parent.config)
        return at

    @initialize(target=checkpoints)
    def run_first(self) -> Any:
        return multiple(*self.line("a", "", "d", 6), *self.line("b", "sub:0001", "e", 3))

    @rule(
        target=checkpoints,
        thread_id=st.sampled_from(THREADS),
        ns=st.sampled_from(NAMESPACES),
        channel=st.sampled_from("dde"),
        length=st.integers(1, 6),
    )
    def run_on(self, thread_id: str, ns: str, channel: str, length: int) -> Any:
        return multiple(*self.line(thread_id, ns, channel, length))

    def line(self, thread_id: str, ns: str, channel: str, length: int) -> list[At]:
        """Supersteps in a row from the head on, as a run makes them."""
        parent = self.head(thread_id, ns)
        line = []
        for number in range(length):
            if parent is not None:
                item = f"{number} {TEXT}" if number % 2 else number
                self.write(parent, [(channel, [item])], "5a", "~__pregel_pull, a")
            at = self.address(thread_id, ns)
            config = parent.config if parent else thread(thread_id, ns)
            self.put(at, parent, set() if parent else {"x"}, config)
            line.append(at)
            parent = at
        return line

    def head(self, thread_id: str, ns: str) -> At | None:
        found = [at for at in self.known if (at.thread_id, at.ns) == (thread_id, ns)]
        return max(found, key=lambda at: at.checkpoint_id, default=None)

    @rule(target=reserved, parent=checkpoints)
    def choose_the_id_of_a_child(self, parent: At) -> Any:
        if parent not in self.known:
            return multiple()
        return (parent, self.address(parent.thread_id, parent.ns))

    @rule(target=checkpoints, pair=consumes(reserved))
    def put_the_chosen_child(self, pair: tuple[At, At]) -> Any:
        parent, at = pair
        if parent not in self.known:
            return multiple()
        self.put(at, parent, set(), parent.config)
        return at

    @rule(pair=reserved, writes=writes_of_a_task, task=tasks, path=paths)
    def write_before_the_put(
        self, pair: tuple[At, At], writes: list[Any], task: str, path: str
    ) -> None:
        if pair[0] in self.known:
            self.write(pair[1], writes, task, path)

    @precondition(lambda self: self.known)
    @rule(depth=st.integers(0, 8), to=st.sampled_from("de"), task=tasks, path=paths)
    def write_below_the_head(self, depth: int, to: str, task: str, path: str) -> None:
        """A resume at a superseded checkpoint."""
        below = sorted(self.known, key=lambda at: at.checkpoint_id)
        self.write(below[-1 - depth % len(below)], [(to, [depth])], task, path)

    @rule(at=checkpoints, writes=writes_of_a_task, task=tasks, path=paths)
    def write_at_a_checkpoint(self, at: At, writes: list[Any], task: str, path: str) -> None:
        if at in self.known:
            self.write(at, writes, task, path)

    @rule(at=checkpoints)
    def put_again(self, at: At) -> None:
        if at not in self.known or (self.hidden_runs and self.may_be_root(at)):
            return  # a root keeps what it had of writes that were hidden since
        for saver in (self.saver, self.model):
            saver.put(*self.known[at].call)
        self.touched = at

    def may_be_root(self, at: At) -> bool:
        """Whether what it followed may have been dropped, so that it has its values itself."""
        before = self.known[at].call[0]["configurable"].get("checkpoint_id")
        return bool(before) and replace(at, checkpoint_id=before) not in self.known

    @rule(at=checkpoints, back=st.integers(0, 5))
    def put_again_below_another(self, at: At, back: int) -> None:
        if at not in self.known or self.may_be_root(at):
            return
        below = [a for a in self.known if (a.thread_id, a.ns) == (at.thread_id, at.ns)]
        below = sorted(a.checkpoint_id for a in below if a.checkpoint_id < at.checkpoint_id)
        parent = below[-1 - back] if back < len(below) else ""
        _, *rest = self.known[at].call
        call = (self.in_run(thread(at.thread_id, at.ns, parent)), *rest)
        self.known[at] = replace(self.known[at], call=call)
        self.put_again(at)

    def put(self, at: At, parent: At | None, extra: set[str], config: Config) -> None:
        before = self.known[parent] if parent else Known()
        found = self.model.written_before(parent.place, self.run) if parent else []
        written = {channel for channel, _ in found} | extra
        is_shown = parent is not None and parent.place not in self.model.hidden
        versions = dict(before.versions)
        updated = {ch for ch in written if ch in ("d", "e", "x")}
        for channel in sorted(updated):
            version = self.model.get_next_version(versions.get(channel), None)
            versions[channel] = version
        counters: dict[str, tuple[int, int]] = {}
        values: dict[str, Any] = {"x": f"{self.serial} {TEXT}"} if "x" in updated else {}
        for name in DELTAS:
            u, t = before.counters.get(name, (0, 0)) if parent else (0, 0)
            u, t = u + (name in updated), t + 1
            if u >= INLINE_K and name in updated and parent is not None and is_shown:
                values[name] = _DeltaSnapshot(self.value_after(parent, name))
            elif name in versions:
                counters[name] = (u, t)
        metadata: dict[str, Any] = {"source": "loop", "step": self.serial, "parents": {}}
        if counters:
            metadata["counters_since_delta_snapshot"] = counters
        checkpoint = {
            "v": 4,
            "id": at.checkpoint_id,
            "ts": "2026-01-01T00:00:00+00:00",
            "channel_values": values,
            "channel_versions": versions,
            "versions_seen": {},
            "updated_channels": sorted(updated),
        }
        new = {ch: versions[ch] for ch in sorted(updated)}
        call = (self.in_run(config), checkpoint, metadata, new)
        for saver in (self.saver, self.model):
            saver.put(*call)
        self.known[at] = Known(versions, counters, call)
        self.touched = at

    def value_after(self, parent: At, name: str) -> Any:
        channel = DELTAS[name].from_checkpoint(rebuilt(self.model, parent.config, DELTAS)[name])
        written = self.model.written_before(parent.place, self.run)
        channel.replay_writes([("", name, value) for at, value in written if at == name])
        return channel.get()

    def write(self, at: At, writes: list[Any], task: str, path: str) -> None:
        for saver in (self.saver, self.model):
            saver.put_writes(self.in_run(at.config), writes, task, path)
        self.touched = at

    @precondition(lambda self: len(self.known) > 5)
    @rule(thread_id=st.sampled_from(THREADS))
    def delete(self, thread_id: str) -> None:
        for saver in (self.saver, self.model):
            saver.delete_thread(thread_id)
        self.forget(lambda at: at.thread_id == thread_id)

    def forget(self, which: Callable[[At], bool]) -> None:
        """Nothing goes on from these any more."""
        self.known = {at: known for at, known in self.known.items() if not which(at)}

    @rule(thread_id=st.sampled_from(THREADS), newest=st.integers(1, 4))
    def prune(self, thread_id: str, newest: int) -> None:
        self.saver.prune([thread_id], newest=newest)
        self.model.prune(thread_id, newest)

    @precondition(lambda self: len(self.known) > 5)
    @rule(thread_id=st.sampled_from(THREADS))
    def prune_all(self, thread_id: str) -> None:
        self.saver.prune([thread_id], strategy="delete")
        self.model.delete_thread(thread_id)
        self.forget(lambda at: at.thread_id == thread_id)

    @rule(numbers=st.sets(st.integers(0, RUNS - 1), min_size=1, max_size=2))
    def delete_for_runs(self, numbers: set[int]) -> None:
        gone = [self.runs[number] for number in numbers]
        for saver in (self.saver, self.model):
            saver.delete_for_runs(gone)
        self.hidden_runs.update(gone)

    @rule(target=checkpoints, source=st.sampled_from(THREADS), to=st.sampled_from(THREADS))
    def copy_thread(self, source: str, to: str) -> Any:
        if any(True for _ in self.model.list(thread(to))):
            return multiple()
        if not any(True for _ in self.model.list(thread(source))):
            return multiple()
        self.model.delete_thread(to)  # what is hidden there may have been dropped
        self.saver.delete_thread(to)
        self.forget(lambda at: at.thread_id == to)
        for saver in (self.saver, self.model):
            saver.copy_thread(source, to)
        copied = {
            replace(at, thread_id=to): replace(known, call=moved(known.call, to))
            for at, known in self.known.items()
            if at.thread_id == source
        }
        self.known.update(copied)
        return multiple(*copied)

    # -- the store's side ------------------------------------------------------------

    @rule(
        k=st.sampled_from([1, 2, 3, None]),
        own_process=st.booleans(),
        retention=st.sampled_from(POLICIES),
    )
    def compact(self, k: int | None, own_process: bool, retention: str) -> None:
        store = self.uri if own_process else self.saver.store
        self.job(store, k, retention, DAY_S)

    @rule(k=st.sampled_from([1, 2, 3, None]), retention=st.sampled_from(POLICIES))
    def compact_and_drop(self, k: int | None, retention: str) -> None:
        """What is hidden may be gone afterwards."""
        self.job(self.uri, k, retention, 0)
        self.hidden_may_be_gone()

    def job(self, store: str | LogStore, k: int | None, retention: str, grace_s: float) -> None:
        tables = table(k, retention) if k else None
        report = compact(store, table=tables, hidden_grace_s=grace_s)
        assert not (k and report.unfolded)
        assert {p.outcome for p in report.partitions} <= {Outcome.COMMITTED, Outcome.IDLE}

    def hidden_may_be_gone(self) -> None:
        gone = self.model.cut_off()
        self.forget(lambda at: at.place in gone or self.run_of(at) in self.hidden_runs)
        for number, run in enumerate(self.runs):
            if run in self.hidden_runs:
                self.runs[number] = f"{run}+"

    def run_of(self, at: At) -> str:
        run: str = self.known[at].call[0]["metadata"]["run_id"]
        return run

    @rule(k=st.sampled_from([1, 2]), drops=st.booleans())
    def purge(self, k: int, drops: bool) -> None:
        store = LogStore.open(self.uri)
        grace_s = 0 if drops else DAY_S
        job = Job(store, table(k), default_serde(), purge=True, hidden_grace_s=grace_s)
        purge(job, 0, None, lambda _: None, lambda _: None)
        store.close()
        if drops:
            self.hidden_may_be_gone()

    @rule()
    def verify(self) -> None:
        found = verify(self.saver.store, table(2), default_serde())
        assert not found.findings, found.findings

    @rule(k=st.sampled_from([1, 2]), retention=st.sampled_from(POLICIES))
    def rebuild(self, k: int, retention: str) -> None:
        store = LogStore.open(self.uri)
        report = RebuildJob(store, table(k, retention), default_serde()).run()
        store.close()
        assert not report.unfolded
        assert {p.outcome for p in report.partitions} == {Outcome.COMMITTED}

    @precondition(lambda self: self.manifests())
    @rule(number=st.integers(0, 9), damage=st.booleans())
    def lose_a_manifest_and_rebuild(self, number: int, damage: bool) -> None:
        """What is derived may be lost or damaged at any point."""
        found = self.manifests()
        key = found[number % len(found)]
        objects = MemoryObjectStore(self.name)
        if damage:
            objects.compare_and_swap(key, b"damaged", objects.get(key).etag)
        else:
            objects.delete([key])
        self.rebuild(2, "all")

    def manifests(self) -> list[str]:
        objects = MemoryObjectStore(self.name)
        keys = [i.key for page in objects.list("") for i in page.objects]
        ends, begins = "/manifest", ("manifests/", "copies/")
        return sorted(k for k in keys if k.endswith(ends) or k.startswith(begins))

    def reopen(self) -> None:
        self.saver.close()
        self.saver = LogStoreSaver.from_conn_string(self.uri, compaction="off")

    # -- comparing -------------------------------------------------------------------

    @rule(fresh=st.booleans(), start=st.integers(0, 4))
    def compare_some(self, fresh: bool, start: int) -> None:
        if fresh:
            self.reopen()
        self.compare(self.saver, slice(start, None, 5))

    @precondition(lambda self: self.touched is not None)
    @invariant()
    def the_head_is_right(self) -> None:
        at, self.touched = self.touched, None
        assert at is not None
        self.compare_head(self.saver, at.thread_id, at.ns)

    def compare(self, saver: LogStoreSaver, which: slice = slice(None)) -> None:
        """All heads and lists, and those of the checkpoints by their ids that are chosen."""
        for thread_id in THREADS:
            for ns in NAMESPACES:
                self.compare_head(saver, thread_id, ns)
            listed = {key_of(t): t for t in saver.list(thread(thread_id))}
            expected = {key_of(t): t for t in self.model.list(thread(thread_id))}
            assert listed.keys() == expected.keys()
            for key, found in listed.items():
                assert_same_tuple(addressed(found), expected[key])
        hidden = [thread(*place) for place in self.model.hidden]
        for config in [*(at.config for at in self.known), *hidden][which]:
            self.compare_at(saver, config)

    def compare_head(self, saver: LogStoreSaver, thread_id: str, ns: str) -> None:
        self.compare_at(saver, thread(thread_id, ns))

    def compare_at(self, saver: LogStoreSaver, config: Config) -> None:
        expected = self.model.get_tuple(config)
        found = saver.get_tuple(config)
        assert_same_tuple(found and addressed(found), expected)
        if expected is None or found is None:
            return
        # What a walk gives must be right even where a snapshot is at hand.
        walked = saver.get_delta_channel_history(config=config, channels=list(DELTAS))
        wanted = self.model.get_delta_channel_history(config=config, channels=list(DELTAS))
        shown, model_s = found.checkpoint["channel_values"], expected.checkpoint["channel_values"]
        for name, spec in DELTAS.items():
            value = replayed(spec, wanted[name])
            # Below a root that has a value there may be nothing left to walk.
            if found.parent_config or name not in shown:
                assert replayed(spec, walked[name]) == value
            if name in shown and name not in model_s:
                assert shown[name] == _DeltaSnapshot(value)
                assert name in found.checkpoint["channel_versions"]


def replayed(spec: DeltaChannel, history: Any) -> Any:
    channel = spec.from_checkpoint(history.get("seed"))
    channel.replay_writes(history["writes"])
    return channel.get()


def moved(call: tuple[Any, ...], thread_id: str) -> tuple[Any, ...]:
    """A put, in the copy of its thread."""
    config, *rest = call
    configurable = {**config["configurable"], "thread_id": thread_id}
    return ({**config, "configurable": configurable}, *rest)


def addressed(found: CheckpointTuple) -> CheckpointTuple:
    """Without the mark of a hidden parent, which is for copies of the checkpoint."""
    configurable = {key: found.config["configurable"][key] for key in ADDRESS}
    return found._replace(config={"configurable": configurable})


def key_of(found: Any) -> tuple[str, str]:
    configurable = found.config["configurable"]
    return (configurable["checkpoint_ns"], configurable["checkpoint_id"])


class WithGrace(SaverMachine):
    """Nothing that was merged or hidden goes, and values are made against writes."""

    short_grace_s = 300.0


TestSaverMachine = SaverMachine.TestCase
TestSaverMachine.settings = settings(
    max_examples=10,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestWithGrace = WithGrace.TestCase
TestWithGrace.settings = settings(TestSaverMachine.settings, max_examples=3)
