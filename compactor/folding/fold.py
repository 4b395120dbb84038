"""Folding: from a channel's writes to the snapshot of its value.

The fold is exactly LangGraph's walk: all writes of the channel on every ancestor, back to
the nearest valid snapshot or stored value, through the channel's own `from_checkpoint` and
`replay_writes`. It runs the application's reducer, which comes from the operator only, and
does not trust it: each fold is made twice, at once and in two parts, and both must agree.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import msgpack
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from compactor.folding.channels import ChannelSpec
from compactor.merging.rebase import links_of
from logstore.blocked import blocked_classes
from logstore.records import Encoding, Kind, Record, checksum_of
from logstore.values import Typed
from logstore.walk import ChannelHistory

Loader = Callable[[Sequence[Record]], list[tuple[str, bytes]]]

_CLASS_EXTENSIONS = frozenset(range(6))
"""The MessagePack extension types of LangGraph's serde that name a class."""


class Unfoldable(Exception):
    """A channel cannot be folded here; the message says why."""


class BrokenLawError(Unfoldable):
    """The reducer gives different values for the same writes."""


class Folder:
    """Makes snapshots for one job."""

    def __init__(
        self, serde: SerializerProtocol, job: str, generation: int, stamp: Callable[[], int]
    ) -> None:
        """Make snapshots that the partition manifest of `generation` commits."""
        self._serde = serde
        self._job = job
        self._generation = generation
        self._stamp = stamp

    def fold(
        self,
        spec: ChannelSpec,
        checkpoint: Record,
        history: ChannelHistory,
        load: Loader,
        graves: int,
        arrived: int,
    ) -> Record:
        """The snapshot of a channel's value entering a checkpoint.

        Args:
            spec: the channel.
            checkpoint: where the snapshot belongs.
            history: what the walk from the checkpoint found.
            load: gives the serde's form of records' values.
            graves: how many times the thread was deleted.
            arrived: the store's clock: microseconds since the epoch.

        Raises:
            Unfoldable: the reducer failed or broke a law, or a class is not at hand.
        """
        seed = [] if history.seed is None else [history.seed]
        typed = load([*seed, *history.writes])
        where = f"thread {checkpoint.thread_id!r}, step {checkpoint.step}"
        try:
            type_, value = self._agreed(spec, history, typed, where)
        except Unfoldable:
            raise
        except Exception as error:
            with suppress(ValueError):  # what cannot be read names no classes
                self._check_classes(typed)
            raise Unfoldable(
                f"the reducer failed at {where}: {type(error).__name__}: {error}"
            ) from error
        self._check_classes(typed)
        return Record(
            thread_id=checkpoint.thread_id,
            checkpoint_ns=checkpoint.checkpoint_ns,
            checkpoint_id=checkpoint.checkpoint_id,
            kind=Kind.SNAPSHOT,
            channel=spec.name,
            type=type_,
            value=value,
            encoding=Encoding.RAW,
            size=len(value),
            checksum=checksum_of(type_, value),
            run_id=checkpoint.run_id,
            source=checkpoint.source,
            step=checkpoint.step,
            ts=checkpoint.ts,
            cover=cover_of(history, graves, spec),
            stamp=self._stamp(),
            writer=self._job,
            seq=self._generation,
            arrived=arrived,
        )

    def same_value(self, a: Typed, b: Typed) -> bool:
        """Whether two serialised values are one: by their bytes, or as what they decode to."""
        return a == b or _equal(self._serde.loads_typed(a), self._serde.loads_typed(b))

    def restate(self, snapshot: Record, value: bytes, arrived: int) -> Record:
        """A snapshot once more, its value whole."""
        return snapshot._replace(
            value=value,
            encoding=Encoding.RAW,
            base_channel=None,
            base_version=None,
            dictionary=None,
            ordinal=None,
            stamp=self._stamp(),
            writer=self._job,
            seq=self._generation,
            arrived=arrived,
        )

    def void(self, snapshot: Record, arrived: int) -> Record:
        """The record that takes a snapshot back which nothing can replace here."""
        return snapshot._replace(
            encoding=Encoding.VOID,
            type=None,
            value=None,
            size=None,
            checksum=None,
            base_version=None,
            dictionary=None,
            ordinal=None,
            stamp=self._stamp(),
            writer=self._job,
            seq=self._generation,
            arrived=arrived,
        )

    def _agreed(
        self,
        spec: ChannelSpec,
        history: ChannelHistory,
        typed: Sequence[tuple[str, bytes]],
        where: str,
    ) -> tuple[str, bytes]:
        """Fold at once and in two parts, from values read anew, and compare."""
        half = len(history.writes) // 2
        with blocked_classes() as blocked:
            whole = self._replay(spec, history, typed, (len(history.writes),))
            parts = self._replay(spec, history, typed, (half, len(history.writes)))
        if blocked:
            raise Unfoldable(
                f"the serde does not allow {', '.join(sorted(blocked))}; pass --serde with an "
                "allowlist that has it, or a graph whose state names it"
            )
        type_, value = self._serde.dumps_typed(_DeltaSnapshot(whole))
        again = self._serde.dumps_typed(_DeltaSnapshot(parts))
        agrees = (type_, value) == again or _equal(whole, parts)
        if agrees and len(history.writes) == 1:
            agrees = self._agrees_on_two(spec, history, typed)
        if not agrees:
            raise BrokenLawError(
                f"the reducer broke its laws at {where}: folding the same {len(history.writes)} "
                "writes at once and in two parts gave different values. It must be "
                "deterministic (no clock, no random ids) and batching-invariant"
            )
        return type_, bytes(value)

    def _agrees_on_two(
        self, spec: ChannelSpec, history: ChannelHistory, typed: Sequence[tuple[str, bytes]]
    ) -> bool:
        """The law for a single write, which has no two parts: with the write taken twice."""
        twice = replace(history, writes=history.writes * 2)
        try:
            whole = self._replay(spec, twice, [*typed, typed[-1]], (2,))
            parts = self._replay(spec, twice, [*typed, typed[-1]], (1, 2))
        except Exception:  # a reducer may refuse a write that it has seen already
            return True
        return _equal(whole, parts)

    def _replay(
        self,
        spec: ChannelSpec,
        history: ChannelHistory,
        typed: Sequence[tuple[str, bytes]],
        cuts: Sequence[int],
    ) -> Any:
        values = [self._serde.loads_typed(one) for one in typed]
        seed = values.pop(0) if history.seed is not None else None
        channel = spec.channel.from_checkpoint(seed)
        begin = 0
        for end in cuts:
            part = zip(history.writes[begin:end], values[begin:end], strict=True)
            channel.replay_writes([(w.task_id, w.channel, value) for w, value in part])
            begin = end
        return channel.get()

    def _check_classes(self, typed: Sequence[tuple[str, bytes]]) -> None:
        """Refuse values whose classes are missing: the serde made plain dicts of them.

        It runs after the serde, so that nothing is imported that the serde would not import.
        """
        for type_, data in typed:
            if "+" in type_ and isinstance(self._serde, EncryptedSerializer):
                type_, cipher = type_.split("+", 1)
                data = self._serde.cipher.decrypt(cipher, data)
            if type_ != "msgpack":
                continue
            for module, name in _named_classes(data):
                if not _importable(module, name):
                    raise Unfoldable(
                        f"the class {module}.{name}, which stored values need, cannot be "
                        "imported here; run the compactor where the application is installed"
                    )


