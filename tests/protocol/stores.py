"""Wrappers that only these tests need."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from logstore.errors import ObjectStoreError
from logstore.keys import LOG
from logstore.objects.base import ListPage, ObjectStore
from logstore.objects.retry import RetryingObjectStore
from logstore.testing.wrapped import T, WrappedStore


def retrying(inner: ObjectStore) -> RetryingObjectStore:
    """Repeats requests without a pause."""
    return RetryingObjectStore(inner, attempts=3, sleep=lambda seconds: None)


class TornListStore(WrappedStore):
    """Lists the log in two pages, the second one asked for after something has happened.

    Args:
        inner: the store that answers.
        on_first_page: chooses the keys that sort into the first page.
        between: is called once, after the first page was answered and before the second.
    """

    def __init__(
        self,
        inner: ObjectStore,
        on_first_page: Callable[[str], bool],
        between: Callable[[], object],
    ) -> None:
        super().__init__(inner)
        self._on_first_page = on_first_page
        self._between: Callable[[], object] | None = between

    def list(self, prefix: str) -> Iterator[ListPage]:
        """List objects by prefix. See `ObjectStore.list`."""
        between = self._between
        if between is None or not prefix.startswith(LOG):
            yield from super().list(prefix)
            return
        yield from (self._cut(page, first=True) for page in super().list(prefix))
        self._between = None
        between()
        yield from (self._cut(page, first=False) for page in super().list(prefix))

    def _cut(self, page: ListPage, *, first: bool) -> ListPage:
        kept = tuple(o for o in page.objects if self._on_first_page(o.key) is first)
        return replace(page, objects=kept)


class SlowStore(WrappedStore):
    """Answers every request after a while, a refusal as well."""

    def __init__(self, inner: ObjectStore, seconds: float) -> None:
        super().__init__(inner)
        self._seconds = seconds

    def around(self, method: str, key: str, sent: int, answer: Callable[[], T]) -> T:
        """Carry out one request, slowly."""
        try:
            result = answer()
        except ObjectStoreError:
            time.sleep(self._seconds)
            raise
        if result is not None or method != "list":
            time.sleep(self._seconds)
        return result


class DeleteWatch(WrappedStore):
    """Remembers every key that was deleted."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.deleted: list[str] = []

    def delete(self, keys: object) -> None:
        """Delete objects. See `ObjectStore.delete`."""
        self.deleted.extend(keys)  # type: ignore[arg-type]
        super().delete(keys)  # type: ignore[arg-type]
