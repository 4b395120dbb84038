"""What every backend refuses before it sends anything: bad keys, bodies and ranges."""

from __future__ import annotations

import re

from logstore.errors import UsageError

_REST = re.compile(r"[A-Za-z0-9._=-]{0,255}")
_KEY = re.compile(r"[A-Za-z0-9._=-]{1,255}(?:/[A-Za-z0-9._=-]{1,255})*")


def check_key(key: str) -> str:
    """Refuse a key outside the alphabet that every backend can hold.

    Returns:
        The key itself.

    Raises:
        UsageError: the key has an empty, dotted or over-long component, or a character
            outside ``[A-Za-z0-9._=/-]``.
    """
    if not _KEY.fullmatch(key) or not {".", ".."}.isdisjoint(key.split("/")):
        raise UsageError(
            f"object key {key!r} cannot be stored: expected components of 1 to 255 characters "
            "of [A-Za-z0-9._=-], joined by '/', none of them '.' or '..'; encode names first"
        )
    return key


def check_prefix(prefix: str) -> str:
    """Refuse a listing prefix that no key can begin with.

    Returns:
        The prefix itself.

    Raises:
        UsageError: a key would be refused for what stands before the last ``/``, or the
            rest has a character outside the alphabet.
    """
    folder, slash, rest = prefix.rpartition("/")
    if slash:
        check_key(folder)
    if not _REST.fullmatch(rest):
        raise UsageError(
            f"listing prefix {prefix!r} matches no key: expected at most 255 characters of "
            "[A-Za-z0-9._=-] after the last '/'; encode names first"
        )
    return prefix


def check_body(key: str, data: bytes) -> bytes:
    """Refuse an empty body.

    An empty PUT through boto3 can stall the next PUT of the same connection until the
    read timeout, so no backend accepts one.

    Returns:
        The body itself.

    Raises:
        UsageError: `data` is empty.
    """
    if not data:
        raise UsageError(f"object {key!r} would be empty: expected at least one byte to store")
    return data


def check_range(key: str, start: int, length: int) -> None:
    """Refuse a range that lies before the object or has a negative length.

    Raises:
        UsageError: `start` or `length` is negative.
    """
    if start < 0 or length < 0:
        raise UsageError(
            f"range of {key!r} from {start} over {length} bytes is invalid: "
            "expected an offset and a length of 0 or more"
        )
