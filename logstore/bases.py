"""What this process knows of checkpoints' values, for patches against them.

A value may only be made into a patch against what its readers are sure to have: values of the
parent checkpoint, and writes at it. A visible checkpoint needs its parent's values anyway; and
if another process has deleted the parent, the new checkpoint is not shown either. What is on its
way to the store may serve too: the lane that stores the patch refuses it if that is lost.

A large value whose channel has none at the parent, as when a graph stores a delta channel's value
itself after some updates, may be made against earlier ancestors. Those, and all writes, must have
been seen so lately that the compactor cannot have dropped them, even if another process hides them
now.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cachetools import LRUCache

from logstore.clock import Elapsed
from logstore.codec import MIN_VALUE_BYTES, encode_patch
from logstore.dictionary import name_writes
from logstore.records import Encoding, Record, checksum_of

MAX_LINKS = 16
"""The longest chain of patches that a writer makes; the compactor re-bases them."""
MAX_LARGE_LINKS = 64
_LARGE_BYTES = 256 << 10
"""A chain of such values may be longer: to store one whole costs more than to read the links."""
_FAR_BYTES = 32 << 10
"""Smaller values are made against the parent only."""
_MAX_WAIT_S = 5.0
_MAX_ANCESTORS = 256
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
    stored: Future[None] | None = None
    """Done when it is durable; None if it was read from the store."""

    @property
    def may_be_extended(self) -> bool:
        """Whether a patch against it makes no chain that is too long."""
        return self.links < (MAX_LARGE_LINKS if len(self.data) >= _LARGE_BYTES else MAX_LINKS)


@dataclass(frozen=True, slots=True)
class KnownWrite:
    """A write at a checkpoint, as the serde's bytes."""

    channel: str
    checksum: int
    data: bytes
    stored: Future[None] | None = None
    """Done when it is durable; None if it was read from the store."""
    seen: Elapsed = field(default_factory=Elapsed)
    """Since it was read, or written. Others may hide it at a checkpoint that stays."""


@dataclass(frozen=True)
class Known:
    """What is known of one checkpoint."""

    values: Mapping[str, Base] = field(default_factory=dict)
    writes: tuple[KnownWrite, ...] = ()
    fresh: frozenset[str] = frozenset()
    """The channels whose value is new at this checkpoint."""
    parent: Place | None = None
    seen: Elapsed = field(default_factory=Elapsed)
    """Since it was read, or put."""

    @property
    def size(self) -> int:
        """Bytes, values that other checkpoints share included."""
        return sum(len(part.data) for part in self._parts)

    @property
    def _parts(self) -> Iterable[Base | KnownWrite]:
        return (*self.values.values(), *self.writes)

    def without_lost(self) -> Known:
        """Only what is durable or may come to be."""
        if not any(_is_lost(part.stored) for part in self._parts):
            return self
        values = {channel: b for channel, b in self.values.items() if not _is_lost(b.stored)}
        writes = tuple(w for w in self.writes if not _is_lost(w.stored))
        return replace(self, values=values, writes=writes, fresh=self.fresh & values.keys())


class BaseCache:
    """What is known of the checkpoints last read or written, under a byte budget."""

    def __init__(self, budget: int) -> None:
        """Know nothing yet."""
        self._lock = threading.Lock()
        self._learning: dict[Place, threading.Event] = {}
        self._known: LRUCache[Place, Known] = LRUCache(budget, getsizeof=_size_of)

    def at(self, place: Place) -> Known:
        """What is known of a checkpoint; nothing, perhaps."""
        with self._lock:
            return self._known.get(place, Known()).without_lost()

    @contextmanager
    def learning(self, place: Place) -> Iterator[None]:
        """While a checkpoint is made ready to be stored, and learnt at the end."""
        done = threading.Event()
        with self._lock:
            self._learning[place] = done
        try:
            yield
        finally:
            with self._lock:
                if self._learning.get(place) is done:
                    del self._learning[place]
            done.set()

    def is_learning(self, place: Place) -> bool:
        """Whether a checkpoint is being made ready."""
        with self._lock:
            return place in self._learning

    def wait_for(self, place: Place) -> None:
        """Wait for a checkpoint that another thread is making ready; not for ever.

        Writes at a checkpoint are sent beside it, and hold most often what it holds.
        """
        with self._lock:
            done = self._learning.get(place)
        if done is not None:
            done.wait(_MAX_WAIT_S)

    def ancestry(self, place: Place, max_age_s: float) -> list[Known]:
        """What is known of a checkpoint and its ancestors, the checkpoint first.

        Args:
            place: the checkpoint.
            max_age_s: of the ancestors only what was seen so lately.
        """
        found = [self.at(place)]
        while (current := found[-1].parent) is not None and len(found) < _MAX_ANCESTORS:
            with self._lock:
                known = self._known.get(current)
            if known is None or known.seen.seconds() > max_age_s:
                break
            found.append(known.without_lost())
        return found

    def learn(self, place: Place, known: Known) -> None:
        """A checkpoint was read, or is on its way to the store."""
        with self._lock:
            old = self._known.pop(place, None)
            if old is not None:
                # What was durable and is not among what was read has been hidden.
                under_way = [w for w in old.writes if w.stored and not w.stored.done()]
                known = replace(known, writes=_joined(under_way, known.writes))
            if _size_of(known) <= self._known.maxsize:
                self._known[place] = known

    def learn_writes(self, place: Place, writes: Sequence[KnownWrite]) -> None:
        """Writes at a checkpoint are on their way to the store."""
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
    kept = [w for w in old if not _is_lost(w.stored)]
    seen = {(w.channel, w.checksum) for w in kept}
    return (*kept, *(w for w in new if (w.channel, w.checksum) not in seen))


