"""LangGraph's calls as records: everything becomes bytes inside the call."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from logstore.bases import Base, BaseCache, Known, KnownWrite, Place, patch_blob, patch_write
from logstore.clock import stamp_to_us
from logstore.errors import InvalidNameError
from logstore.keys import check_name
from logstore.records import (
    Encoding,
    Kind,
    Record,
    checksum_of,
    encode_version,
)

HIDDEN_PARENT = "__logstore_hidden_parent"
"""In the config of a checkpoint whose parent is hidden: the parent's id."""


class Target(NamedTuple):
    """What a config addresses."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str | None

    @classmethod
    def of(cls, config: RunnableConfig) -> Target:
        """Read a config. A thread id that is no string counts as its `str`.

        Raises:
            InvalidNameError: there is no thread id, or a name cannot be stored.
        """
        configurable = config.get("configurable") or {}
        if configurable.get("thread_id") is None:
            raise InvalidNameError(
                "the config has no thread_id; pass "
                '{"configurable": {"thread_id": "…"}} so that the checkpoint has a place'
            )
        checkpoint_id = configurable.get("checkpoint_id") or None
        return cls(
            cls.check_thread_id(configurable["thread_id"]),
            check_name("checkpoint_ns", str(configurable.get("checkpoint_ns") or "")),
            None if checkpoint_id is None else check_name("checkpoint_id", str(checkpoint_id)),
        )

    @staticmethod
    def check_thread_id(thread_id: Any) -> str:
        """A thread id as it is stored: its `str`.

        Raises:
            InvalidNameError: it is too long or no Unicode text.
        """
        return check_name("thread_id", str(thread_id))

    @property
    def place(self) -> Place:
        """The addressed checkpoint."""
        return (self.thread_id, self.checkpoint_ns, self.checkpoint_id or "")

    def child_place(self, checkpoint_id: str) -> Place:
        """A checkpoint in the same thread and namespace."""
        return (self.thread_id, self.checkpoint_ns, checkpoint_id)

    def child(self, checkpoint_id: str) -> RunnableConfig:
        """The config of a checkpoint in the same thread and namespace."""
        return config_of(self.thread_id, self.checkpoint_ns, checkpoint_id)


def config_of(thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> RunnableConfig:
    """The config that addresses a checkpoint."""
    return {
        "configurable": {
            "thread_id": thread_id,
            "checkpoint_ns": checkpoint_ns,
            "checkpoint_id": checkpoint_id,
        }
    }


class Encoded(NamedTuple):
    """A call as records, and what is known of them from then on."""

    target: Target
    records: list[Record]
    stored: Future[None]
    """To be done when they are durable."""
    needs: frozenset[Future[None]]
    """What they were made against and is not durable yet."""
    place: Place
    known: Known | None = None
    """What is known of the checkpoint that was put."""
    writes: tuple[KnownWrite, ...] = ()
    """What was written at the checkpoint."""


class DumpedWrite(NamedTuple):
    """A write to a channel, as the serde's tag and bytes."""

    channel: str
    type: str
    data: bytes


