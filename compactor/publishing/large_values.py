"""Values too large for rows: objects of their own, which runs and manifests share.

A value is stored once, as an object; every row and every snapshot manifest that has the same
value names that object, and what is most of it is a patch against it. So neither a head that
moves with every job nor the merging of runs writes a 5 MB image again.

Values of records are under `values/` and are all that there is of them. Values that jobs made
are under `snapshots/`, are named by the snapshot manifest alone, and can be made anew; so no
record may need one of them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator

from cachetools import LRUCache

from compactor.publishing.uploads import Uploads
from logstore.codec import encode_patch
from logstore.errors import CorruptObjectError
from logstore.keys import is_value_key, snapshot_object_key, value_object_key
from logstore.records import Encoding, Kind, Record
from logstore.tail import StartAgain

LARGE_BYTES = 128 << 10
"""A larger value, or patch, is not put into a row of a run or of a snapshot manifest."""
_TRIED = 3
"""Against so many objects a patch is tried at most."""
Channel = tuple[str, str | None]
"""Namespace and channel."""
Content = tuple[str | None, int | None, int | None]
"""Type, size and checksum."""


class LargeValues:
    """Finds a place for the large values of one thread."""

    def __init__(
        self,
        partition: int,
        uploads: Uploads,
        load: Callable[[str], bytes],
        condemned: Collection[str],
    ) -> None:
        """Nothing is known yet.

        Args:
            partition: the thread's partition.
            uploads: stores the thread's objects.
            load: gives the value in an object.
            condemned: objects that are about to be deleted, see `PartitionManifest`.
        """
        self._condemned = condemned
        self._partition = partition
        self._uploads = uploads
        self._load = load
        self._channels: dict[str, Channel] = {}
        """Of the value in each object, the last one known last."""
        self._contents: dict[Content, str] = {}
        self._fresh: LRUCache[str, bytes] = LRUCache(_TRIED)
        """What was stored last."""

    def learn(self, records: Iterable[Record]) -> None:
        """Take notice of records that name objects, with their values."""
        for record in records:
            named = record.base_version if record.encoding == Encoding.OBJECT else None
            if named is not None and named not in self._condemned:
                self._add(record, named, is_whole=record.value is None)

    def _add(self, record: Record, key: str, *, is_whole: bool) -> None:
        self._channels.pop(key, None)
        self._channels[key] = (record.checkpoint_ns, record.channel)
        if is_whole:
            self._contents[_content_of(record)] = key

    def keep(self, record: Record, value: bytes) -> tuple[Record, int]:
        """The record with its value as an object or as a patch against one.

        Returns:
            The record, and the bytes that were stored as an object.
        """
        record = record._replace(
            value=None,
            encoding=Encoding.OBJECT,
            size=len(value),
            base_channel=None,
            dictionary=None,
        )
        same = self._contents.get(_content_of(record))
        if same is not None and _may_need(record, same):
            return record._replace(base_version=same), 0
        for key, base in self._candidates(record):
            patch = encode_patch(value, base, ())
            if patch is not None and len(patch) <= LARGE_BYTES:
                return record._replace(value=patch, base_version=key), 0
        key, size = self._uploads.put(self._key_for(record), record.checksum or 0, value)
        self._fresh[key] = value
        self._add(record, key, is_whole=True)
        return record._replace(base_version=key), size

    def _candidates(self, record: Record) -> Iterator[tuple[str, bytes]]:
        """Objects that may hold much of a value: of its channel first, the latest first."""
        own = (record.checkpoint_ns, record.channel)
        latest = [key for key in reversed(self._channels) if _may_need(record, key)]
        for key in sorted(latest, key=lambda key: self._channels[key] != own)[:_TRIED]:
            try:
                yield key, self._fresh.get(key) or self._load(key)
            except (StartAgain, CorruptObjectError):
                continue  # whoever needs it will say so

    def _key_for(self, record: Record) -> str:
        key = value_object_key if is_of_record(record) else snapshot_object_key
        return key(
            self._partition,
            record.thread_id,
            record.checkpoint_ns,
            record.channel or "",
            record.checkpoint_id,
            secrets.token_hex(8),
        )


def is_of_record(record: Record) -> bool:
    """Whether a value came with a record, and is not derived from others."""
    return record.kind in (Kind.BLOB, Kind.WRITE)


def _may_need(record: Record, key: str) -> bool:
    return is_value_key(key) or not is_of_record(record)


def _content_of(record: Record) -> Content:
    return record.type, record.size, record.checksum
