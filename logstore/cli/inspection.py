"""One checkpoint as it is stored: values decoded structurally, and where each of them lies.

It reads as the saver does, the head first and the whole history where that does not reach,
but constructs nothing of what the values name, and tells what it could not read instead of
giving up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from logstore.cli.common import CommandError
from logstore.cli.options import check_namespace, read_thread
from logstore.cli.places import Places, ReadPath
from logstore.encode import Target
from logstore.errors import FormatError, ReadError
from logstore.reader import ThreadRead, until_stable
from logstore.records import Kind, Record
from logstore.store import LogStore
from logstore.structural import decode, is_delta_snapshot
from logstore.view import NeedsHistory
from logstore.walk import snapshot_stands, walk


@dataclass(frozen=True, slots=True)
class Stored:
    """A value as it was found."""

    record: Record
    where: str
    """The key of the object that it was read from."""
    type: str | None = None
    """The serde's tag."""
    size: int = 0
    """Bytes, as the serde wrote them."""
    value: Any = None
    """Plain data."""
    error: str | None = None
    """Why there is none."""


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel at the checkpoint.

    Its kind is `value` (the graph stored it), `snapshot` (the compactor did), `delta` (to be
    rebuilt from a seed and the writes since), or `empty`.
    """

    name: str
    version: str | None
    kind: str
    value: Stored | None = None
    seed: Stored | None = None
    """What a delta channel starts from; None to start empty."""
    writes: tuple[Stored, ...] = ()
    """What is replayed on top, oldest first."""
    error: str | None = None
    """Why a delta channel's seed and writes cannot be reached."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """A checkpoint."""

    checkpoint: Record
    head: bool
    parent_hidden: bool
    """Whether its parent was hidden by a prune or with its run."""
    metadata: Stored
    channels: tuple[Channel, ...]
    pending: tuple[Stored, ...]
    """The writes that were stored at it, in the order in which a step applies them."""
    path: ReadPath
    errors: tuple[str, ...]
    """What could not be read."""


def inspect(store: LogStore, thread_id: str, ns: str, checkpoint_id: str | None) -> Inspection:
    """Read a checkpoint, or the head of a namespace.

    Raises:
        CommandError: there is no such thread, namespace or checkpoint.
        LogStoreError: an object that all of it rests on cannot be read.
    """
    name = Target.check_thread_id(thread_id)

    def attempt() -> Inspection:
        try:
            return _inspect(store, store.read_head(name), ns, checkpoint_id, head=True)
        except NeedsHistory:
            problems: tuple[str, ...] = ()
        except ReadError as error:
            problems = (str(error),)
        found = _inspect(store, read_thread(store, name), ns, checkpoint_id, head=False)
        return replace(found, errors=(*problems, *found.errors))

    return until_stable(attempt)


def _inspect(
    store: LogStore, read: ThreadRead, ns: str, checkpoint_id: str | None, *, head: bool
) -> Inspection:
    return _Inspector(store, read, Places(store, read, head=head)).inspect(ns, checkpoint_id)


