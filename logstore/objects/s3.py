"""Objects in a bucket of S3 or an S3-compatible store, through boto3."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from botocore.config import Config
from botocore.exceptions import ClientError

from logstore.errors import UnavailableError
from logstore.objects.base import ListPage, ObjectData, ObjectInfo, ObjectStore, Stored
from logstore.objects.checks import check_body, check_key, check_prefix, check_range
from logstore.objects.s3_client import ClientSource
from logstore.objects.s3_errors import (
    Intent,
    Request,
    lacks_batch_delete,
    raise_for_undeleted,
    status_of,
    translated,
)

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import (
        DeleteTypeDef,
        GetObjectOutputTypeDef,
        ListObjectsV2OutputTypeDef,
    )

_MAX_BATCH = 1000


class S3ObjectStore(ObjectStore):
    """A bucket, or the keys below a prefix of it.

    The object's ETag names its version. S3 makes it from the content, so a version whose
    bytes equal an earlier one's has the same ETag; the layers above never write such.

    Args:
        bucket: the bucket's name; the bucket must exist.
        prefix: the keys' common beginning, without slashes at its ends; empty for none.
        client: a ready client, used as it is; then the other options do not apply.
        endpoint_url: the server's URL; None for AWS.
        region: the region to sign for.
        botocore_config: botocore settings that win over logstore's own.
        page_size: the most objects that one request lists or deletes.

    Raises:
        InvalidOptionError: no client can be made of these options.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        client: S3Client | None = None,
        endpoint_url: str | None = None,
        region: str | None = None,
        botocore_config: Config | None = None,
        page_size: int = _MAX_BATCH,
    ) -> None:
        self.uri = _uri(bucket, prefix, endpoint_url=endpoint_url, region=region)
        self._bucket = bucket
        self._root = f"{prefix}/" if prefix else ""
        self._page_size = page_size
        self._batch_delete = True
        self._clients = ClientSource(
            client, endpoint_url=endpoint_url, region=region, config=botocore_config
        )

    def get(self, key: str) -> ObjectData:
        """Read a whole object. See `ObjectStore.get`."""
        with self._request(Intent.READ, check_key(key)):
            return _object(key, self._clients.get().get_object(**self._object(key)))

    def get_if_changed(self, key: str, etag: str) -> ObjectData | None:
        """Read a whole object unless unchanged. See `ObjectStore.get_if_changed`."""
        with self._request(Intent.READ, check_key(key)):
            try:
                answer = self._clients.get().get_object(**self._object(key), IfNoneMatch=etag)
            except ClientError as error:
                if status_of(error) == 304:
                    return None
                raise
            return _object(key, answer)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read a part of an object. See `ObjectStore.get_range`."""
        check_range(key, start, length)
        # No Range header can say "nothing", so an empty range reads one byte.
        last = start + max(length, 1) - 1
        with self._request(Intent.READ, check_key(key)):
            try:
                answer = self._clients.get().get_object(
                    **self._object(key), Range=f"bytes={start}-{last}"
                )
            except ClientError as error:
                if status_of(error) == 416:
                    return b""
                raise
            data = _body(answer)
        # A store may ignore Range and answer with the whole object.
        offset = 0 if "ContentRange" in answer else start
        return data[offset : offset + length]

    def put_if_absent(self, key: str, data: bytes) -> Stored:
        """Create an object. See `ObjectStore.put_if_absent`."""
        return self._put(Intent.CREATE, key, data, {"IfNoneMatch": "*"})

    def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> Stored:
        """Replace one version of an object. See `ObjectStore.compare_and_swap`."""
        if expected is None:
            return self.put_if_absent(key, data)
        return self._put(Intent.REPLACE, key, data, {"IfMatch": expected})

    def list(self, prefix: str) -> Iterator[ListPage]:
        """List objects by prefix. See `ObjectStore.list`."""
        check_prefix(prefix)
        wanted: dict[str, Any] = {"Bucket": self._bucket, "Prefix": self._root + prefix}
        while True:
            with self._request(Intent.LIST, prefix):
                answer = self._clients.get().list_objects_v2(**wanted, MaxKeys=self._page_size)
            yield self._page(answer)
            if not answer.get("IsTruncated"):
                return
            wanted["ContinuationToken"] = self._next_token(answer, wanted)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. See `ObjectStore.delete`."""
        for key in keys:
            check_key(key)
        for start in range(0, len(keys), self._page_size):
            self._delete(keys[start : start + self._page_size])

    def close(self) -> None:
        """Close the connections, unless the client is the user's."""
        self._clients.close()

    def _object(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._bucket, "Key": self._root + key}

    def _request(self, intent: Intent, key: str) -> AbstractContextManager[None]:
        return translated(Request(intent, self._bucket, self._root + key))

    def _put(self, intent: Intent, key: str, data: bytes, condition: dict[str, Any]) -> Stored:
        check_body(key, data)
        with self._request(intent, check_key(key)):
            answer = self._clients.get().put_object(**self._object(key), Body=data, **condition)
        return Stored(answer["ETag"], _date(answer))

    def _page(self, answer: ListObjectsV2OutputTypeDef) -> ListPage:
        objects = tuple(
            ObjectInfo(
                entry["Key"].removeprefix(self._root),
                entry["Size"],
                entry["LastModified"].timestamp(),
            )
            for entry in answer.get("Contents", ())
        )
        return ListPage(objects, _date(answer))

    def _next_token(self, answer: ListObjectsV2OutputTypeDef, asked: Mapping[str, str]) -> str:
        following = answer.get("NextContinuationToken", "")
        if not following or following == asked.get("ContinuationToken"):
            raise UnavailableError(
                f"{self.uri}: the listing says that it is truncated, but gives no new "
                f"continuation token ({following!r}); ending it here would hide objects"
            )
        return following

    def _delete(self, keys: Sequence[str]) -> None:
        if self._batch_delete and self._delete_batch(keys):
            return
        for key in keys:
            with self._request(Intent.DELETE, key):
                self._clients.get().delete_object(**self._object(key))

    def _delete_batch(self, keys: Sequence[str]) -> bool:
        wanted: DeleteTypeDef = {
            "Objects": [{"Key": self._root + key} for key in keys],
            "Quiet": True,
        }
        with self._request(Intent.DELETE, f"{keys[0]} and {len(keys) - 1} more"):
            try:
                answer = self._clients.get().delete_objects(Bucket=self._bucket, Delete=wanted)
            except ClientError as error:
                if not lacks_batch_delete(error):
                    raise
                self._batch_delete = False
                return False
        for refused in answer.get("Errors", ()):
            key = refused.get("Key", "").removeprefix(self._root)
            raise_for_undeleted(
                Request(Intent.DELETE, self._bucket, self._root + key),
                refused.get("Code", ""),
                refused.get("Message", ""),
            )
        return True


def _object(key: str, answer: GetObjectOutputTypeDef) -> ObjectData:
    modified = answer["LastModified"].timestamp()
    return ObjectData(key, _body(answer), answer["ETag"], modified, _date(answer))


def _body(answer: GetObjectOutputTypeDef) -> bytes:
    with closing(answer["Body"]) as body:
        return body.read()


def _date(answer: Mapping[str, Any]) -> float:
    text = answer["ResponseMetadata"]["HTTPHeaders"].get("date", "")
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return time.time()


def _uri(bucket: str, prefix: str, **options: str | None) -> str:
    query = urlencode({name: value for name, value in options.items() if value}, safe=":/")
    path = f"/{quote(prefix)}" if prefix else ""
    return f"s3://{bucket}{path}" + (f"?{query}" if query else "")
