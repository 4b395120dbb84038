"""What keeping a channel as deltas would save and cost, from the threads that there are.

It reads any saver through its public interface and works out, for each channel, what the very
updates and reads of these threads take in full mode and in delta mode at several cadences. All
bytes are the serde's, before a saver compresses or patches them.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

FREQUENCIES = (1, 10, 100, 1000)
"""The cadences that are compared."""
WORTH_SHARE = 0.6
"""Advise deltas from this share of the stored bytes on. A channel that is replaced rather than
grown stays below one half: its values are as large as its writes."""
WORTH_BYTES = 16 << 10
"""And from so many bytes a thread on."""
GOOD_ENOUGH = 0.8
"""The least K with this share of what the greatest saves is advised: it is read fastest."""

_NEW_RUN = ("input", "update", "fork")


@dataclass(slots=True)
class Cost:
    """What one channel takes in one mode, over all threads."""

    stored: int = 0
    """Bytes of values and writes."""
    read: int = 0
    """Bytes that the reads took: the value, or the snapshot and the writes since."""
    snapshots: int = 0
    replayed: int = 0
    """Updates that the reads replayed, in all."""
    deepest: int = 0
    """The most updates that one read replayed."""


@dataclass(slots=True)
class ChannelAdvice:
    """One channel of the graph, or of a subgraph."""

    namespace: str
    """Without task ids; "" is the root graph."""
    channel: str
    threads: int = 0
    updates: int = 0
    """How often it was written: the checkpoints at which it has a new version."""
    reads: int = 0
    """How often it was read to go on: starts of runs, resumes, updates from outside."""
    write_bytes: int = 0
    """Bytes of what was written to it, in all."""
    value_bytes: int = 0
    """Bytes of its largest value."""
    estimated: bool = False
    """Whether values that are not stored were taken as the sum of their writes."""
    full: Cost = field(default_factory=Cost)
    delta: dict[int, Cost] = field(default_factory=dict)
    """By cadence K."""

    @property
    def recommended(self) -> int | None:
        """The K to switch to; None to keep the channel in full mode."""
        last = max(self.delta)
        most = self.saves(last)
        if most < WORTH_SHARE or self._saved_bytes(last) < WORTH_BYTES * self.threads:
            return None
        return min(k for k in self.delta if self.saves(k) >= GOOD_ENOUGH * most)

    def saves(self, k: int) -> float:
        """The share of the stored bytes that the switch saves; negative if it costs bytes."""
        return 1 - self.delta[k].stored / self.full.stored if self.full.stored else 0.0

    def _saved_bytes(self, k: int) -> int:
        return self.full.stored - self.delta[k].stored

    def replays(self, k: int) -> float:
        """The updates that a read replays, on average."""
        return self.delta[k].replayed / self.reads if self.reads else 0.0

    @property
    def verdict(self) -> str:
        """What to do, and why, in a line."""
        k = self.recommended
        if k is None:
            last = max(self.delta)
            share, saved = self.saves(last), self._saved_bytes(last) // max(self.threads, 1)
            return f"keep full: deltas save {share:.0%} at most, {saved} bytes a thread"
        return (
            f"delta with K = {k}: stores {self.saves(k):.0%} less, a read replays "
            f"{self.replays(k):.1f} updates, at most {self.delta[k].deepest}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, with what follows from it."""
        return {
            **asdict(self),
            "recommended": self.recommended,
            "verdict": self.verdict,
            "saves": {k: round(self.saves(k), 4) for k in self.delta},
            "replays": {k: round(self.replays(k), 2) for k in self.delta},
        }