class CheckpointCoder:
    """Turns puts, writes and deletes into records."""

    def __init__(
        self,
        serde: SerializerProtocol,
        stamp: Callable[[], int],
        bases: BaseCache,
        seen_s: float,
    ) -> None:
        """Serialise with `serde`.

        Args:
            serde: how values become bytes.
            stamp: gives each record its stamp.
            bases: what is known of earlier values, to patch against.
            seen_s: how lately a write, or an ancestor beyond the parent, must have been seen for
                that.
        """
        self._seen_s = seen_s
        self._serde = serde
        self._stamp = stamp
        self._bases = bases

    def put_records(
        self,
        target: Target,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Encoded:
        """The records of a put: the values first, then the checkpoint that names them."""
        here = target._replace(checkpoint_id=check_name("checkpoint id", checkpoint["id"]))
        parent_id = target.checkpoint_id or _parent_of_original(config, metadata)
        values: dict[str, Any] = checkpoint["channel_values"]
        merged = get_checkpoint_metadata(config, metadata)
        run_id = _text(merged.get("run_id"))
        ancestry = [Known()]
        if target.checkpoint_id:
            ancestry = self._bases.ancestry(target.place, self._seen_s)
        parent = ancestry[0]
        stored: Future[None] = Future()
        needs: set[Future[None]] = set()
        records: list[Record] = []
        fresh: dict[str, Base] = {}
        for channel, version in new_versions.items():
            record = self._blob(here, channel, encode_version(version), run_id)
            if channel not in values:
                records.append(record._replace(encoding=Encoding.EMPTY))
                continue
            type_, data = self._dump(values[channel])
            patched = patch_blob(record._replace(type=type_), data, ancestry, self._seen_s)
            records.append(patched.record)
            needs |= patched.needs
            fresh[channel] = Base(channel, record.version or "", data, patched.links, stored)
        records += [
            self._with_value(self._blob(here, channel, None, run_id), value)
            for channel, value in values.items()
            if _stays_with_checkpoint(channel, value, checkpoint, new_versions)
        ]
        records.append(self._checkpoint(here, parent_id, checkpoint, merged))
        inherited = {
            channel: base
            for channel, base in parent.values.items()
            if base.version == _encoded(checkpoint["channel_versions"].get(channel))
        }
        known = Known(
            {**inherited, **fresh},
            fresh=frozenset(fresh),
            parent=target.place if target.checkpoint_id else None,
        )
        return Encoded(target, records, stored, frozenset(needs), here.place, known)

    def _blob(self, here: Target, channel: str, version: str | None, run_id: str | None) -> Record:
        return self._record(here, Kind.BLOB)._replace(
            channel=check_name("channel", channel), version=version, run_id=run_id
        )

    def _checkpoint(
        self,
        here: Target,
        parent: str | None,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
    ) -> Record:
        bare = {k: v for k, v in checkpoint.items() if k != "channel_values"}
        versions = {
            check_name("channel", channel): encode_version(version)
            for channel, version in checkpoint["channel_versions"].items()
        }
        metadata_type, metadata_value = self._serde.dumps_typed(metadata)
        step = metadata.get("step")
        record = self._record(here, Kind.CHECKPOINT)
        return self._with_value(record, bare)._replace(
            parent_checkpoint_id=parent,
            metadata_type=metadata_type,
            metadata_value=bytes(metadata_value),
            metadata=_to_json(metadata),
            versions=json.dumps(versions, separators=(",", ":")),
            run_id=_text(metadata.get("run_id")),
            source=_text(metadata.get("source")),
            step=step if isinstance(step, int) and -(2**63) <= step < 2**63 else None,
            ts=_parse_ts(checkpoint.get("ts")) or record.ts,
        )

    def dump(self, writes: Sequence[tuple[str, Any]]) -> list[DumpedWrite]:
        """Writes as bytes, which nobody changes any more."""
        return [DumpedWrite(channel, *self._dump(value)) for channel, value in writes]

    def write_records(
        self,
        target: Target,
        config: RunnableConfig,
        writes: Sequence[DumpedWrite],
        task_id: str,
        task_path: str,
    ) -> Encoded:
        """The records of a task's writes, in their order.

        Raises:
            InvalidNameError: the config names no checkpoint.
        """
        if target.checkpoint_id is None:
            raise InvalidNameError(
                f"writes of task {task_id!r} need the checkpoint_id of the step they belong to; "
                "use the config that put returned"
            )
        run_id = _text(_run_id(config))
        here = self._bases.at(target.place)
        stored: Future[None] = Future()
        needs: set[Future[None]] = set()
        records: list[Record] = []
        written: list[KnownWrite] = []
        for idx, (channel, type_, data) in enumerate(writes):
            record = self._record(target, Kind.WRITE)._replace(
                channel=check_name("channel", channel),
                task_id=check_name("task_id", task_id),
                task_path=check_name("task_path", task_path),
                idx=WRITES_IDX_MAP.get(channel, idx),
                run_id=run_id,
                type=type_,
            )
            patched = patch_write(record, data, here)
            records.append(patched.record)
            needs |= patched.needs
            checksum = patched.record.checksum or 0
            written.append(KnownWrite(channel, checksum, data, stored))
        known = tuple(written)
        return Encoded(target, records, stored, frozenset(needs), target.place, writes=known)

    def _record(self, here: Target, kind: Kind) -> Record:
        stamp = self._stamp()
        return Record(
            thread_id=here.thread_id,
            checkpoint_ns=here.checkpoint_ns,
            checkpoint_id=here.checkpoint_id or "",
            kind=kind,
            stamp=stamp,
            ts=stamp_to_us(stamp),
        )

    def _with_value(self, record: Record, value: Any) -> Record:
        type_, data = self._dump(value)
        return record._replace(
            type=type_, value=data, size=len(data), checksum=checksum_of(type_, data)
        )

    def _dump(self, value: Any) -> tuple[str, bytes]:
        type_, data = self._serde.dumps_typed(value)
        return type_, bytes(data)


def _parent_of_original(config: RunnableConfig, metadata: CheckpointMetadata) -> str | None:
    """The parent that a copy of a checkpoint shares with it, when that parent is hidden.

    LangGraph copies a checkpoint under its parent, and one that shows no parent as a root. The
    values of its delta channels are in the hidden ancestors.
    """
    if metadata.get("source") != "fork":
        return None
    parent = config["configurable"].get(HIDDEN_PARENT)
    return None if parent is None else check_name("checkpoint_id", str(parent))


def _encoded(version: str | int | float | None) -> str | None:
    return None if version is None else encode_version(version)


def _stays_with_checkpoint(
    channel: str, value: Any, checkpoint: Checkpoint, new_versions: ChannelVersions
) -> bool:
    """Whether a value cannot be found again by its channel's version.

    A snapshot that a copied checkpoint carries along belongs to no new version, and its
    old version may have no value of its own.
    """
    if channel in new_versions:
        return False
    return channel not in checkpoint["channel_versions"] or isinstance(value, _DeltaSnapshot)


def _run_id(config: RunnableConfig) -> Any:
    for part in (config.get("metadata"), config.get("configurable")):
        if part and part.get("run_id") is not None:
            return part["run_id"]
    return config.get("run_id")


def _text(value: Any) -> str | None:
    """A value for a text column; surrogates, which Arrow cannot hold, are replaced."""
    return None if value is None else str(value).encode("utf-8", "replace").decode()


def _parse_ts(ts: Any) -> int | None:
    """An ISO time as microseconds since the epoch."""
    try:
        return round(datetime.fromisoformat(ts).timestamp() * 1_000_000)
    except (TypeError, ValueError, OverflowError):
        return None


def _to_json(metadata: Mapping[str, Any]) -> str:
    try:
        return json.dumps(metadata, default=_plain, separators=(",", ":"), skipkeys=True)
    except (ValueError, RecursionError):
        return json.dumps({k: v for k, v in metadata.items() if k in _CORE_METADATA}, default=str)


_CORE_METADATA = ("source", "step", "parents", "run_id", "counters_since_delta_snapshot")


def _plain(value: Any) -> Any:
    """A stand-in for what JSON cannot hold; the exact value is in the serde's form."""
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return dump(mode="json")
    return f"<{type(value).__module__}.{type(value).__qualname__}>"
