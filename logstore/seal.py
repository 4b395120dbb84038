"""Seals: checksums inside a Parquet object, in a gap between its data and its footer.

Parquet has a checksum for each page and none for its footer, where one changed byte can hide
rows or change what a column says without an error. Everything in a Parquet file is found by its
distance from the start, and the footer from the end, so the gap disturbs no reader.

The seal is ``LSSL``, 16 bytes of BLAKE2b over the footer and all that follows it, and 16 bytes
over all that comes before the seal: the first for readers of ranges, both for whole objects.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

from logstore.errors import CorruptObjectError

_MAGIC = b"LSSL"
_DIGEST_BYTES = 16
SEAL_BYTES = len(_MAGIC) + 2 * _DIGEST_BYTES
_TRAILER_BYTES = 8
"""The footer's length, and Parquet's own magic number."""
_CHUNK_BYTES = 8 << 20


def sealed(body: bytes) -> bytes:
    """A Parquet object with its seal."""
    start = len(body) - _footer_bytes(body)
    data, footer = body[:start], body[start:]
    return b"".join((data, _MAGIC, _digest(footer), _digest(data), footer))


def end_bytes(end: bytes) -> int:
    """How many bytes the seal and what follows it take, told from the last eight or more."""
    return SEAL_BYTES + _footer_bytes(end)


def check_end(key: str, end: bytes) -> None:
    """Check the footer of a sealed object.

    Args:
        key: the object.
        end: its last `end_bytes`, or more of it.

    Raises:
        CorruptObjectError: it is truncated or damaged, or has no seal.
    """
    seal, footer = _split(key, end)
    if seal[len(_MAGIC) : len(_MAGIC) + _DIGEST_BYTES] != _digest(footer):
        raise _damaged(key)


def check_whole(key: str, body: bytes) -> None:
    """Check all of a sealed object.

    Raises:
        CorruptObjectError: it is truncated or damaged, or has no seal.
    """
    check_end(key, body)
    seal, footer = _split(key, body)
    data = memoryview(body)[: len(body) - len(seal) - len(footer)]
    if seal[-_DIGEST_BYTES:] != _digest(data):
        raise _damaged(key)


def check_ranges(key: str, size: int, read: Callable[[int, int], bytes]) -> None:
    """Check all of a sealed object that is too large to hold.

    Args:
        key: the object.
        size: its bytes.
        read: gives a range of it, by offset and length.

    Raises:
        CorruptObjectError: it is truncated or damaged, or has no seal.
    """
    trailer = read(max(0, size - _TRAILER_BYTES), min(size, _TRAILER_BYTES))
    length = min(size, end_bytes(trailer))
    end = read(size - length, length)
    check_end(key, end)
    seal, _ = _split(key, end)
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for start in range(0, size - length, _CHUNK_BYTES):
        digest.update(read(start, min(_CHUNK_BYTES, size - length - start)))
    if seal[-_DIGEST_BYTES:] != digest.digest():
        raise _damaged(key)


def _footer_bytes(end: bytes) -> int:
    return int.from_bytes(end[-_TRAILER_BYTES:-4], "little") + _TRAILER_BYTES


def _split(key: str, end: bytes) -> tuple[bytes, bytes]:
    """The seal, and the footer with what follows it."""
    length = _footer_bytes(end)
    seal = end[-length - SEAL_BYTES : -length]
    if len(seal) != SEAL_BYTES or not seal.startswith(_MAGIC):
        raise _damaged(key)
    return seal, end[-length:]


def _digest(data: bytes | memoryview) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _damaged(key: str) -> CorruptObjectError:
    return CorruptObjectError(
        f"{key} fails its checksum, or was not written by logstore; it is truncated or damaged. "
        "Nothing was skipped: restore the object from a version or copy of the bucket, or move a "
        "foreign one out of the store's prefix"
    )
