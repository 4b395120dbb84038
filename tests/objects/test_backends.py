"""The shipped suite against every backend, bare and through retries with shuffled pages."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logstore.objects import ObjectStore, RetryingObjectStore
from logstore.objects.file import FileObjectStore
from logstore.objects.memory import MemoryObjectStore
from logstore.objects.s3 import S3ObjectStore
from logstore.testing.servers import BUCKET
from logstore.testing.suite import ObjectStoreSuite
from logstore.testing.wrappers import ShufflingStore

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


def open_s3(client: S3Client, *, page_size: int = 1000) -> ObjectStore:
    prefix = f"test-{secrets.token_hex(6)}"
    return S3ObjectStore(BUCKET, prefix, client=client, page_size=page_size)


def disturbed(store: ObjectStore) -> ObjectStore:
    return RetryingObjectStore(ShufflingStore(store))


class TestMemory(ObjectStoreSuite):
    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        name = secrets.token_hex(6)
        yield MemoryObjectStore(name)
        MemoryObjectStore.forget(name)


class TestMemoryDisturbed(TestMemory):
    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        name = secrets.token_hex(6)
        yield disturbed(MemoryObjectStore(name))
        MemoryObjectStore.forget(name)


class TestFile(ObjectStoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return FileObjectStore(tmp_path / "root")


class TestFileDisturbed(ObjectStoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return disturbed(FileObjectStore(tmp_path / "root"))


class TestMoto(ObjectStoreSuite):
    rounds = 8

    @pytest.fixture
    def store(self, moto_client: S3Client) -> ObjectStore:
        return open_s3(moto_client)


class TestMotoDisturbed(TestMoto):
    many = 120

    @pytest.fixture
    def store(self, moto_client: S3Client) -> ObjectStore:
        return disturbed(open_s3(moto_client, page_size=50))


@pytest.mark.s3
class TestSeaweedFS(ObjectStoreSuite):
    rounds = 8

    @pytest.fixture
    def store(self, seaweedfs_client: S3Client) -> ObjectStore:
        return open_s3(seaweedfs_client)


@pytest.mark.s3
class TestSeaweedFSDisturbed(TestSeaweedFS):
    many = 400

    @pytest.fixture
    def store(self, seaweedfs_client: S3Client) -> ObjectStore:
        return disturbed(open_s3(seaweedfs_client, page_size=50))
