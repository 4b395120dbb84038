"""The base of the object stores that wrap another one to test what is above them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from logstore.objects.base import ListPage, ObjectData, ObjectStore, Stored

T = TypeVar("T")
Predicate = Callable[[str, str], bool]
"""Chooses requests by their method's name and their key."""


class WrappedStore(ObjectStore):
    """Passes every request on; a subclass overrides `around` to step in.

    Args:
        inner: the store that answers.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self.uri = inner.uri
        self._inner = inner

    @property
    def inner(self) -> ObjectStore:
        """The store that answers the requests."""
        return self._inner

    def around(self, method: str, key: str, sent: int, answer: Callable[[], T]) -> T:
        """Carry out one request.

        Args:
            method: the method's name.
            key: the request's key.
            sent: bytes of its body.
            answer: asks the inner store; None from a listing means that no page was left,
                so that nothing was requested.
        """
        return answer()

    def get(self, key: str) -> ObjectData:
        """Read a whole object. See `ObjectStore.get`."""
        return self.around("get", key, 0, partial(self._inner.get, key))

    def get_if_changed(self, key: str, etag: str) -> ObjectData | None:
        """Read a whole object unless unchanged. See `ObjectStore.get_if_changed`."""
        return self.around("get_if_changed", key, 0, partial(self._inner.get_if_changed, key, etag))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read a part of an object. See `ObjectStore.get_range`."""
        return self.around("get_range", key, 0, partial(self._inner.get_range, key, start, length))

    def put_if_absent(self, key: str, data: bytes) -> Stored:
        """Create an object. See `ObjectStore.put_if_absent`."""
        write = partial(self._inner.put_if_absent, key, data)
        return self.around("put_if_absent", key, len(data), write)

    def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> Stored:
        """Replace one version of an object. See `ObjectStore.compare_and_swap`."""
        write = partial(self._inner.compare_and_swap, key, data, expected)
        return self.around("compare_and_swap", key, len(data), write)

    def list(self, prefix: str) -> Iterator[ListPage]:
        """List objects by prefix. See `ObjectStore.list`."""
        following = partial(next, self._inner.list(prefix), None)
        while (page := self.around("list", prefix, 0, following)) is not None:
            yield page

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. See `ObjectStore.delete`."""
        if keys:
            self.around("delete", keys[0], 0, partial(self._inner.delete, keys))

    def close(self) -> None:
        """Close the store that answers."""
        self._inner.close()
