"""LangGraph's `InMemorySaver` with what it lacks: prune, delete_for_runs and copy_thread.

What they take away is hidden: not shown, and still an ancestor of what is shown. A write of a
deleted run counts for the children that were there, and for those of its own run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver

from tests.helpers import thread

Place = tuple[str, str, str]
"""Thread, namespace and checkpoint."""


@dataclass(frozen=True)
class Origin:
    """Which run put something, and when."""

    run: str | None
    time: int


@dataclass(frozen=True)
class Written:
    """A write."""

    key: tuple[str, int]
    value: tuple[str, str, tuple[str, bytes], str]
    """As `InMemorySaver` keeps it."""
    origin: Origin


class Oracle(InMemorySaver):
    """What a store is to show."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = 0
        self._put: dict[Place, Origin] = {}
        self._written: dict[Place, list[Written]] = defaultdict(list)
        self._gone: list[tuple[frozenset[str], int]] = []
        self.hidden: set[Place] = set()

    # -- what a graph calls ----------------------------------------------------------

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        done = super().put(config, checkpoint, metadata, new_versions)
        place = _place(done)
        self._put[place] = self._origin(config)
        self.hidden.discard(place)
        return done

    def put_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        for number, (channel, value) in enumerate(writes):
            key = (task_id, WRITES_IDX_MAP.get(channel, number))
            kept = (task_id, channel, self.serde.dumps_typed(value), task_path)
            self._written[_place(config)].append(Written(key, kept, self._origin(config)))

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        place = self._resolved(config)
        if place is None or place in self.hidden:
            return None
        self.writes[place] = _winners(w for w in self._written[place] if not self._is_gone(w))
        found = super().get_tuple(thread(*place))
        if found is not None and found.parent_config and _place(found.parent_config) in self.hidden:
            return found._replace(parent_config=None)
        return found

    def list(self, config: Any, **how: Any) -> Iterator[CheckpointTuple]:
        for listed in super().list(config, **how):
            found = self.get_tuple(listed.config)
            if found is not None:
                yield found

    def get_delta_channel_history(self, *, config: Any, channels: Sequence[str]) -> Any:
        place = self._resolved(config)
        if place is None:
            return super().get_delta_channel_history(config=config, channels=channels)
        child = place
        while (parent := self._parent(child)) is not None:
            self.writes[parent] = self._counting(parent, self._put[child])
            child = parent
        return super().get_delta_channel_history(config=thread(*place), channels=channels)

    def written_before(self, parent: Place, run: str) -> list[tuple[str, Any]]:
        """The channels and values of the writes that a child of a run would follow."""
        counting = self._counting(parent, Origin(run, self._clock + 1))
        self.writes[parent] = counting
        return [
            (channel, self.serde.loads_typed(value))
            for _, channel, value, _ in self._ordered_writes(*parent)
        ]

    # -- what takes away -------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        super().delete_thread(thread_id)
        for places in (self._put, self._written):
            for place in [place for place in places if place[0] == thread_id]:
                del places[place]
        self.hidden = {place for place in self.hidden if place[0] != thread_id}

    def prune(self, thread_id: str, newest: int) -> None:
        for ns in {ns for name, ns, _ in self._put if name == thread_id}:
            self.hidden.update(sorted(self._shown(thread_id, ns))[:-newest])

    def delete_for_runs(self, run_ids: Collection[str]) -> None:
        self._clock += 1
        self._gone.append((frozenset(run_ids), self._clock))
        self.hidden |= {place for place, origin in self._put.items() if origin.run in run_ids}

    def copy_thread(self, source: str, target: str) -> None:
        for ns, found in list(self.storage[source].items()):
            self.storage[target][ns].update(found)
        for (name, *rest), blob in list(self.blobs.items()):
            if name == source:
                self.blobs[(target, *rest)] = blob
        for place, origin in [*self._put.items()]:
            if place[0] == source:
                self._put[(target, *place[1:])] = origin
        for place, written in [*self._written.items()]:
            if place[0] == source:
                self._written[(target, *place[1:])] = [replace(w) for w in written]
        self.hidden |= {(target, *place[1:]) for place in self.hidden if place[0] == source}

    def cut_off(self) -> set[Place]:
        """What is hidden, and the parents of it: nothing leads to them once it was dropped."""
        return self.hidden | {p for p in map(self._parent, self.hidden) if p is not None}

    # -- parts -----------------------------------------------------------------------

    def _origin(self, config: Mapping[str, Any]) -> Origin:
        self._clock += 1
        return Origin(config.get("metadata", {}).get("run_id"), self._clock)

    def _shown(self, thread_id: str, ns: str) -> list[Place]:
        at = (thread_id, ns)
        return [place for place in self._put if place[:2] == at and place not in self.hidden]

    def _resolved(self, config: Mapping[str, Any]) -> Place | None:
        place = _place(config)
        if place[2]:
            return place
        return max(self._shown(*place[:2]), default=None)

    def _parent(self, place: Place) -> Place | None:
        stored = self.storage[place[0]][place[1]].get(place[2])
        if stored is None or stored[2] is None:
            return None
        parent = (*place[:2], stored[2])
        return parent if parent in self._put else None

    def _is_gone(self, write: Written, before: int | None = None) -> bool:
        """Whether the write's run was deleted after it, and before a time."""
        return any(
            write.origin.run in runs
            and write.origin.time < deleted
            and (before is None or deleted < before)
            for runs, deleted in self._gone
        )

    def _counting(self, parent: Place, child: Origin) -> dict[Any, Any]:
        """The writes at a checkpoint that count for a child of it."""
        return _winners(
            w
            for w in self._written[parent]
            if w.origin.run == child.run or not self._is_gone(w, child.time)
        )


def _winners(written: Iterable[Written]) -> dict[Any, Any]:
    """An ordinary write stays as it first came, a special one as it last came."""
    found: dict[Any, Any] = {}
    for write in written:
        if write.key[1] < 0 or write.key not in found:
            found[write.key] = write.value
    return found


def _place(config: Mapping[str, Any]) -> Place:
    configurable = config["configurable"]
    return (
        configurable["thread_id"],
        configurable.get("checkpoint_ns", ""),
        configurable.get("checkpoint_id", ""),
    )