def typed_value(made: Record) -> Typed:
    """The serde's form of what a fold made."""
    assert made.type is not None
    assert isinstance(made.value, bytes)
    return made.type, made.value


def cover_of(history: ChannelHistory, graves: int, spec: ChannelSpec) -> str:
    """What a snapshot covers, as JSON: its span, its writes, what it began from."""
    digest = blake2b(digest_size=16)
    for write in history.writes:
        digest.update(
            f"{write.checkpoint_id}\0{write.task_id}\0{write.idx}\0{write.checksum}\0"
            f"{write.stamp}\0{write.writer}\n".encode()
        )
    seed = history.seed
    doc = {
        "graves": graves,
        "oldest": history.span[-1] if history.span else None,
        "newest": history.span[0] if history.span else None,
        "checkpoints": len(history.span),
        "writes": len(history.writes),
        "digest": digest.hexdigest(),
        "seed": None
        if seed is None
        else {
            "kind": seed.kind,
            "checkpoint_id": history.span[-1],
            "checksum": seed.checksum,
        },
        "reducer": spec.reducer,
        "fingerprint": spec.fingerprint,
        "links": 1 if seed is None else links_of(seed) + 1,
    }
    return json.dumps(doc, separators=(",", ":"))


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except Exception:  # a user's __eq__ may do anything; then the bytes decide
        return False


def _named_classes(data: bytes) -> set[tuple[str, str]]:
    """The classes that a MessagePack value names, found without importing anything."""
    found: set[tuple[str, str]] = set()

    def hook(code: int, body: bytes) -> None:
        inner = _unpack(body, hook)
        if code in _CLASS_EXTENSIONS and isinstance(inner, list) and len(inner) >= 2:
            found.add((str(inner[0]), str(inner[1])))

    _unpack(data, hook)
    return found


def _unpack(data: bytes, hook: Callable[[int, bytes], Any]) -> Any:
    return msgpack.unpackb(
        data, ext_hook=hook, strict_map_key=False, unicode_errors="surrogatepass"
    )


def _importable(module: str, name: str) -> bool:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception:  # a module may raise anything while it is imported
        return False
    return True
