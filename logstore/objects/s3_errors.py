"""What an answer, or none, from S3 means for the caller.

The line that matters runs between "no" and "unknown": 412 says that a conditional write
lost, while 409 ("a conflicting request is in progress"), 429, 5xx and a broken connection
say nothing about whether the object was stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from logstore.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConditionFailedError,
    InvalidOptionError,
    LogStoreError,
    ObjectNotFoundError,
    ObjectStoreError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedStoreError,
)

_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.UnknownCredentialError,
    boto.RefreshWithMFAUnsupportedError,
    boto.NoAuthTokenError,
    boto.TokenRetrievalError,
    boto.SSOError,
    boto.LoginError,
)
_NO_CLEAR_ANSWER = (
    boto.ConnectionError,
    boto.HTTPClientError,
    boto.IncompleteReadError,
    boto.ChecksumError,
    boto.FlexibleChecksumError,
    boto.MetadataRetrievalError,
    ResponseParserError,
)
_CREDENTIAL_CODES = frozenset(
    {"AuthorizationHeaderMalformed", "ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
)
_PASSING_STATUSES = frozenset({404, 408, 409, 425, 429})
# How stores say that they do not take DeleteObjects as boto3 sends it: some want the
# Content-MD5 that it no longer computes, others lack the operation.
_NO_BATCH_STATUSES = frozenset({405, 411, 501})
_NO_BATCH_CODES = frozenset({"InvalidDigest", "InvalidRequest", "MissingContentMD5"})
_PASSING_CODES = frozenset({"BadDigest", "IncompleteBody", "RequestTimeout", "SlowDown"})


class Intent(Enum):
    """What a request is for: the same answer means different things."""

    READ = auto()
    LIST = auto()
    DELETE = auto()
    CREATE = auto()
    REPLACE = auto()

    @property
    def is_write(self) -> bool:
        """Whether an unclear answer leaves a state that the caller has to look up."""
        return self in (Intent.CREATE, Intent.REPLACE)


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked of the store, as its error messages tell it."""

    intent: Intent
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{self.intent.name.lower()} of s3://{self.bucket}/{self.key}"


@contextmanager
def translated(request: Request) -> Iterator[None]:
    """Turn every error of botocore into one of logstore's.

    Raises:
        LogStoreError: as `from_answer` and `from_failure` choose it.
    """
    try:
        yield
    except boto.ClientError as error:
        raise from_answer(request, error) from error
    except (boto.BotoCoreError, ResponseParserError) as error:
        raise from_failure(request, error) from error


def status_of(error: boto.ClientError) -> int:
    """The HTTP status of an answer, 0 if it had none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def lacks_batch_delete(error: boto.ClientError) -> bool:
    """Whether an answer to DeleteObjects means that objects have to be deleted singly."""
    code = error.response.get("Error", {}).get("Code", "")
    return status_of(error) in _NO_BATCH_STATUSES or code in _NO_BATCH_CODES


def raise_for_undeleted(request: Request, code: str, message: str) -> None:
    """Raise for one key that a batch left undeleted, unless it did not exist.

    Raises:
        AccessDeniedError: the key may not be deleted.
        UnavailableError: it was not deleted for any other reason.
    """
    text = f"{request}: {code} ({message})"
    if code == "AccessDenied":
        raise AccessDeniedError(f"{text}; expected to be allowed to delete it: check the policy")
    if code != "NoSuchKey":
        raise _unclear(request, text)


def from_answer(request: Request, error: boto.ClientError) -> LogStoreError:
    """The meaning of an answer that is not a success."""
    status = status_of(error)
    detail = error.response.get("Error", {})
    code = detail.get("Code", "")
    text = f"{request}: HTTP {status} {code} ({detail.get('Message', '')})"
    return _refusal(request, status, code, text) or _no_result(request, status, code, text)


def from_failure(request: Request, error: Exception) -> LogStoreError:
    """The meaning of a request that got no answer, or half of one."""
    text = f"{request}: {error}"
    if isinstance(error, _NO_CREDENTIALS):
        return AccessDeniedError(
            f"{text}; expected credentials in the AWS environment, profile or role: set them"
        )
    if isinstance(error, _NO_CLEAR_ANSWER):
        return _unclear(request, text)
    return InvalidOptionError(f"{text}; the S3 client cannot send this: mend its configuration")


def _refusal(request: Request, status: int, code: str, text: str) -> LogStoreError | None:
    if code == "NoSuchBucket":
        return BucketNotFoundError(
            f"{text}; bucket {request.bucket!r} was expected to exist: create it or mend the URI"
        )
    if status in (401, 403) or code in _CREDENTIAL_CODES:
        return AccessDeniedError(
            f"{text}; expected to be allowed to get, put, list and delete objects of bucket "
            f"{request.bucket!r}: check the credentials, the region, the bucket policy and the "
            "clock (without the right to list, a missing object is refused as well)"
        )
    # If-Match on a key that does not exist is answered 404 by some stores, 412 by others.
    if request.intent.is_write and (
        status == 412 or (status == 404 and request.intent is Intent.REPLACE)
    ):
        return ConditionFailedError(
            f"{text}; the object is not at the expected version: read it again and decide anew"
        )
    if status == 404 and code == "NoSuchKey" and request.intent is Intent.READ:
        return ObjectNotFoundError(f"{text}; the object was expected to exist")
    return None


def _no_result(request: Request, status: int, code: str, text: str) -> LogStoreError:
    if status == 501:
        return UnsupportedStoreError(
            f"{text}; logstore needs conditional PUT (If-None-Match and If-Match), ranges and "
            "ListObjectsV2: use a store or version that supports them"
        )
    if status >= 500 or status in _PASSING_STATUSES or code in _PASSING_CODES:
        return _unclear(request, text)
    return ObjectStoreError(f"{text}; the store was expected to accept this request")


def _unclear(request: Request, text: str) -> LogStoreError:
    if request.intent.is_write:
        return OutcomeUnknownError(
            f"{text}; the write may have taken effect all the same: read the object before "
            "deciding, or repeat the same write"
        )
    return UnavailableError(f"{text}; nothing is known about the objects: try again later")
