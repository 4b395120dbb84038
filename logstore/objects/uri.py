"""From a URI to an open object store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from logstore.errors import InvalidOptionError, InvalidURIError
from logstore.objects.base import ObjectStore
from logstore.objects.file import FileObjectStore
from logstore.objects.memory import MemoryObjectStore
from logstore.objects.retry import RetryingObjectStore

if TYPE_CHECKING:
    from botocore.config import Config
    from mypy_boto3_s3.client import S3Client

_FORMS = "expected file:///dir, memory://name or s3://bucket/prefix"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_ENDPOINT = re.compile(r"https?://[^/@?#\s]+(/[^@?#\s]*)?")
_IN_QUERY = ("endpoint_url", "region")


class S3Options(TypedDict, total=False):
    """The options of an ``s3://`` store."""

    endpoint_url: str | None
    """The server's URL; None for AWS, or for what the AWS environment says."""
    region: str | None
    """The region to sign for."""
    client: S3Client | None
    """A ready boto3 client, used as it is."""
    botocore_config: Config | None
    """botocore settings that win over logstore's own."""


def open_object_store(uri: str, **options: Unpack[S3Options]) -> ObjectStore:
    """Open the store that a URI names; its requests are retried within bounds.

    Args:
        uri: ``file:///dir``, ``memory://name`` or
            ``s3://bucket/prefix?endpoint_url=...&region=...``, percent-encoded.
        **options: for ``s3://`` only, see `S3Options`; an option given here and in the
            query must be the same.

    Raises:
        InvalidURIError: the URI has none of these forms, or its path cannot hold a store.
        InvalidOptionError: an option is unknown, does not fit the scheme or the others,
            or makes no S3 client.
        AccessDeniedError: the directory may not be created or read.
    """
    parts = _split(uri)
    given = {name: value for name, value in options.items() if value is not None}
    _check_names(given)
    if parts.scheme == "s3":
        store = _open_s3(parts, given)
    elif given:
        raise InvalidOptionError(
            f"{_shown(parts)}: {', '.join(sorted(given))} given; expected no options with this "
            "scheme: leave them out, or use s3://"
        )
    else:
        store = _open_local(parts)
    return RetryingObjectStore(store)


def _split(uri: str) -> SplitResult:
    try:
        parts = urlsplit(str(uri))
        path = unquote(parts.path, errors="strict")
    except ValueError as error:
        raise InvalidURIError(f"store URI cannot be read: {error}; {_FORMS}") from error
    parts = parts._replace(path=path)
    if not parts.scheme and path:
        directory = Path(path).absolute().as_uri()
        raise InvalidURIError(f"{path}: not the URI of a store; {_FORMS}; here {directory}")
    if parts.scheme not in ("file", "memory", "s3") or "://" not in str(uri):
        raise InvalidURIError(f"{_shown(parts)}: not the URI of a store; {_FORMS}")
    if "@" in parts.netloc:
        raise InvalidURIError(
            f"{_shown(parts)}: expected no user or password in the URI; give credentials "
            "through the AWS environment or a ready client"
        )
    if parts.fragment or any(ord(char) < 32 for char in path):
        raise InvalidURIError(
            f"{_shown(parts)}: expected no fragment and no control characters; write '#' as %23"
        )
    return parts


def _shown(parts: SplitResult) -> str:
    # A user, a password and the query may be secrets.
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _check_names(given: dict[str, Any]) -> None:
    unknown = sorted(given.keys() - S3Options.__annotations__.keys())
    if unknown:
        raise InvalidOptionError(
            f"unknown option {', '.join(unknown)}; expected only "
            f"{', '.join(S3Options.__annotations__)}"
        )
    others = sorted(given.keys() - {"client"})
    if "client" in given and others:
        raise InvalidOptionError(
            f"client given together with {', '.join(others)}; expected one or the other: a ready "
            "client is used as it is"
        )


def _open_local(parts: SplitResult) -> ObjectStore:
    if parts.query:
        raise InvalidURIError(
            f"{_shown(parts)}: expected no query with this scheme; write '?' as %3F"
        )
    if parts.scheme == "memory":
        name = unquote(parts.netloc) + parts.path
        if not name:
            raise InvalidURIError("memory:// names no store; expected memory://name")
        return MemoryObjectStore(name)
    if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
        raise InvalidURIError(
            f"{_shown(parts)}: expected an absolute directory after three slashes: file:///dir"
        )
    return FileObjectStore(parts.path)


def _open_s3(parts: SplitResult, given: dict[str, Any]) -> ObjectStore:
    # boto3 takes a good part of a second to import, and the other schemes need none of it.
    from logstore.objects.s3 import S3ObjectStore

    prefix = parts.path.strip("/")
    if not _BUCKET.fullmatch(parts.netloc):
        raise InvalidURIError(
            f"{_shown(parts)}: {parts.netloc!r} is no bucket name; expected s3://bucket/prefix"
        )
    if prefix and not {"", ".", ".."}.isdisjoint(prefix.split("/")):
        raise InvalidURIError(
            f"{_shown(parts)}: expected a prefix without empty, '.' and '..' components"
        )
    options = _with_query(parts, given)
    endpoint = options.get("endpoint_url")
    if endpoint and not _ENDPOINT.fullmatch(endpoint):
        raise InvalidOptionError(
            f"{_shown(parts)}: endpoint_url is not a server's URL; expected http://host:port or "
            "https://host, without user, query and fragment"
        )
    return S3ObjectStore(parts.netloc, prefix, **options)


def _with_query(parts: SplitResult, given: dict[str, Any]) -> dict[str, Any]:
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise InvalidURIError(
            f"{_shown(parts)}: the query cannot be read; expected name=value, joined by '&'"
        ) from error
    names = [name for name, _ in pairs]
    known = set(names) <= set(_IN_QUERY) and all(value for _, value in pairs)
    if not known or len(set(names)) < len(names):
        raise InvalidURIError(
            f"{_shown(parts)}: query names {', '.join(names)}; expected each of "
            f"{' and '.join(_IN_QUERY)} at most once, with a value"
        )
    for name, value in pairs:
        if given.get(name, value) != value or "client" in given:
            raise InvalidOptionError(
                f"{_shown(parts)}: {name} is given in the query, and by another option that "
                "differs; expected it once: leave one out"
            )
    return {**dict(pairs), **given}
