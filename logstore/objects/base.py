"""The one interface between logstore and whatever holds its objects.

A backend has to promise five things, and `logstore.testing` proves them:

* an object is seen whole or not at all, at once by every reader;
* `put_if_absent` lets exactly one of many writers through;
* `compare_and_swap` lets exactly one of many writers that saw the same version through;
* `list` shows every object that existed when it began, in any order;
* a read answers `ObjectNotFoundError` only if the object really does not exist.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a listing tells of one object."""

    key: str
    """The key, relative to the store's root."""
    size: int
    """Bytes."""
    modified: float
    """When the store says it was last written: seconds since the epoch, the store's clock."""


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a listing."""

    objects: tuple[ObjectInfo, ...]
    date: float
    """The store's clock when it answered: seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class ObjectData:
    """An object as it was read."""

    key: str
    data: bytes
    etag: str
    """Names this version of the object; the argument of a compare-and-swap."""
    modified: float
    """When the store says it was last written: seconds since the epoch, the store's clock."""
    date: float
    """The store's clock when it answered: seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The answer to a write that went through."""

    etag: str
    date: float
    """The store's clock when it answered: seconds since the epoch."""


class ObjectStore(ABC):
    """A flat map from keys to immutable byte strings, with conditional writes.

    Keys are relative to the store's root, use the alphabet ``[A-Za-z0-9._=/-]``, and no
    component is longer than 255 bytes. Bodies are never empty. All methods may be called
    from several threads at once.

    Every method may raise `AccessDeniedError`, `BucketNotFoundError` or, for a failure
    that may pass, `UnavailableError`; a write raises `OutcomeUnknownError` where the
    request may have taken effect all the same.
    """

    uri: str
    """The URI that this store was opened with, without credentials."""

    @abstractmethod
    def get(self, key: str) -> ObjectData:
        """Read a whole object.

        Raises:
            ObjectNotFoundError: the key does not exist.
        """

    @abstractmethod
    def get_if_changed(self, key: str, etag: str) -> ObjectData | None:
        """Read a whole object unless it is still the version that `etag` names.

        Returns:
            The object, or None for "not modified".

        Raises:
            ObjectNotFoundError: the key does not exist.
        """

    @abstractmethod
    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read `length` bytes from offset `start`.

        A range that ends behind the object gives the bytes that exist; one that begins
        at or behind its end gives none.

        Raises:
            ObjectNotFoundError: the key does not exist.
        """

    @abstractmethod
    def put_if_absent(self, key: str, data: bytes) -> Stored:
        """Create an object whose key does not exist yet.

        Raises:
            ConditionFailedError: the key exists already.
            OutcomeUnknownError: the object may or may not exist now.
        """

    @abstractmethod
    def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> Stored:
        """Replace the version that `expected` names, or create the object if it is None.

        Raises:
            ConditionFailedError: the object has another version, exists although
                `expected` is None, or does not exist although `expected` is not.
            OutcomeUnknownError: the object may or may not have been replaced.
        """

    @abstractmethod
    def list(self, prefix: str) -> Iterator[ListPage]:
        """List the objects whose keys begin with `prefix`, in any order, page by page.

        An empty listing is one page without objects, so that its date is known.
        """

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; a key that does not exist counts as deleted.

        Raises:
            UnavailableError: also where the outcome is not clear, since repeating is harmless.
        """

    def close(self) -> None:  # noqa: B027 - most backends hold nothing
        """Let go of connections. The objects stay."""

    @property
    def scheme(self) -> str:
        """The URI's scheme: what kind of store this is."""
        return self.uri.partition("://")[0]
