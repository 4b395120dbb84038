"""Values: from stored form to the serde's bytes, each checked against its checksum."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

import zstandard

from logstore.cache import ByteCache
from logstore.codec import decode_patch
from logstore.dictionary import Dictionaries
from logstore.directory import DirectoryCache, ImmutableObjects
from logstore.errors import CorruptObjectError, MissingDataError, ObjectNotFoundError
from logstore.manifest import RunEntry
from logstore.objects.base import ObjectStore
from logstore.records import Encoding, Record, ValueRef, checksum_of
from logstore.runs import RunReader
from logstore.tail import StartAgain
from logstore.view import ThreadView

_MAX_VALUE_BYTES = 1 << 30
_OBJECT_MAGIC = b"LSV1"
Typed = tuple[str, bytes]
"""The serde's tag and bytes."""


Patched = ByteCache[tuple[Typed, int]]
Lost = Callable[[StartAgain], MissingDataError | None]
"""What patches were decoded to, by thread, type, size and checksum, each with its links."""


class TypedHistory(NamedTuple):
    """What a delta channel's value is rebuilt from, as the serde's bytes."""

    writes: tuple[tuple[str, Typed], ...]
    """Each with its task id, oldest first."""
    seed: Typed | None

    @property
    def size(self) -> int:
        """Bytes in memory, about."""
        typed = [value for _, value in self.writes] + ([self.seed] if self.seed else [])
        return 400 + sum(400 + len(data) for _, data in typed)


def encode_value_object(value: bytes) -> bytes:
    """The body of a snapshot object: a magic number and the value in zstd."""
    return _OBJECT_MAGIC + zstandard.ZstdCompressor(level=3, write_checksum=True).compress(value)


def _decode_value_object(key: str, data: bytes) -> bytes:
    if not data.startswith(_OBJECT_MAGIC):
        raise CorruptObjectError(
            f"{key} is not a snapshot object of logstore, or is truncated. Restore it from a "
            "version or copy of the bucket, or let the compactor make it anew"
        )
    try:
        return zstandard.ZstdDecompressor().decompress(
            data[len(_OBJECT_MAGIC) :], max_output_size=_MAX_VALUE_BYTES
        )
    except zstandard.ZstdError as error:
        raise CorruptObjectError(
            f"snapshot object {key} cannot be decompressed ({error}); it is damaged. Restore it "
            "from a version or copy of the bucket"
        ) from error


class ValueReader:
    """Finds the bytes of records' values, wherever they lie."""

    def __init__(
        self,
        objects: ObjectStore,
        executor: Executor,
        runs: RunReader,
        cache: ByteCache[bytes],
        directory: DirectoryCache | None = None,
        *,
        held_bytes: int,
    ) -> None:
        """Read through `objects`, `runs` and `directory`, with parallel requests on `executor`.

        A decoder lets go of decoded values beyond `held_bytes`, but of none that it still needs.
        """
        self._held_bytes = held_bytes
        self._objects = ImmutableObjects(objects, directory)
        self._executor = executor
        self._runs = runs
        self._cache = cache

    def prefetch(self, keys: Iterable[str]) -> list[Callable[[], bytes]]:
        """Begin to read snapshot objects; each result waits for one."""
        return [self._executor.submit(self.object, key).result for key in keys]

    def decoder(
        self,
        view: ThreadView,
        runs: Mapping[str, RunEntry],
        patched: Patched | None = None,
        lost: Lost | None = None,
    ) -> ValueDecoder:
        """Decodes values of one thread.

        Args:
            view: the thread, in which patches find what they were made against.
            runs: the runs that `ValueRef`s name, by key.
            patched: what need not be decoded again; None to prove each value from its record.
            lost: tells whether an object that is gone was lost; by default a newer manifest is
                taken to name another.
        """
        return ValueDecoder(self, view, runs, self._runs, patched, self._held_bytes, lost)

    def object(self, key: str) -> bytes:
        """The value in a snapshot object.

        Raises:
            StartAgain: it is gone; a newer manifest names another.
            CorruptObjectError: it is damaged.
        """
        cached = self._cache.get(key)
        if cached is not None:
            return cached
        try:
            value = self._objects.read(key, partial(_decode_value_object, key))
        except ObjectNotFoundError as error:
            raise StartAgain from error
        self._cache.put(key, value, len(value))
        return value


