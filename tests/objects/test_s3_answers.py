"""What each answer of an S3 server means, played by a server that answers as told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from botocore.config import Config

from logstore.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConditionFailedError,
    ObjectNotFoundError,
    ObjectStoreError,
    OutcomeUnknownError,
    UnavailableError,
    UnsupportedStoreError,
)
from logstore.objects import ObjectStore
from logstore.objects.s3 import S3ObjectStore
from logstore.testing.servers import s3_client
from tests.objects.scripted import Answer, ScriptedS3, scripted_s3

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

FAST = Config(read_timeout=0.3, connect_timeout=1, retries={"total_max_attempts": 1})
DATED = {"Date": "Mon, 30 Nov 2026 17:40:47 GMT"}
WHOLE = {"ETag": '"e1"', "Last-Modified": "Mon, 30 Nov 2026 17:40:40 GMT", **DATED}

Ask = Callable[[ObjectStore], object]


def enlist(store: ObjectStore) -> object:
    return tuple(store.list("key"))


def swap(store: ObjectStore) -> object:
    return store.compare_and_swap("key", b"1", '"e1"')


READS: dict[str, Ask] = {
    "get": lambda store: store.get("key"),
    "get_if_changed": lambda store: store.get_if_changed("key", '"e1"'),
    "get_range": lambda store: store.get_range("key", 0, 5),
}
DELETES: dict[str, Ask] = {
    "delete one": lambda store: store.delete(["key"]),
    "delete two": lambda store: store.delete(["key", "key2"]),
}
CREATES: dict[str, Ask] = {
    "put_if_absent": lambda store: store.put_if_absent("key", b"1"),
    "compare_and_swap none": lambda store: store.compare_and_swap("key", b"1", None),
}
RETRYABLE: dict[str, Ask] = {**READS, "list": enlist, **DELETES}
WRITES: dict[str, Ask] = {**CREATES, "compare_and_swap": swap}
EVERY: dict[str, Ask] = {**RETRYABLE, **WRITES}
UNCLEAR = [
    Answer(408, "RequestTimeout"),
    Answer(400, "RequestTimeout"),
    Answer(409, "ConditionalRequestConflict"),
    Answer(409, "OperationAborted"),
    Answer(429, "TooManyRequests"),
    Answer(500, "InternalError"),
    Answer(502, body=b"<html>bad gateway</html>"),
    Answer(503, "SlowDown"),
    Answer(504),
    Answer(dropped=True),
]
REFUSED = [
    Answer(401, "Unauthorized"),
    Answer(403, "AccessDenied"),
    Answer(403, "SignatureDoesNotMatch"),
    Answer(403, "InvalidAccessKeyId"),
    Answer(403, "RequestTimeTooSkewed"),
    Answer(403),
    Answer(400, "ExpiredToken"),
    Answer(400, "AuthorizationHeaderMalformed"),
]


def told(answer: Answer) -> str:
    return f"{answer.status} {answer.code}".strip() if not answer.dropped else "dropped"


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[ScriptedS3, S3Client]]:
    with scripted_s3() as script:
        client = s3_client(script.endpoint, FAST)
        yield script, client
        client.close()


@pytest.fixture
def s3(server: tuple[ScriptedS3, S3Client]) -> ScriptedS3:
    script, _ = server
    script.answers.clear()
    script.seen.clear()
    return script


@pytest.fixture
def store(server: tuple[ScriptedS3, S3Client]) -> S3ObjectStore:
    _, client = server
    return S3ObjectStore("bucket", "root", client=client)


@pytest.mark.parametrize("answer", UNCLEAR, ids=told)
@pytest.mark.parametrize("name", RETRYABLE)
def test_an_unclear_answer_to_a_read_list_or_delete_may_pass(
    store: S3ObjectStore, s3: ScriptedS3, name: str, answer: Answer
) -> None:
    s3.answers.append(answer)
    with pytest.raises(UnavailableError, match=r"s3://bucket/root/key"):
        RETRYABLE[name](store)
    assert len(s3.seen) == 1


@pytest.mark.parametrize("answer", UNCLEAR, ids=told)
@pytest.mark.parametrize("name", WRITES)
def test_an_unclear_answer_to_a_write_is_an_unknown_outcome(
    store: S3ObjectStore, s3: ScriptedS3, name: str, answer: Answer
) -> None:
    s3.answers.append(answer)
    with pytest.raises(OutcomeUnknownError, match=r"s3://bucket/root/key"):
        WRITES[name](store)
    assert len(s3.seen) == 1


@pytest.mark.parametrize("answer", REFUSED, ids=told)
@pytest.mark.parametrize("name", EVERY)
def test_a_refusal_is_told_as_such(
    store: S3ObjectStore, s3: ScriptedS3, name: str, answer: Answer
) -> None:
    s3.answers.append(answer)
    with pytest.raises(AccessDeniedError, match=r"bucket.*check"):
        EVERY[name](store)


@pytest.mark.parametrize("name", EVERY)
def test_a_missing_bucket_is_told_as_such(store: S3ObjectStore, s3: ScriptedS3, name: str) -> None:
    s3.answers.append(Answer(404, "NoSuchBucket"))
    with pytest.raises(BucketNotFoundError, match="'bucket' was expected to exist"):
        EVERY[name](store)


@pytest.mark.parametrize("name", READS)
def test_only_no_such_key_means_absent(store: S3ObjectStore, s3: ScriptedS3, name: str) -> None:
    s3.answers.append(Answer(404, "NoSuchKey"))
    with pytest.raises(ObjectNotFoundError, match="root/key"):
        READS[name](store)
    for unsure in (Answer(404), Answer(404, body=b"<html>not here</html>"), Answer(404, "NotHere")):
        s3.answers.append(unsure)
        with pytest.raises(UnavailableError, match="root/key"):
            READS[name](store)


@pytest.mark.parametrize("name", WRITES)
def test_412_means_lost(store: S3ObjectStore, s3: ScriptedS3, name: str) -> None:
    s3.answers.append(Answer(412, "PreconditionFailed"))
    with pytest.raises(ConditionFailedError, match="read it again"):
        WRITES[name](store)


@pytest.mark.parametrize("answer", [Answer(404, "NoSuchKey"), Answer(404), Answer(412)], ids=told)
def test_a_swap_of_a_missing_key_is_lost_whichever_way_the_store_says_so(
    store: S3ObjectStore, s3: ScriptedS3, answer: Answer
) -> None:
    s3.answers.append(answer)
    with pytest.raises(ConditionFailedError):
        swap(store)


def test_404_to_a_create_is_not_a_lost_race(store: S3ObjectStore, s3: ScriptedS3) -> None:
    s3.answers.append(Answer(404, "NoSuchKey"))
    with pytest.raises(OutcomeUnknownError):
        store.put_if_absent("key", b"1")


@pytest.mark.parametrize("name", sorted(EVERY.keys() - DELETES))
def test_what_a_store_does_not_implement_is_unsupported(
    store: S3ObjectStore, s3: ScriptedS3, name: str
) -> None:
    s3.answers.append(Answer(501, "NotImplemented"))
    with pytest.raises(UnsupportedStoreError, match="If-None-Match"):
        EVERY[name](store)


@pytest.mark.parametrize("name", EVERY)
def test_another_refusal_is_neither_retried_nor_guessed_at(
    store: S3ObjectStore, s3: ScriptedS3, name: str
) -> None:
    s3.answers.append(Answer(400, "KeyTooLongError"))
    with pytest.raises(ObjectStoreError, match="KeyTooLongError") as caught:
        EVERY[name](store)
    assert type(caught.value) is ObjectStoreError


@pytest.mark.parametrize(
    ("name", "error"), [("get", UnavailableError), ("put", OutcomeUnknownError)]
)
def test_a_timeout_is_unclear(
    store: S3ObjectStore, s3: ScriptedS3, name: str, error: type[Exception]
) -> None:
    hang = threading.Event()
    s3.answers.append(Answer(hang=hang))
    with pytest.raises(error, match="timeout"):
        store.get("key") if name == "get" else store.put_if_absent("key", b"1")
    hang.set()


def test_a_server_that_is_not_there_is_unclear() -> None:
    with scripted_s3() as script:
        client = s3_client(script.endpoint, FAST)
    store = S3ObjectStore("bucket", client=client)
    with pytest.raises(UnavailableError, match="s3://bucket/key"):
        store.get("key")
    with pytest.raises(OutcomeUnknownError, match="s3://bucket/key"):
        store.put_if_absent("key", b"1")
    client.close()


def test_half_a_body_is_never_taken_for_the_whole(store: S3ObjectStore, s3: ScriptedS3) -> None:
    s3.answers.append(Answer(body=b"half", headers={**WHOLE, "Content-Length": "8"}))
    with pytest.raises(UnavailableError, match="key"):
        store.get("key")


def test_half_a_listing_is_never_taken_for_the_whole(store: S3ObjectStore, s3: ScriptedS3) -> None:
    s3.answers.append(Answer(body=b"<ListBucketResult><Contents><Key>root/key</K"))
    with pytest.raises(UnavailableError, match="key"):
        enlist(store)


def test_a_truncated_listing_without_a_token_raises(store: S3ObjectStore, s3: ScriptedS3) -> None:
    page = "<ListBucketResult><IsTruncated>true</IsTruncated>{}</ListBucketResult>"
    again = "<NextContinuationToken>t</NextContinuationToken>"
    s3.answers.append(Answer(body=page.format("").encode()))
    with pytest.raises(UnavailableError, match="truncated"):
        enlist(store)
    s3.answers.append(Answer(body=page.format(again).encode()))
    s3.answers.append(Answer(body=page.format(again).encode()))
    with pytest.raises(UnavailableError, match="truncated"):
        enlist(store)


def test_not_modified_is_none(store: S3ObjectStore, s3: ScriptedS3) -> None:
    s3.answers.append(Answer(304))
    assert store.get_if_changed("key", '"e1"') is None
    assert s3.seen[0].headers["if-none-match"] == '"e1"'


def test_times_come_from_the_answers_headers(store: S3ObjectStore, s3: ScriptedS3) -> None:
    s3.answers.append(Answer(body=b"1", headers=WHOLE))
    found = store.get("key")
    assert (found.etag, found.date - found.modified) == ('"e1"', 7.0)
    assert found.date == 1796060447.0


@pytest.mark.parametrize("date", [None, "yesterday"])
def test_without_a_date_the_local_clock_serves(
    store: S3ObjectStore, s3: ScriptedS3, date: str | None
) -> None:
    headers = {"ETag": '"e2"', **({"Date": date} if date else {})}
    s3.answers.append(Answer(headers=headers))
    stored = store.put_if_absent("key", b"1")
    assert stored.etag == '"e2"'
    assert abs(stored.date - time.time()) < 5


def test_a_store_that_ignores_ranges_is_cut_here(store: S3ObjectStore, s3: ScriptedS3) -> None:
    s3.answers.append(Answer(body=b"0123456789", headers=WHOLE))
    assert store.get_range("key", 3, 4) == b"3456"
    s3.answers.append(Answer(body=b"0123456789", headers=WHOLE))
    assert store.get_range("key", 3, 0) == b""


def test_conditions_are_sent_as_headers(store: S3ObjectStore, s3: ScriptedS3) -> None:
    s3.answers.extend([Answer(headers={"ETag": '"e1"'}), Answer(headers={"ETag": '"e2"'})])
    store.put_if_absent("key", b"body")
    store.compare_and_swap("key", b"body2", '"e1"')
    create, swap = s3.seen
    assert (create.headers["if-none-match"], create.body) == ("*", b"body")
    assert "if-match" not in create.headers
    assert (swap.headers["if-match"], swap.body) == ('"e1"', b"body2")
    assert create.path == "/bucket/root/key"


@pytest.mark.parametrize(
    "answer",
    [
        Answer(400, "MissingContentMD5"),
        Answer(400, "InvalidRequest"),
        Answer(405, "MethodNotAllowed"),
        Answer(411, "MissingContentLength"),
        Answer(501, "NotImplemented"),
    ],
    ids=told,
)
def test_a_store_without_batch_deletes_gets_single_ones(
    store: S3ObjectStore, s3: ScriptedS3, answer: Answer
) -> None:
    s3.answers.extend([answer, Answer(204), Answer(204), Answer(204), Answer(204)])
    store.delete(["a", "b"])
    store.delete(["c", "d"])
    assert [(seen.method, seen.path) for seen in s3.seen] == [
        ("POST", "/bucket?delete"),
        *(("DELETE", f"/bucket/root/{key}") for key in "abcd"),
    ]


@pytest.mark.parametrize(
    ("code", "error"),
    [("AccessDenied", AccessDeniedError), ("InternalError", UnavailableError), ("NoSuchKey", None)],
)
def test_a_key_that_a_batch_left_undeleted_raises(
    store: S3ObjectStore, s3: ScriptedS3, code: str, error: type[Exception] | None
) -> None:
    body = f"<DeleteResult><Error><Key>root/b</Key><Code>{code}</Code></Error></DeleteResult>"
    s3.answers.append(Answer(body=body.encode()))
    if error is None:
        store.delete(["a", "b"])
        return
    with pytest.raises(error, match="root/b"):
        store.delete(["a", "b"])


def test_deletes_go_in_batches_of_a_thousand(store: S3ObjectStore, s3: ScriptedS3) -> None:
    s3.answers.extend([Answer(body=b"<DeleteResult/>")] * 3)
    store.delete([f"key/{number}" for number in range(2500)])
    assert [seen.body.count(b"<Key>") for seen in s3.seen] == [1000, 1000, 500]