class _Inspector:
    def __init__(self, store: LogStore, read: ThreadRead, places: Places) -> None:
        self._store = store
        self._read = read
        self._view = read.view
        self._values = store.reader.decoder(read)
        self._places = places

    def inspect(self, ns: str, checkpoint_id: str | None) -> Inspection:
        checkpoint = self._find(ns, checkpoint_id)
        if not self._view.holds_whole(checkpoint):
            raise NeedsHistory
        head = self._view.head(ns)
        channels = self._channels(checkpoint)
        pending = tuple(map(self._stored, self._view.writes(ns, checkpoint.checkpoint_id)))
        metadata = self._metadata(checkpoint)
        values = [metadata, *pending]
        for channel in channels:
            values += [v for v in (channel.value, channel.seed, *channel.writes) if v is not None]
        errors = [*(c.error for c in channels), *(v.error for v in values)]
        return Inspection(
            checkpoint=checkpoint,
            head=head is not None and head.checkpoint_id == checkpoint.checkpoint_id,
            parent_hidden=self._view.is_boundary(checkpoint),
            metadata=metadata,
            channels=channels,
            pending=pending,
            path=self._places.path,
            errors=tuple(dict.fromkeys(error for error in errors if error)),
        )

    def _find(self, ns: str, checkpoint_id: str | None) -> Record:
        view = self._view
        found = view.head(ns) if checkpoint_id is None else view.checkpoint(ns, checkpoint_id)
        if found is not None:
            return found
        if not view.complete or not view.namespaces():
            raise NeedsHistory
        check_namespace(self._read, ns)
        raise CommandError(
            f"thread {view.thread_id!r} has no checkpoint {checkpoint_id!r} in namespace {ns!r}; "
            f'those that it has: logstore history "{self._store.uri}" "{view.thread_id}"'
        )

    # -- channels ------------------------------------------------------------------

    def _channels(self, checkpoint: Record) -> tuple[Channel, ...]:
        ns, view = checkpoint.checkpoint_ns, self._view
        versions = view.versions(checkpoint)
        found: dict[str, Channel] = {}
        for name in {**versions, **view.inline_values(ns, checkpoint.checkpoint_id)}:
            channel = self._with_value(checkpoint, name, versions.get(name))
            if channel is not None:
                found[name] = channel
        found.update(self._rebuilt(checkpoint, [n for n in versions if n not in found]))
        return tuple(found[name] for name in sorted(found))

    def _with_value(self, checkpoint: Record, name: str, version: str | None) -> Channel | None:
        view, ns = self._view, checkpoint.checkpoint_ns
        stored = view.stored_value(checkpoint, name)
        if stored is not None:
            return Channel(name, version, "value", value=self._stored(stored))
        if version and not view.complete and view.blob(ns, name, version) is None:
            raise NeedsHistory
        snapshot = view.snapshot(ns, checkpoint.checkpoint_id, name)
        if snapshot and snapshot_stands(view, checkpoint, name, self._read.late):
            return Channel(name, version, "snapshot", value=self._stored(snapshot))
        return None

    def _rebuilt(self, checkpoint: Record, names: Collection[str]) -> dict[str, Channel]:
        """The channels without a value here: delta channels, and those that are empty."""
        found = {}
        for name in names:
            channel = None
            if self._may_be_delta(checkpoint, name):
                channel = self._replayed(checkpoint, name)
            version = self._view.versions(checkpoint)[name]
            found[name] = channel or Channel(name, version, "empty")
        return found

    def _replayed(self, checkpoint: Record, name: str) -> Channel | None:
        """A delta channel's seed and writes; None if it turns out to be no delta channel."""
        version = self._view.versions(checkpoint)[name]
        try:
            history = walk(self._view, checkpoint, [name], self._read.late)[name]
        except ReadError as error:
            known = name in _counters(checkpoint)
            return Channel(name, version, "delta", error=str(error)) if known else None
        seed = None if history.seed is None else self._stored(history.seed)
        if not self._is_delta(checkpoint, name, history.span, seed):
            return None
        writes = tuple(map(self._stored, history.writes))
        return Channel(name, version, "delta", seed=seed, writes=writes)

    def _may_be_delta(self, checkpoint: Record, name: str) -> bool:
        scope = self._view.scope
        return (
            scope is None
            or (checkpoint.checkpoint_ns, name) in scope.since
            or name in _counters(checkpoint)
        )

    def _is_delta(
        self, checkpoint: Record, name: str, span: Collection[str], seed: Stored | None
    ) -> bool:
        """LangGraph counts the updates of delta channels in the metadata, and only of these."""
        if seed is not None and (
            seed.record.kind == Kind.SNAPSHOT or is_delta_snapshot(seed.value)
        ):
            return True
        path = [self._view.checkpoint(checkpoint.checkpoint_ns, id_) for id_ in span]
        return any(name in _counters(record) for record in (checkpoint, *path) if record)

    # -- values --------------------------------------------------------------------

    def _stored(self, record: Record) -> Stored:
        def load() -> tuple[str, bytes]:
            ((type_, data),) = self._store.reader.decoder(self._read).load([record])
            return type_, data

        return self._decoded(record, load)

    def _metadata(self, checkpoint: Record) -> Stored:
        typed = (checkpoint.metadata_type or "", checkpoint.metadata_value or b"")
        return self._decoded(checkpoint, lambda: typed)

    def _decoded(self, record: Record, load: Callable[[], tuple[str, bytes]]) -> Stored:
        where = self._places.of(record)
        try:
            type_, data = load()
        except (FormatError, ReadError) as error:
            return Stored(record, where, error=str(error))
        try:
            return Stored(record, where, type_, len(data), decode(type_, data))
        except FormatError as error:
            return Stored(record, where, type_, len(data), error=f"{where}: {error}")


def _counters(checkpoint: Record) -> Mapping[str, Any]:
    metadata = json.loads(checkpoint.metadata or "{}")
    return metadata.get("counters_since_delta_snapshot") or {}
