"""What this process knows of checkpoints' values, for patches against them.

A value may only be made into a patch against what its readers are sure to have: values of the
parent checkpoint, and writes at it. A visible checkpoint needs its parent's values anyway; and
if another process has deleted the parent, the new checkpoint is not shown either.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cachetools import LRUCache

from logstore.codec import MIN_VALUE_BYTES, encode_patch
from logstore.dictionary import name_writes
from logstore.records import Encoding, Record, checksum_of

MAX_LINKS = 16
"""The longest chain of patches that a writer makes; the compactor re-bases them."""
_MIN_WRITE_BYTES = 1024
_POOR_RATIO = 0.5
_CROSS_CHANNELS = 2
Place = tuple[str, str, str]
"""Thread, namespace, checkpoint id."""


@dataclass(frozen=True, slots=True)
class Base:
    """A channel's value at a version, as the serde's bytes."""

    channel: str
    version: str
    data: bytes
    links: int = 0
    """How many patches its decoding takes."""


@dataclass(frozen=True, slots=True)
class KnownWrite:
    """A write at a checkpoint, as the serde's bytes."""

    channel: str
    checksum: int
    data: bytes


@dataclass(frozen=True)
class Known:
    """What is known of one checkpoint."""

    values: Mapping[str, Base] = field(default_factory=dict)
    writes: tuple[KnownWrite, ...] = ()
    fresh: frozenset[str] = frozenset()
    """The channels whose value is new at this checkpoint."""

    @property
    def size(self) -> int:
        """Bytes, values that other checkpoints share included."""
        return sum(len(b.data) for b in self.values.values()) + sum(
            len(w.data) for w in self.writes
        )


class BaseCache:
    """What is known of the checkpoints last read or written, under a byte budget."""

    def __init__(self, budget: int) -> None:
        """Know nothing yet."""
        self._lock = threading.Lock()
        self._known: LRUCache[Place, Known] = LRUCache(budget, getsizeof=_size_of)

    def at(self, place: Place) -> Known:
        """What is known of a checkpoint; nothing, perhaps."""
        with self._lock:
            return self._known.get(place, Known())

    def learn(self, place: Place, known: Known) -> None:
        """A checkpoint was read, or is durable now."""
        with self._lock:
            old = self._known.pop(place, None)
            if old is not None:
                known = replace(known, writes=_joined(old.writes, known.writes))
            if _size_of(known) <= self._known.maxsize:
                self._known[place] = known

    def learn_writes(self, place: Place, writes: Sequence[KnownWrite]) -> None:
        """Writes at a checkpoint are durable now."""
        with self._lock:
            known = self._known.pop(place, None)
            if known is None:
                return
            known = replace(known, writes=_joined(known.writes, writes))
            if _size_of(known) <= self._known.maxsize:
                self._known[place] = known

    def forget(self, thread_id: str) -> list[Place]:
        """A thread was deleted.

        Returns:
            Its checkpoints that something was known of.
        """
        with self._lock:
            places = [place for place in self._known if place[0] == thread_id]
            for place in places:
                del self._known[place]
        return places


def _size_of(known: Known) -> int:
    return 256 + known.size


def _joined(old: Sequence[KnownWrite], new: Sequence[KnownWrite]) -> tuple[KnownWrite, ...]:
    seen = {(w.channel, w.checksum) for w in old}
    return (*old, *(w for w in new if (w.channel, w.checksum) not in seen))


def patch_blob(record: Record, data: bytes, parent: Known) -> tuple[Record, int]:
    """A value as a patch against the parent's value and the writes at the parent.

    Returns:
        The record with its value, and how many links its decoding takes.
    """
    channel = record.channel or ""
    base = parent.values.get(channel)
    writes = [w for w in parent.writes if w.channel == channel]
    names = name_writes([[w.checksum for w in writes]]) if writes else None
    if names is None:
        writes = []
    if base is not None and base.links >= MAX_LINKS:
        base, writes = None, []
    patched = None
    if base is not None or writes:
        patched = encode_patch(data, base.data if base else b"", [w.data for w in writes])
    if patched is None:
        return _raw(record, data), 0
    links = base.links + 1 if base else 1
    return (
        _raw(record, data)._replace(
            encoding=Encoding.PATCH,
            value=patched,
            base_version=base.version if base else None,
            dictionary=names if writes else None,
        ),
        links,
    )


def patch_write(record: Record, data: bytes, here: Known) -> Record:
    """A large write as a patch against a value at its own checkpoint.

    Its channel's own value comes first: a plain channel is most often written anew with small
    changes. An input arrives as a value of another channel, and is then written to its own.
    """
    if len(data) < _MIN_WRITE_BYTES:
        return _raw(record, data)
    own = here.values.get(record.channel or "")
    others = sorted(
        (here.values[ch] for ch in here.fresh if ch != record.channel and ch in here.values),
        key=lambda base: -len(base.data),
    )
    best: tuple[Base, bytes] | None = None
    for base in [*([own] if own else []), *others[:_CROSS_CHANNELS]]:
        if base.links >= MAX_LINKS or len(base.data) < MIN_VALUE_BYTES:
            continue
        patched = encode_patch(data, base.data, ())
        if patched is not None and (best is None or len(patched) < len(best[1])):
            best = (base, patched)
        if best is not None and len(best[1]) < _POOR_RATIO * len(data):
            break
    if best is None:
        return _raw(record, data)
    base, patched = best
    return _raw(record, data)._replace(
        encoding=Encoding.PATCH,
        value=patched,
        base_channel=None if base.channel == record.channel else base.channel,
        base_version=base.version,
    )


def _raw(record: Record, data: bytes) -> Record:
    return record._replace(
        value=data,
        encoding=Encoding.RAW,
        size=len(data),
        checksum=checksum_of(record.type, data),
    )
