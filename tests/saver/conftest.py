"""A store for each test, on the backend that it asks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.testing.servers import s3_client
from tests.helpers import Place, memory_place, s3_uri

BACKENDS = ["memory", "file", "moto", pytest.param("seaweedfs", marks=pytest.mark.s3)]


@pytest.fixture
def place() -> Iterator[Place]:
    """A store in memory, with one partition, whose garbage is collected at the next job."""
    with memory_place(short_grace_s=0, long_grace_s=0) as found:
        yield found


@pytest.fixture
def any_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A store on the backend that the test's parameter names, not created yet."""
    match request.param:
        case "memory":
            with memory_place() as found:
                yield found
        case "file":
            found = Place(f"file://{tmp_path}/store")
            yield found
            found.close()
        case server:
            name = "moto_endpoint" if server == "moto" else "seaweedfs_endpoint"
            client = s3_client(request.getfixturevalue(name))
            found = Place(s3_uri(), {"client": client})
            yield found
            found.close()
            client.close()
