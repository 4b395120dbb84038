"""Records as LangGraph's answers: checkpoint tuples and delta channel histories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from logstore.bases import Base, Known, KnownWrite, Place
from logstore.cache import VersionedCache
from logstore.encode import HIDDEN_PARENT, config_of
from logstore.reader import ThreadRead
from logstore.records import TASKS, TASKS_FORMAT, Kind, Record
from logstore.values import TypedHistory, ValueDecoder
from logstore.view import NeedsHistory
from logstore.walk import ChannelHistory, snapshot_stands, walk

Learn = Callable[[Place, Known], None]


class TupleBuilder:
    """Answers from one read of a thread.

    Every method raises `NeedsHistory` if the read was one of the head and does not reach
    far enough. Every value is deserialised anew, so that callers share nothing.
    """

    def __init__(
        self,
        read: ThreadRead,
        serde: SerializerProtocol,
        decoder: ValueDecoder,
        learn: Learn,
        histories: VersionedCache[TypedHistory],
    ) -> None:
        """Answer from a read.

        Args:
            read: what was read.
            serde: makes values out of bytes.
            decoder: makes bytes out of records.
            learn: is told the values of the checkpoints that are given out.
            histories: delta histories that were read before.
        """
        self._read = read
        self._view = read.view
        self._serde = serde
        self._decoder = decoder
        self._learn = learn
        self._histories = histories

    def find(self, ns: str, checkpoint_id: str | None) -> Record | None:
        """The checkpoint of that id, or the head of the namespace."""
        if checkpoint_id is None:
            return self._view.head(ns)
        record = self._view.checkpoint(ns, checkpoint_id)
        if record is None and not self._view.complete:
            raise NeedsHistory
        return record

    def tuple(self, checkpoint: Record) -> CheckpointTuple:
        """The checkpoint with its values, metadata and pending writes."""
        ns, checkpoint_id = checkpoint.checkpoint_ns, checkpoint.checkpoint_id
        if not self._view.holds_whole(checkpoint):
            raise NeedsHistory
        values = self._values_at(checkpoint)
        writes = self._view.writes(ns, checkpoint_id)
        loaded = self._loads([checkpoint, *values.values(), *writes])
        self._teach(checkpoint, values, writes)
        body = loaded[0]
        body["channel_values"] = dict(zip(values, loaded[1 : 1 + len(values)], strict=True))
        if body.get("v", TASKS_FORMAT) < TASKS_FORMAT:
            self._take_tasks(checkpoint, body)
        parent = self._view.shown_parent(checkpoint)
        return CheckpointTuple(
            config=self._config(checkpoint),
            checkpoint=body,
            metadata=self._metadata(checkpoint),
            parent_config=config_of(checkpoint.thread_id, ns, parent) if parent else None,
            pending_writes=_pending(writes, loaded[1 + len(values) :]),
        )

    def _take_tasks(self, checkpoint: Record, body: dict[str, Any]) -> None:
        """Give a checkpoint of an earlier format its tasks, which are writes at its parent."""
        if not self._view.complete:
            raise NeedsHistory
        sent = [w for w in self._view.writes_before(checkpoint) if w.channel == TASKS]
        if sent:
            versions = body["channel_versions"]
            body["channel_values"][TASKS] = self._loads(sent)
            body["channel_versions"] = {**versions, TASKS: max(versions.values(), default=TASKS)}

    def _config(self, checkpoint: Record) -> RunnableConfig:
        """The checkpoint's config. A copy of the checkpoint must find a hidden parent again."""
        ns, parent = checkpoint.checkpoint_ns, checkpoint.parent_checkpoint_id
        config = config_of(checkpoint.thread_id, ns, checkpoint.checkpoint_id)
        if self._view.is_boundary(checkpoint):
            config["configurable"][HIDDEN_PARENT] = parent
        return config

    def _teach(
        self, checkpoint: Record, values: Mapping[str, Record], writes: Sequence[Record]
    ) -> None:
        """Let the next values be patched against these."""
        versions = self._view.versions(checkpoint)
        bases = {
            channel: Base(
                channel,
                versions[channel],
                self._decoder.load([record])[0][1],
                self._decoder.links(record),
            )
            for channel, record in values.items()
            if record.kind == Kind.BLOB and record.version is not None
        }
        known = tuple(
            KnownWrite(
                w.channel or "",
                w.checksum or 0,
                self._decoder.load([w])[0][1],
                seen=self._read.seen,
            )
            for w in writes
        )
        place = (checkpoint.thread_id, checkpoint.checkpoint_ns, checkpoint.checkpoint_id)
        fresh = frozenset(
            ch for ch, r in values.items() if r.checkpoint_id == checkpoint.checkpoint_id
        )
        parent = checkpoint.parent_checkpoint_id
        above = None if parent is None else (*place[:2], parent)
        self._learn(place, Known(bases, known, fresh, above, self._read.seen))

    def _values_at(self, checkpoint: Record) -> dict[str, Record]:
        """The record of each channel's value at the checkpoint, by channel."""
        view, ns = self._view, checkpoint.checkpoint_ns
        found: dict[str, Record] = {}
        for channel, version in view.versions(checkpoint).items():
            stored = view.stored_value(checkpoint, channel)
            if stored is not None:
                found[channel] = stored
                continue
            if not view.complete and view.blob(ns, channel, version) is None:
                raise NeedsHistory
            snapshot = view.snapshot(ns, checkpoint.checkpoint_id, channel)
            if snapshot is not None and snapshot_stands(view, checkpoint, channel, self._read.late):
                found[channel] = snapshot
        for channel, record in view.inline_values(ns, checkpoint.checkpoint_id).items():
            found.setdefault(channel, record)
        return found

    def history(
        self, ns: str, checkpoint_id: str | None, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What channels' values at a checkpoint, or at the head, are rebuilt from."""
        if checkpoint_id is None:
            head = self._view.head(ns)
            if head is None:
                return {channel: {"writes": []} for channel in channels}
            checkpoint_id = head.checkpoint_id
        place = (self._view.thread_id, ns, checkpoint_id)
        version = self._read.version
        kept = {channel: self._histories.get((*place, channel), version) for channel in channels}
        found = {channel: history for channel, history in kept.items() if history is not None}
        wanted = kept.keys() - found.keys()
        checkpoint = self.find(ns, checkpoint_id) if wanted else None
        walked = walk(self._view, checkpoint, wanted, self._read.late) if checkpoint else {}
        for channel, history in walked.items():
            typed = found[channel] = self._typed(history)
            self._histories.put((*place, channel), version, typed, typed.size)
        return {
            channel: self._history(channel, found[channel]) if channel in found else {"writes": []}
            for channel in channels
        }

    def _typed(self, found: ChannelHistory) -> TypedHistory:
        values = self._decoder.load(found.writes)
        writes = [(w.task_id or "", value) for w, value in zip(found.writes, values, strict=True)]
        seed = None if found.seed is None else self._decoder.load([found.seed])[0]
        return TypedHistory(tuple(writes), seed)

    def _history(self, channel: str, found: TypedHistory) -> DeltaChannelHistory:
        loads = self._serde.loads_typed
        entry: DeltaChannelHistory = {
            "writes": [(task_id, channel, loads(typed)) for task_id, typed in found.writes]
        }
        if found.seed is not None:
            entry["seed"] = loads(found.seed)
        return entry

    def metadata_matches(self, checkpoint: Record, filter: Mapping[str, Any] | None) -> bool:
        """Whether the checkpoint's metadata equals a filter in each of its keys."""
        if not filter:
            return True
        metadata = self._metadata(checkpoint)
        return all(key in metadata and _same(metadata[key], want) for key, want in filter.items())

    def _metadata(self, checkpoint: Record) -> Any:
        typed = (checkpoint.metadata_type or "", checkpoint.metadata_value or b"")
        return self._serde.loads_typed(typed)

    def _loads(self, records: Sequence[Record]) -> list[Any]:
        return [self._serde.loads_typed(typed) for typed in self._decoder.load(records)]


def _same(stored: Any, wanted: Any) -> bool:
    """Equality that tells True from 1."""
    return bool(stored == wanted) and isinstance(stored, bool) == isinstance(wanted, bool)


def _pending(writes: Sequence[Record], values: Sequence[Any]) -> list[PendingWrite]:
    return [
        (write.task_id or "", write.channel or "", value)
        for write, value in zip(writes, values, strict=False)
    ]
