"""A log that grows and is not compacted is told of, once."""

from __future__ import annotations

import logging
import secrets

import pytest

import logstore.store
from logstore import LogStoreSaver
from logstore.objects.memory import MemoryObjectStore
from logstore.store import LogStore
from logstore.testing.wrappers import SkewedClockStore


def test_a_long_old_tail_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logstore.store, "LONG_TAIL_SEGMENTS", 3)
    monkeypatch.setattr(logstore.store, "LONG_TAIL_AGE_S", 0.0)
    objects = SkewedClockStore(MemoryObjectStore(f"tail-{secrets.token_hex(8)}"), 0.0)
    saver = LogStoreSaver(LogStore(objects))
    config = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "1"}}
    with caplog.at_level(logging.WARNING, "logstore.store"):
        for number in range(2):
            saver.put_writes(config, [("a", number)], f"task {number}")
        assert saver.get_tuple(config) is None
        assert caplog.messages == []
        saver.put_writes(config, [("a", 2)], "task 2")
        for _ in range(3):
            assert saver.get_tuple(config) is None
    (message,) = caplog.messages
    assert "holds 3 segments" in message
    assert "compactor serve" in message
    saver.close()
