"""Snapshot objects: stored before the manifest that names them, and not left over."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from logstore.errors import ObjectStoreError
from logstore.lanes import store_once
from logstore.objects.base import ObjectStore
from logstore.reader import Elapsed
from logstore.values import encode_value_object


class Uploads:
    """The snapshot objects that publishing one thread has stored.

    After a lost race the next try uses them again; those that no manifest can come to name
    any more are deleted.
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
        self._stored: dict[int, str] = {}
        self._unused: set[str] = set()
        self._in_doubt = False

    def put(self, key: str, checksum: int, value: bytes) -> tuple[str, int]:
        """Store a value under `key`, unless an earlier try has stored the same.

        Returns:
            The key that holds it, and the bytes that were written.
        """
        if checksum in self._stored and self._begun.seconds() < self._reuse_s:
            return self._stored[checksum], 0
        body = encode_value_object(value)
        store_once(self._objects, key, body)
        self._stored[checksum] = key
        self._unused.add(key)
        return key, len(body)

    def won(self, keys: Sequence[str]) -> None:
        """The swap has landed, and names these."""
        self._unused.difference_update(keys)
        self._in_doubt = False

    def swapping(self) -> None:
        """A swap is sent that names what was stored: until it has lost, keep everything."""
        self._in_doubt = True

    def lost(self, keys: Sequence[str]) -> None:
        """The swap can never land any more: the manifest has changed, and names these."""
        self.won(keys)

    def discard_unused(self) -> None:
        """Delete what nothing names and nothing can come to name."""
        if self._unused and not self._in_doubt:
            with suppress(ObjectStoreError):  # left over at worst, and no reason to fail
                self._objects.delete(sorted(self._unused))