def advise(
    saver: BaseCheckpointSaver[Any],
    thread_ids: Iterable[str] | None = None,
    *,
    frequencies: Sequence[int] = FREQUENCIES,
) -> list[ChannelAdvice]:
    """Work out what each channel takes in full mode and as deltas.

    Args:
        saver: any checkpoint saver that can list.
        thread_ids: the threads to go by; None for all that the saver lists.
        frequencies: the cadences to compare.

    Returns:
        The channels, the one with the most bytes in full mode first.
    """
    history = _History(saver)
    for found in _tuples(saver, thread_ids):
        history.add(found)
    advice: dict[tuple[str, str], ChannelAdvice] = {}
    for (_, ns), checkpoints in history.checkpoints.items():
        path = "|".join(part.split(":")[0] for part in ns.split("|") if not part.isdigit())
        ordered = _parents_first(checkpoints)
        for channel in sorted({ch for one in ordered for ch in one.valued}):
            one = advice.setdefault((path, channel), ChannelAdvice(path, channel))
            _Replay(ordered, channel, one, frequencies).run()
    return sorted(advice.values(), key=lambda a: (-a.full.stored, a.namespace, a.channel))


def _tuples(
    saver: BaseCheckpointSaver[Any], thread_ids: Iterable[str] | None
) -> Iterator[CheckpointTuple]:
    if thread_ids is None:
        yield from saver.list(None)
        return
    for thread_id in thread_ids:
        yield from saver.list({"configurable": {"thread_id": thread_id}})


class _Checkpoint(NamedTuple):
    """What counts of a checkpoint: versions and sizes."""

    id: str
    parent: str | None
    source: str | None
    run_id: str | None
    versions: Mapping[str, Any]
    valued: Collection[str]
    """The channels that have a value here, or count as deltas."""
    sizes: Mapping[Any, int]
    """The bytes of stored values by channel and version, for the whole namespace."""
    written: Mapping[str, int]
    """The bytes of the writes that are stored here and belong to the children, by channel."""


class _History:
    """Takes checkpoints in, and keeps their sizes only."""

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        self.checkpoints: dict[tuple[str, str], dict[str, _Checkpoint]] = defaultdict(dict)
        self._serde = saver.serde
        self._sizes: dict[tuple[str, str], dict[Any, int]] = defaultdict(dict)

    def add(self, found: CheckpointTuple) -> None:
        configurable = found.config["configurable"]
        key = (str(configurable["thread_id"]), str(configurable.get("checkpoint_ns", "")))
        checkpoint, metadata = found.checkpoint, found.metadata
        versions = {ch: v for ch, v in checkpoint["channel_versions"].items() if not _internal(ch)}
        sizes = self._sizes[key]
        for channel, value in checkpoint["channel_values"].items():
            address = (channel, versions.get(channel))
            if channel in versions and address not in sizes:
                sizes[address] = self._size(value)
        counted = metadata.get("counters_since_delta_snapshot") or {}
        written: dict[str, int] = defaultdict(int)
        for _, channel, value in found.pending_writes or ():
            if not _internal(channel):
                written[channel] += self._size(value)
        self.checkpoints[key][checkpoint["id"]] = _Checkpoint(
            id=checkpoint["id"],
            parent=_parent_id(found),
            source=metadata.get("source"),
            run_id=metadata.get("run_id"),
            versions=versions,
            valued=[ch for ch in versions if (ch, versions[ch]) in sizes or ch in counted],
            sizes=sizes,
            written=written,
        )

    def _size(self, value: Any) -> int:
        return len(self._serde.dumps_typed(value)[1])


def _parent_id(found: CheckpointTuple) -> str | None:
    return found.parent_config["configurable"]["checkpoint_id"] if found.parent_config else None


def _internal(channel: str) -> bool:
    return channel.startswith(("__", "branch:"))


def _parents_first(checkpoints: Mapping[str, _Checkpoint]) -> list[_Checkpoint]:
    ordered: dict[str, _Checkpoint] = {}
    seen: set[str] = set()
    for one in checkpoints.values():
        chain: list[_Checkpoint] = []
        current: _Checkpoint | None = one
        while current is not None and current.id not in seen:
            seen.add(current.id)
            chain.append(current)
            current = checkpoints.get(current.parent or "")
        ordered.update((found.id, found) for found in reversed(chain))
    return list(ordered.values())