def _is_lost(stored: Future[None] | None) -> bool:
    return stored is not None and stored.done() and stored.exception() is not None


class Patched(NamedTuple):
    """A record with its value, which may be a patch."""

    record: Record
    links: int = 0
    """How many patches its decoding takes."""
    needs: frozenset[Future[None]] = frozenset()
    """What it was made against and is not durable yet."""


def patch_blob(record: Record, data: bytes, ancestry: Sequence[Known], max_age_s: float) -> Patched:
    """A value as a patch against an ancestor's value and the writes since.

    Args:
        record: what the value belongs to.
        data: the value.
        ancestry: what is known of the parent and, for a large value, of its ancestors.
        max_age_s: of the writes only what was seen so lately.
    """
    base, steps = _since_last_value(record.channel or "", data, ancestry, max_age_s)
    writes = [w for step in reversed(steps) for w in step]
    names = name_writes([[w.checksum for w in step] for step in steps]) if writes else None
    if names is None:
        writes = []
    if base is not None and not base.may_be_extended:
        base, writes = None, []
    patched = None
    if base is not None or writes:
        patched = encode_patch(data, base.data if base else b"", [w.data for w in writes])
    if patched is None:
        return Patched(_raw(record, data))
    made = _raw(record, data)._replace(
        encoding=Encoding.PATCH,
        value=patched,
        base_version=base.version if base else None,
        dictionary=names if writes else None,
    )
    links = base.links + 1 if base else 1
    return Patched(made, links, _on_their_way([*writes, *([base] if base else [])]))


def _since_last_value(
    channel: str, data: bytes, ancestry: Sequence[Known], max_age_s: float
) -> tuple[Base | None, list[list[KnownWrite]]]:
    """The nearest value of a channel, and its writes from there on, nearest ancestor first."""
    steps: list[list[KnownWrite]] = []
    for known in ancestry[: None if len(data) >= _FAR_BYTES else 1]:
        mine = (w for w in known.writes if w.channel == channel)
        steps.append([w for w in mine if w.seen.seconds() <= max_age_s])
        if channel in known.values:
            return known.values[channel], steps
    return None, steps


def patch_write(record: Record, data: bytes, here: Known) -> Patched:
    """A large write as a patch against a value at its own checkpoint.

    Its channel's own value comes first: a plain channel is most often written anew with small
    changes. An input arrives as a value of another channel, and is then written to its own.
    """
    if len(data) < _MIN_WRITE_BYTES:
        return Patched(_raw(record, data))
    own = here.values.get(record.channel or "")
    others = sorted(
        (here.values[ch] for ch in here.fresh if ch != record.channel and ch in here.values),
        key=lambda base: -len(base.data),
    )
    best: tuple[Base, bytes] | None = None
    for base in [*([own] if own else []), *others[:_CROSS_CHANNELS]]:
        if not base.may_be_extended or len(base.data) < MIN_VALUE_BYTES:
            continue
        patched = encode_patch(data, base.data, ())
        if patched is not None and (best is None or len(patched) < len(best[1])):
            best = (base, patched)
        if best is not None and len(best[1]) < _POOR_RATIO * len(data):
            break
    if best is None:
        return Patched(_raw(record, data))
    base, patched = best
    made = _raw(record, data)._replace(
        encoding=Encoding.PATCH,
        value=patched,
        base_channel=None if base.channel == record.channel else base.channel,
        base_version=base.version,
    )
    return Patched(made, base.links + 1, _on_their_way([base]))


def _on_their_way(parts: Iterable[Base | KnownWrite]) -> frozenset[Future[None]]:
    # One that has failed since it was looked up counts: whoever submits the patch must hear it.
    return frozenset(p.stored for p in parts if p.stored is not None and not _is_stored(p.stored))


def _is_stored(stored: Future[None]) -> bool:
    return stored.done() and stored.exception() is None


def _raw(record: Record, data: bytes) -> Record:
    return record._replace(
        value=data,
        encoding=Encoding.RAW,
        size=len(data),
        checksum=checksum_of(record.type, data),
    )
