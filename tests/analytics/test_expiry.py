"""Counts stay exact, or fail clearly, while compaction replaces what a snapshot pins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logstore import analytics
from logstore.analytics import StoreSnapshot
from logstore.errors import SnapshotExpiredError
from tests.helpers import Place, Script, memory_place

WAYS: dict[str, Callable[[StoreSnapshot], int]] = {
    "sql": lambda s: (
        s.sql("SELECT count(*) n FROM writes WHERE thread_id LIKE 'kept%'").read_all()["n"][0].as_py()
    ),
    "scan": lambda s: sum(
        name.startswith("kept")
        for batch in s.scan("writes", columns=["thread_id"])
        for name in batch["thread_id"].to_pylist()
    ),
    "decoded": lambda s: (
        s.sql("SELECT count(*) n FROM decoded WHERE thread_id LIKE 'kept%' AND kind = 'write'")
        .read_all()["n"][0]
        .as_py()
    ),
}  # fmt: skip


@pytest.fixture(params=["file", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A store whose replaced runs are deleted by the very next job."""
    graces = {"partitions": 1, "short_grace_s": 0, "long_grace_s": 0}
    if request.param == "memory":
        with memory_place(**graces) as found:
            yield found
    else:
        found = Place((tmp_path / "a [store]").as_uri()).create(**graces)
        yield found
        found.close()


def churn(place: Place, number: int) -> None:
    """A thread that comes, is compacted and goes: its delete rewrites the run."""
    saver = place.saver()
    Script([saver], f"gone-{number}").chain(2)
    place.compact()
    saver.delete_thread(f"gone-{number}")
    place.compact()


@pytest.mark.parametrize("way", WAYS)
def test_counts_stay_exact_while_compaction_loops_with_a_zero_grace(place: Place, way: str) -> None:
    for number in range(3):
        Script([place.saver()], f"kept-{number}").chain(4)
    place.compact()
    stop = threading.Event()

    def loop() -> None:
        number = 0
        while not stop.is_set():
            churn(place, number)
            number += 1

    compacting = threading.Thread(target=loop)
    compacting.start()
    counts: list[int] = []
    try:
        until = time.monotonic() + 2
        while time.monotonic() < until or len(counts) < 3:
            with analytics.open(place.uri) as snapshot:
                try:
                    counts.append(WAYS[way](snapshot))
                except SnapshotExpiredError:
                    continue
    finally:
        stop.set()
        compacting.join()
    assert set(counts) == {9}


@pytest.mark.parametrize("way", WAYS)
def test_a_snapshot_past_its_grace_says_so_and_offers_a_fresh_one(place: Place, way: str) -> None:
    Script([place.saver()], "kept").chain(4)
    Script([place.saver()], "other").chain(4)
    place.compact()
    with analytics.open(place.uri) as snapshot:
        snapshot.check()
        churn(place, 1)
        place.saver().delete_thread("other")
        place.compact()  # replaces the run that was pinned
        place.compact()  # and deletes it
        place.compact()
        with pytest.raises(SnapshotExpiredError, match=r"has expired: .*runs/.*refresh\(\)"):
            WAYS[way](snapshot)
        with pytest.raises(SnapshotExpiredError):
            snapshot.check()
        with pytest.raises(SnapshotExpiredError):
            snapshot.dataset("writes")
        with snapshot.refresh() as fresh:
            assert WAYS[way](fresh) == 3


def test_the_tail_of_a_snapshot_never_expires(place: Place) -> None:
    Script([place.saver()], "kept").chain(4)
    with analytics.open(place.uri) as snapshot:
        place.compact()
        place.compact()
        assert not place.keys("log/")
        for way in WAYS.values():
            assert way(snapshot) == 3