class _State(NamedTuple):
    """A channel at a checkpoint, as a graph with some cadence would have it."""

    value: int = 0
    """Bytes of its value."""
    snapshot: int = 0
    """Bytes of its latest snapshot."""
    since: int = 0
    """Bytes of the writes since."""
    updates: int = 0
    supersteps: int = 0


class _Replay:
    """Goes through one channel of one thread once more, in each of the modes."""

    def __init__(
        self,
        ordered: Sequence[_Checkpoint],
        channel: str,
        advice: ChannelAdvice,
        frequencies: Sequence[int],
    ) -> None:
        self._ordered = ordered
        self._channel = channel
        self._advice = advice
        self._by_id = {one.id: one for one in ordered}
        self._states: dict[int, dict[str, _State]] = {k: {} for k in frequencies}
        self._max_supersteps = int(
            os.environ.get("LANGGRAPH_DELTA_MAX_SUPERSTEPS_SINCE_SNAPSHOT", "5000")
        )

    def run(self) -> None:
        advice = self._advice
        advice.threads += 1
        for k in self._states:
            advice.delta.setdefault(k, Cost())
        for one in self._ordered:
            stored = one.written.get(self._channel, 0)
            advice.full.stored += stored
            advice.write_bytes += stored
            for cost in advice.delta.values():
                cost.stored += stored
            self._step(one, self._by_id.get(one.parent or ""))

    def _step(self, one: _Checkpoint, parent: _Checkpoint | None) -> None:
        channel, advice = self._channel, self._advice
        version = one.versions.get(channel)
        before = parent.versions.get(channel) if parent else None
        if parent is not None and before is not None and _begins_run(parent, one):
            self._read(parent)
        updated = version is not None and version != before
        advice.updates += updated
        for k, states in self._states.items():
            known = states.get(parent.id, _State()) if parent else _State()
            states[one.id] = self._next(k, known, one, parent, updated)
        if updated:
            value = self._states[next(iter(self._states))][one.id].value
            advice.full.stored += value
            advice.value_bytes = max(advice.value_bytes, value)

    def _next(
        self,
        k: int,
        known: _State,
        one: _Checkpoint,
        parent: _Checkpoint | None,
        updated: bool,
    ) -> _State:
        """The channel's state at a checkpoint, and the cost of a snapshot if one is due."""
        supersteps = known.supersteps + 1
        cost = self._advice.delta[k]
        if not updated:
            found = known._replace(supersteps=supersteps)
        else:
            stored = parent.written.get(self._channel, 0) if parent else 0
            value = self._value(known, one, stored)
            # Without a stored write, as in a graph that is no StateGraph or with
            # `durability="exit"`, the growth stands for the one that deltas would need.
            written = stored or max(value - known.value, 0)
            cost.stored += written - stored
            found = _State(
                value, known.snapshot, known.since + written, known.updates + 1, supersteps
            )
        has_version = self._channel in one.versions
        if has_version and (found.updates >= k or supersteps >= self._max_supersteps):
            cost.snapshots += 1
            cost.stored += found.value
            return _State(found.value, found.value)
        return found

    def _value(self, known: _State, one: _Checkpoint, written: int) -> int:
        """The bytes of the new value."""
        value = one.sizes.get((self._channel, one.versions[self._channel]))
        if value is None:
            self._advice.estimated = True
            return known.value + written
        return value

    def _read(self, checkpoint: _Checkpoint) -> None:
        self._advice.reads += 1
        for k, states in self._states.items():
            state, cost = states[checkpoint.id], self._advice.delta[k]
            cost.read += state.snapshot + state.since
            cost.replayed += state.updates
            cost.deepest = max(cost.deepest, state.updates)
        self._advice.full.read += next(iter(self._states.values()))[checkpoint.id].value


def _begins_run(parent: _Checkpoint, one: _Checkpoint) -> bool:
    """Whether the state was read at `parent` to go on with `one`."""
    return one.source in _NEW_RUN or one.run_id != parent.run_id
