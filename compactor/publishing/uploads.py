"""Snapshot objects: stored before the manifest that names them, and not left over."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from logstore.clock import Elapsed
from logstore.errors import ObjectStoreError
from logstore.keys import is_value_key
from logstore.lanes import store_once
from logstore.objects.base import ObjectStore
from logstore.values import encode_value_object


class Uploads:
    """The snapshot objects that publishing one thread has stored.

    After a lost race the next try uses them again. Those that were never sent in a manifest are
    deleted; of others it is not known who has read of them, and a sweep finds what is left over.
    """

    def __init__(self, objects: ObjectStore, reuse_s: float) -> None:
        """Nothing is stored yet.

        Args:
            objects: the object store.
            reuse_s: an object that was stored longer ago is not named any more. A sweep may
                have found it unnamed and deleted it, after the long grace.
        """
        self._objects = objects
        self._reuse_s = reuse_s
        self._begun = Elapsed()
        self._stored: dict[tuple[bool, int], str] = {}
        self._unused: set[str] = set()

    def put(self, key: str, checksum: int, value: bytes) -> tuple[str, int]:
        """Store a value under `key`, unless an earlier try has stored the same.

        Returns:
            The key that holds it, and the bytes that were written.
        """
        content = (is_value_key(key), checksum)
        if content in self._stored and self._begun.seconds() < self._reuse_s:
            return self._stored[content], 0
        body = encode_value_object(value)
        store_once(self._objects, key, body)
        self._stored[content] = key
        self._unused.add(key)
        return key, len(body)

    def sending(self, keys: Sequence[str]) -> None:
        """A manifest is sent that names these: others may read it, whatever becomes of the swap."""
        self._unused.difference_update(keys)

    def discard_unused(self) -> None:
        """Delete what nothing has ever named."""
        if self._unused:
            with suppress(ObjectStoreError):  # left over at worst, and no reason to fail
                self._objects.delete(sorted(self._unused))
