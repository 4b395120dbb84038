"""Bounded retries with full jitter around any object store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from logstore.errors import InvalidOptionError, OutcomeUnknownError, UnavailableError
from logstore.objects.base import ListPage, ObjectData, ObjectStore, Stored


class RetryingObjectStore(ObjectStore):
    """Repeats requests that failed for a reason that may pass.

    Reads, listings and deletes are repeated after `UnavailableError`, conditional writes
    after `OutcomeUnknownError` too, always with the same key and bytes. When an earlier
    try of a write got through unanswered, the repeated one raises `ConditionFailedError`:
    it surfaces as it is, and the caller looks whose object is there. The last error is
    raised when the attempts are used up.

    A listing that fails midway begins again, so it is collected before its first page is
    given.

    Args:
        inner: the store that answers.
        attempts: how often a request is sent at most, the first time included.
        base: seconds; the pause before the n-th repetition is drawn between 0 and
            ``base * 2**(n - 1)``.
        cap: seconds; no pause is longer.
        sleep: pauses for the seconds it is given.

    Raises:
        InvalidOptionError: `attempts` is below 1.
    """

    def __init__(
        self,
        inner: ObjectStore,
        *,
        attempts: int = 5,
        base: float = 0.1,
        cap: float = 5.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if attempts < 1:
            raise InvalidOptionError(f"attempts={attempts}: expected 1 or more tries of a request")
        self.uri = inner.uri
        self._inner = inner

        def repeating(*errors: type[Exception]) -> Retrying:
            return Retrying(
                retry=retry_if_exception_type(errors),
                stop=stop_after_attempt(attempts),
                wait=wait_random_exponential(multiplier=base, max=cap),
                sleep=sleep,
                reraise=True,
            )

        self._reading = repeating(UnavailableError)
        self._writing = repeating(UnavailableError, OutcomeUnknownError)

    @property
    def inner(self) -> ObjectStore:
        """The store that answers the requests."""
        return self._inner

    def get(self, key: str) -> ObjectData:
        """Read a whole object. See `ObjectStore.get`."""
        return self._reading(self._inner.get, key)

    def get_if_changed(self, key: str, etag: str) -> ObjectData | None:
        """Read a whole object unless unchanged. See `ObjectStore.get_if_changed`."""
        return self._reading(self._inner.get_if_changed, key, etag)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read a part of an object. See `ObjectStore.get_range`."""
        return self._reading(self._inner.get_range, key, start, length)

    def put_if_absent(self, key: str, data: bytes) -> Stored:
        """Create an object. See `ObjectStore.put_if_absent`."""
        return self._writing(self._inner.put_if_absent, key, data)

    def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> Stored:
        """Replace one version of an object. See `ObjectStore.compare_and_swap`."""
        return self._writing(self._inner.compare_and_swap, key, data, expected)

    def list(self, prefix: str) -> Iterator[ListPage]:
        """List objects by prefix. See `ObjectStore.list`."""
        # A generator that raised cannot be resumed: asked again it would only say that
        # it is exhausted, and the listing would be cut short without an error.
        yield from self._reading(lambda: tuple(self._inner.list(prefix)))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. See `ObjectStore.delete`."""
        self._reading(self._inner.delete, keys)

    def close(self) -> None:
        """Close the store that answers."""
        self._inner.close()
