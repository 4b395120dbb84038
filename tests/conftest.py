"""Servers that many tests share: each is started at the first use, once a session."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from logstore.testing.servers import moto_server, seaweedfs


@pytest.fixture(scope="session")
def seaweedfs_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a SeaweedFS server that holds the bucket `servers.BUCKET`."""
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    """The URL of a moto server that holds the bucket `servers.BUCKET`."""
    with moto_server() as endpoint:
        yield endpoint


# Continuous integration judges a change by examples that stay the same; people explore.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
