"""Values: from stored form to the serde's bytes, each checked against its checksum."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor

import zstandard

from logstore.cache import ByteCache
from logstore.errors import CorruptObjectError, ObjectNotFoundError
from logstore.manifest import RunEntry
from logstore.objects.base import ObjectStore
from logstore.records import Encoding, Record, ValueRef, checksum_of
from logstore.runs import RunReader
from logstore.tail import StartAgain

_MAX_VALUE_BYTES = 1 << 30
_OBJECT_MAGIC = b"LSV1"


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
    ) -> None:
        """Read through `objects` and `runs`, with parallel requests on `executor`."""
        self._objects = objects
        self._executor = executor
        self._runs = runs
        self._cache = cache

    def prefetch(self, keys: Iterable[str]) -> list[Callable[[], bytes]]:
        """Begin to read snapshot objects; each result waits for one."""
        return [self._executor.submit(self._object, key).result for key in keys]

    def load(
        self, records: Sequence[Record], runs: Mapping[str, RunEntry]
    ) -> list[tuple[str, bytes]]:
        """The serde's tag and bytes of each record's value.

        Args:
            records: records that have a value.
            runs: the runs that their `ValueRef`s name, by key.

        Raises:
            CorruptObjectError: a value fails its checksum.
            StartAgain: a run or snapshot object was replaced meanwhile.
        """
        refs = {r.value for r in records if isinstance(r.value, ValueRef)}
        far = self._runs.values(runs, refs)
        return [self._decode(record, far) for record in records]

    def _decode(self, record: Record, far: Mapping[ValueRef, bytes | None]) -> tuple[str, bytes]:
        if record.encoding == Encoding.OBJECT and record.base_version is not None:
            value: bytes | None = self._object(record.base_version)
        elif isinstance(record.value, ValueRef):
            value = far[record.value]
        else:
            value = record.value
        where = record.value.run_key if isinstance(record.value, ValueRef) else "the log"
        if value is None or record.type is None:
            raise CorruptObjectError(
                f"the {_describe(record)} has no value although it should ({where}). "
                "Restore the object from a version or copy of the bucket"
            )
        if record.checksum != checksum_of(record.type, value):
            raise CorruptObjectError(
                f"the {_describe(record)} fails its checksum ({where}). "
                "Restore the object from a version or copy of the bucket"
            )
        return record.type, value

    def _object(self, key: str) -> bytes:
        cached = self._cache.get(key)
        if cached is not None:
            return cached
        try:
            data = self._objects.get(key).data
        except ObjectNotFoundError as error:
            raise StartAgain from error
        value = _decode_value_object(key, data)
        self._cache.put(key, value, len(value))
        return value


def _describe(record: Record) -> str:
    name = f"{record.kind} of thread {record.thread_id!r}, checkpoint {record.checkpoint_id}"
    return f"{name}, channel {record.channel}" if record.channel else name
