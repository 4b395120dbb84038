"""One client a server: making one costs more than most tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from logstore.testing.servers import s3_client

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


@pytest.fixture(scope="session")
def seaweedfs_client(seaweedfs_endpoint: str) -> Iterator[S3Client]:
    client = s3_client(seaweedfs_endpoint)
    yield client
    client.close()


@pytest.fixture(scope="session")
def moto_client(moto_endpoint: str) -> Iterator[S3Client]:
    client = s3_client(moto_endpoint)
    yield client
    client.close()
