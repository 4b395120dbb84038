"""The S3 store's client, and what only a real server can show."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

import pytest
from botocore.config import Config

from logstore.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    InvalidOptionError,
    UsageError,
)
from logstore.objects import ObjectStore, open_object_store
from logstore.objects.s3 import S3ObjectStore
from logstore.objects.s3_client import ClientSource, client_config
from logstore.testing.servers import BUCKET, CREDENTIALS, s3_client

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

ENDPOINT = "http://127.0.0.1:9"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)


def source(
    endpoint_url: str | None = None, region: str | None = None, config: Config | None = None
) -> ClientSource:
    return ClientSource(None, endpoint_url=endpoint_url, region=region, config=config)


def test_the_clients_settings_are_those_the_protocol_needs(aws: None) -> None:
    config = source(ENDPOINT, "eu-north-1").get().meta.config
    assert config.retries == {"total_max_attempts": 1, "mode": "standard"}
    assert (config.connect_timeout, config.read_timeout) == (10, 30)
    assert config.max_pool_connections == 32
    assert config.request_checksum_calculation == "when_required"
    assert config.response_checksum_validation == "when_required"
    assert config.s3["addressing_style"] == "path"
    assert config.region_name == "eu-north-1"


def test_without_an_endpoint_the_bucket_is_a_host_name(
    aws: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "addressing_style" not in (client_config(None, None).s3 or {})
    monkeypatch.setenv("AWS_ENDPOINT_URL", ENDPOINT)
    assert client_config(None, None).s3["addressing_style"] == "path"


def test_the_users_settings_win(aws: None) -> None:
    user = Config(read_timeout=3, s3={"payload_signing_enabled": True})
    config = client_config(ENDPOINT, user)
    assert (config.read_timeout, config.connect_timeout) == (3, 10)
    assert config.s3 == {"addressing_style": "path", "payload_signing_enabled": True}
    virtual = client_config(ENDPOINT, Config(s3={"addressing_style": "virtual"}))
    assert virtual.s3["addressing_style"] == "virtual"


def test_a_client_that_cannot_be_made_is_told_at_opening(aws: None) -> None:
    with pytest.raises(InvalidOptionError, match="mend these options"):
        source("http://no port:x", "us-east-1")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_makes_a_client_of_its_own(aws: None) -> None:
    made = source(ENDPOINT, "us-east-1")
    parents = made.get()
    assert made.get() is parents
    child = os.fork()
    if not child:
        os._exit(0 if made.get() is not parents and made.get() is made.get() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    made.close()


def test_a_users_client_is_used_as_it_is_and_left_open(moto_endpoint: str) -> None:
    client = s3_client(moto_endpoint)
    store = S3ObjectStore(BUCKET, secrets.token_hex(6), client=client)
    store.put_if_absent("key", b"1")
    store.close()
    assert store.get("key").data == b"1"
    client.close()


def test_without_credentials_access_is_denied(aws: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = S3ObjectStore("bucket", endpoint_url=ENDPOINT, region="us-east-1")
    with pytest.raises(AccessDeniedError, match="set them"):
        store.get("key")
    with pytest.raises(AccessDeniedError, match="set them"):
        store.put_if_absent("key", b"1")
    store.close()


def test_a_store_opened_by_uri_reaches_the_server(moto_endpoint: str, aws: None) -> None:
    root = secrets.token_hex(6)
    uri = f"s3://{BUCKET}/{root}?endpoint_url={moto_endpoint}&region=us-east-1"
    store = open_object_store(uri)
    store.put_if_absent("key", b"1")
    assert store.uri == uri
    again = open_object_store(store.uri)
    assert again.get("key").data == b"1"
    store.close()
    again.close()


def odd_prefix(client: S3Client) -> tuple[ObjectStore, ObjectStore]:
    root = secrets.token_hex(6)
    store = S3ObjectStore(BUCKET, f"{root} a+b%2Fé=/c", client=client)
    return store, S3ObjectStore(BUCKET, f"{root} a+b%2Fé=/c-d", client=client)


@pytest.fixture(params=[pytest.param("seaweedfs", marks=pytest.mark.s3), "moto"])
def client(request: pytest.FixtureRequest) -> S3Client:
    found: S3Client = request.getfixturevalue(f"{request.param}_client")
    return found


def test_a_prefix_with_odd_characters_comes_off_the_listed_keys(client: S3Client) -> None:
    store, neighbour = odd_prefix(client)
    for key in ("a/1", "a=b/2"):
        store.put_if_absent(key, b"1")
    neighbour.put_if_absent("a/3", b"1")
    listed = [entry.key for page in store.list("") for entry in page.objects]
    assert sorted(listed) == ["a/1", "a=b/2"]
    store.delete(listed)
    assert [page.objects for page in store.list("")] == [()]
    assert neighbour.get("a/3").data == b"1"


def test_a_missing_bucket_is_found_missing(client: S3Client) -> None:
    store = S3ObjectStore("no-such-bucket", client=client)
    with pytest.raises(BucketNotFoundError, match="no-such-bucket"):
        store.get("key")
    with pytest.raises(BucketNotFoundError, match="no-such-bucket"):
        list(store.list(""))
    with pytest.raises(BucketNotFoundError, match="no-such-bucket"):
        store.put_if_absent("key", b"1")
    with pytest.raises(BucketNotFoundError, match="no-such-bucket"):
        store.delete(["a", "b"])


@pytest.mark.s3
def test_wrong_credentials_are_denied(
    seaweedfs_endpoint: str, aws: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    store = S3ObjectStore(BUCKET, endpoint_url=seaweedfs_endpoint, region="us-east-1")
    with pytest.raises(AccessDeniedError, match="SignatureDoesNotMatch"):
        store.get("key")
    store.close()


def test_an_empty_body_is_refused_before_it_is_sent() -> None:
    store = S3ObjectStore("bucket", client=s3_client(ENDPOINT))
    with pytest.raises(UsageError, match="empty"):
        store.put_if_absent("key", b"")
