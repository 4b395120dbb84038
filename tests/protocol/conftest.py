"""The world that every test here steps through."""

from __future__ import annotations

import pytest

import logstore.reader
from tests.protocol.world import world as world


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads that meet a hole give up without pausing."""
    monkeypatch.setattr(logstore.reader.time, "sleep", lambda seconds: None)
