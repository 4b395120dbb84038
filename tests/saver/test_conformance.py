"""LangGraph's own conformance suite, on every backend and in every durability."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate

from logstore import LogStoreSaver
from tests.helpers import CompactingSaver, Place
from tests.saver.conftest import BACKENDS

CAPABILITIES = {
    "put",
    "put_writes",
    "get_tuple",
    "list",
    "delete_thread",
    "delete_for_runs",
    "copy_thread",
    "prune",
}


async def assert_conforms(place: Place, of: type[LogStoreSaver], **options: Any) -> None:
    @checkpointer_test(name=f"{place.uri} {of.__name__} {options}")
    async def registered() -> AsyncGenerator[LogStoreSaver, None]:
        yield place.saver(of, **options)

    report = await validate(registered)
    assert set(report.results) == CAPABILITIES
    for name in CAPABILITIES:
        result = report.results[name]
        assert result.detected, name
        assert result.passed, (name, result.failures)
        assert result.tests_passed > 0
        assert result.tests_skipped == 0


@pytest.mark.parametrize("durability", ["strict", "checkpoint", "buffered"])
@pytest.mark.parametrize("any_place", BACKENDS, indirect=True)
async def test_the_saver_conforms_on_every_backend_in_every_durability(
    any_place: Place, durability: str
) -> None:
    await assert_conforms(any_place, LogStoreSaver, durability=durability)


async def test_the_saver_conforms_with_a_compaction_after_every_write(place: Place) -> None:
    """And with the garbage collected at once, so that every read meets moved data."""
    await assert_conforms(place, CompactingSaver)
