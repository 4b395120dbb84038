"""Values too large for a manifest: objects, and patches against objects that there are.

A head moves with every job, and its value with it; most often it is the last one and a little
more. Stored anew as an object by each job, a 5 MB image in a conversation would be written as
often as the conversation goes on. So a large value is an object only if no object of the
manifest is near enough; otherwise the manifest holds the patch.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator

from compactor.uploads import Uploads
from logstore.codec import encode_patch
from logstore.errors import CorruptObjectError
from logstore.keys import snapshot_object_key
from logstore.records import Encoding, Record
from logstore.tail import StartAgain

INLINE_BYTES = 128 << 10
"""A larger value, or patch, does not go into a manifest."""
_TRIED = 4
"""Against so many objects a patch is tried at most."""


class LargeValues:
    """Finds a place for the large values of one version of a manifest."""

    def __init__(
        self,
        partition: int,
        uploads: Uploads,
        known: Iterable[Record],
        load: Callable[[str], bytes],
    ) -> None:
        """Nothing is stored yet.

        Args:
            partition: the thread's partition.
            uploads: stores objects.
            known: the records of the manifest so far.
            load: gives the value in an object.
        """
        self._partition = partition
        self._uploads = uploads
        self._load = load
        self._places: dict[str, tuple[str, str | None]] = {
            r.base_version: (r.checkpoint_ns, r.channel)
            for r in known
            if r.encoding == Encoding.OBJECT and r.base_version is not None
        }
        self._values: dict[str, bytes] = {}
        """Of the objects that were stored now."""

    def keep(self, record: Record, value: bytes) -> tuple[Record, int]:
        """The record with its value as an object or as a patch against one.

        Returns:
            The record, and the bytes that were stored as an object.
        """
        record = record._replace(value=None, encoding=Encoding.OBJECT, size=len(value))
        for key, base in self._candidates(record):
            patch = encode_patch(value, base, ())
            if patch is not None and len(patch) <= INLINE_BYTES:
                return record._replace(value=patch, base_version=key), 0
        key, size = self._uploads.put(self._key_for(record), record.checksum or 0, value)
        self._places[key] = (record.checkpoint_ns, record.channel)
        self._values[key] = value
        return record._replace(base_version=key), size

    def _candidates(self, record: Record) -> Iterator[tuple[str, bytes]]:
        """Objects that may hold much of a value, those of its own channel first."""
        own = (record.checkpoint_ns, record.channel)
        keys = sorted(self._places, key=lambda key: self._places[key] != own)
        for key in keys[:_TRIED]:
            try:
                yield key, self._values.get(key) or self._load(key)
            except (StartAgain, CorruptObjectError):
                continue  # whoever needs it will say so

    def _key_for(self, record: Record) -> str:
        return snapshot_object_key(
            self._partition,
            record.thread_id,
            record.checkpoint_ns,
            record.channel or "",
            record.checkpoint_id,
            secrets.token_hex(8),
        )
