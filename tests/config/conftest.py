"""Each test is a process of its own, as far as mode and cadence are concerned."""

from collections.abc import Iterator

import pytest

from logstore.modes import unfreeze_for_tests


@pytest.fixture(autouse=True)
def _new_process() -> Iterator[None]:
    unfreeze_for_tests()
    yield
    unfreeze_for_tests()