class ValueDecoder:
    """Decodes values of one view; what several patches share is decoded once."""

    def __init__(
        self,
        values: ValueReader,
        view: ThreadView,
        runs: Mapping[str, RunEntry],
        run_reader: RunReader,
        patched: Patched | None,
        held_bytes: int,
        lost: Lost | None = None,
    ) -> None:
        """Decode records of `view`."""
        self._lost = lost
        self._held_bytes = held_bytes
        self._values = values
        self._dictionaries = Dictionaries(view)
        self._runs = runs
        self._run_reader = run_reader
        self._patched = patched
        self._decoded: dict[int, tuple[Record, Typed, int]] = {}
        self._primed: set[int] = set()
        self._held = 0
        self._failed: dict[int, tuple[Record, Exception]] = {}

    def load(self, records: Sequence[Record]) -> list[Typed]:
        """The serde's tag and bytes of each record's value.

        Raises:
            CorruptObjectError: a value fails its checksum.
            MissingDataError: what a patch was made against is not there.
            NeedsHistory: a head view does not hold what a patch was made against.
            StartAgain: a run or snapshot object was replaced meanwhile.
        """
        return [self._value(record) for record in records]

    def prime(self, record: Record, typed: Typed) -> None:
        """Take a record's value as known, until all is forgotten."""
        self._decoded[id(record)] = (record, typed, 0)
        self._primed.add(id(record))

    def forget(self) -> None:
        """Let go of all decoded values."""
        self._decoded.clear()
        self._primed.clear()
        self._failed.clear()
        self._held = 0

    def links(self, record: Record) -> int:
        """How many patches the decoding of a record's value took, which was loaded last."""
        return self._decoded[id(record)][2]

    def _value(self, record: Record) -> Typed:
        # A chain of patches is walked without recursion.
        stack = [record]
        opened: dict[int, set[int]] = {}
        """What is being decoded, each with what it waits for."""
        while stack:
            top = stack[-1]
            if id(top) in self._decoded or id(top) in self._failed or self._recall(top):
                stack.pop()
                opened.pop(id(top), None)
                if self._held > self._held_bytes:
                    self._let_go({id(record), id(top)}.union(*opened.values()))
                continue
            opened.setdefault(id(top), set())
            try:
                waiting = self._decode(top, opened)
                opened[id(top)].update(map(id, waiting))
                stack.extend(waiting)
            except (CorruptObjectError, MissingDataError) as error:
                # What was made against it may have been made against another of its key.
                self._failed[id(top)] = (top, error)
            except StartAgain as error:
                lost = self._lost(error) if self._lost is not None else None
                if lost is None:
                    raise
                self._failed[id(top)] = (top, lost)
        if id(record) in self._failed:
            raise self._failed[id(record)][1]
        return self._decoded[id(record)][1]

    def _recall(self, record: Record) -> bool:
        """Take over what a patch was decoded to before, if that is known."""
        if self._patched is None or record.encoding != Encoding.PATCH:
            return False
        known = self._patched.get(_content_of(record))
        if known is not None:
            self._decoded[id(record)] = (record, *known)
            self._held += len(known[0][1])
        return known is not None

    def _keep(self, record: Record, typed: Typed, links: int) -> None:
        self._decoded[id(record)] = (record, typed, links)
        self._held += len(typed[1])
        if self._patched is not None and record.encoding == Encoding.PATCH:
            self._patched.put(_content_of(record), (typed, links), 400 + len(typed[1]))

    def _let_go(self, needed: Collection[int]) -> None:
        kept = self._primed.union(needed)
        self._decoded = {key: held for key, held in self._decoded.items() if key in kept}
        self._held = sum(len(typed[1]) for _, typed, _ in self._decoded.values())

    def _decode(self, record: Record, opened: Collection[int]) -> list[Record]:
        """Decode a record's value, or tell what has to be decoded before it."""
        body = self._body(record)
        if body is None or record.type is None:
            raise CorruptObjectError(
                f"the {_describe(record)} has no value although it should ({_where(record)}). "
                "Restore the object from a version or copy of the bucket"
            )
        if record.encoding == Encoding.PATCH:
            return self._unpatch(record, record.type, body, opened)
        if record.checksum != checksum_of(record.type, body):
            raise _wrong_checksum(record)
        self._keep(record, (record.type, body), 0)
        return []

    def _unpatch(
        self, patch: Record, type_: str, body: bytes, opened: Collection[int]
    ) -> list[Record]:
        reason: Exception = _wrong_checksum(patch)
        for base, writes in self._choices(patch):
            needed = [r for r in (base, *writes) if r is not None]
            failed = [self._failed[id(r)][1] for r in needed if id(r) in self._failed]
            if failed:
                reason = failed[0]
                continue
            waiting = [r for r in needed if id(r) not in self._decoded]
            if any(id(r) in opened for r in waiting):
                reason = CorruptObjectError(f"the {_describe(patch)} is a patch against itself")
                continue
            if waiting:
                return waiting
            value = self._applied(patch, body, base, writes)
            if value is not None and patch.checksum == checksum_of(type_, value):
                links = 1 + max((self.links(r) for r in needed), default=0)
                self._keep(patch, (type_, value), links)
                return []
        raise reason

    def _choices(self, patch: Record) -> list[tuple[Record | None, tuple[Record, ...]]]:
        choices = self._dictionaries.choices(patch)
        if not choices:
            raise MissingDataError(
                f"the {_describe(patch)} is a patch against version {patch.base_version} of its "
                "channel and the writes since, which are not all in the store. If an object was "
                "deleted by hand, restore it from a version or copy of the bucket"
            )
        return choices

    def _applied(
        self, patch: Record, body: bytes, base: Record | None, writes: Sequence[Record]
    ) -> bytes | None:
        base_value = b"" if base is None else self._decoded[id(base)][1][1]
        written = [self._decoded[id(write)][1][1] for write in writes]
        try:
            return decode_patch(body, base_value, written, patch.size or 0)
        except CorruptObjectError:
            return None  # another choice may fit; if none does, the checksum says so

    def _body(self, record: Record) -> bytes | None:
        body = record.value
        if isinstance(body, ValueRef):
            body = self._run_reader.values(self._runs, [body])[body]
        if record.encoding != Encoding.OBJECT or record.base_version is None:
            return body
        whole = self._values.object(record.base_version)
        return whole if body is None else decode_patch(body, whole, (), record.size or 0)


def _content_of(record: Record) -> Hashable:
    return (record.thread_id, record.type, record.size, record.checksum)


def _wrong_checksum(record: Record) -> CorruptObjectError:
    return CorruptObjectError(
        f"the {_describe(record)} fails its checksum ({_where(record)}). "
        "Restore the object from a version or copy of the bucket"
    )


def _where(record: Record) -> str:
    if record.encoding == Encoding.OBJECT:
        return f"{record.base_version}"
    return record.value.run_key if isinstance(record.value, ValueRef) else "in the log"


def _describe(record: Record) -> str:
    name = f"{record.kind} of thread {record.thread_id!r}, checkpoint {record.checkpoint_id}"
    return f"{name}, channel {record.channel}" if record.channel else name
