"""Does this store really enforce conditional writes?

Some S3-compatible stores accepted ``If-None-Match`` and ``If-Match`` and ignored them.
On such a store two writers would overwrite each other without an error, so it is refused
before the first write.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from logstore.errors import ConditionFailedError, UnsupportedStoreError
from logstore.objects.base import ObjectStore, Stored


def probe_conditional_writes(store: ObjectStore, prefix: str) -> None:
    """Write, overwrite and delete one small object, and check each condition on the way.

    Args:
        store: the store to check.
        prefix: where the object goes, without a slash at its end; its name is random.

    Raises:
        UnsupportedStoreError: the store ignored a condition, or refused one that held.
    """
    name = f"probe-{secrets.token_hex(8)}"
    key = f"{prefix}/{name}" if prefix else name
    try:
        _probe(store, key)
    finally:
        store.delete([key])


def _probe(store: ObjectStore, key: str) -> None:
    first, second, intruder = (f"{word} {key}".encode() for word in ("first", "second", "lost"))
    old = _succeeds(store, key, first, lambda: store.put_if_absent(key, first))
    _fails(store, key, "If-None-Match: *", lambda: store.put_if_absent(key, intruder))
    new = _succeeds(store, key, second, lambda: store.compare_and_swap(key, second, old))
    _fails(store, key, "If-Match", lambda: store.compare_and_swap(key, intruder, old))
    found = store.get(key)
    if (found.data, found.etag) != (second, new):
        raise UnsupportedStoreError(
            f"{store.uri}: {key!r} does not read back as the version written last; "
            f"expected {second!r} with ETag {new}, found {found.data!r} with ETag {found.etag}; "
            "use a store with strong read-after-write consistency"
        )


def _succeeds(store: ObjectStore, key: str, data: bytes, write: Callable[[], Stored]) -> str:
    try:
        return write().etag
    except ConditionFailedError as error:
        # An unanswered try may have got through; its repetition then loses to itself.
        found = store.get(key)
        if found.data == data:
            return found.etag
        raise UnsupportedStoreError(
            f"{store.uri} refused a conditional write to {key!r} whose condition held; logstore "
            "needs If-None-Match and If-Match on PUT: use a store or version that supports them"
        ) from error


def _fails(store: ObjectStore, key: str, condition: str, write: Callable[[], Stored]) -> None:
    try:
        write()
    except ConditionFailedError:
        return
    raise UnsupportedStoreError(
        f"{store.uri} ignored '{condition}' on a PUT of {key!r}: it was expected to answer "
        "412, and overwrote the object; concurrent writers would lose data there, so use a "
        "store or version that enforces conditional writes"
    )
