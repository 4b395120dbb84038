"""A store in memory for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers import Place, memory_place


@pytest.fixture
def place() -> Iterator[Place]:
    """A store in memory, with one partition, whose garbage is collected at the next job."""
    with memory_place(short_grace_s=0, long_grace_s=0) as found:
        yield found
