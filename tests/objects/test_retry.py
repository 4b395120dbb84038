"""Retries: which failures, how often, how long apart, and what comes out in the end."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import pytest

from logstore.errors import (
    AccessDeniedError,
    ConditionFailedError,
    InvalidOptionError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from logstore.objects import ObjectStore, RetryingObjectStore
from logstore.objects.memory import MemoryObjectStore
from logstore.testing.wrappers import CountingStore, Fault, FaultyStore, ShufflingStore


class Rig:
    """A store that fails as planned, behind retries that do not wait."""

    def __init__(self) -> None:
        self.memory = MemoryObjectStore(secrets.token_hex(6))
        self.counting = CountingStore(self.memory)
        self.faulty = FaultyStore(self.counting)
        self.pauses: list[float] = []
        self.store = RetryingObjectStore(self.faulty, sleep=self.pauses.append)
        self.etag = self.memory.put_if_absent("there", b"1").etag


@pytest.fixture
def rig() -> Rig:
    return Rig()


READS: dict[str, Callable[[Rig], object]] = {
    "get": lambda rig: rig.store.get("there"),
    "get_if_changed": lambda rig: rig.store.get_if_changed("there", "other"),
    "get_range": lambda rig: rig.store.get_range("there", 0, 1),
    "list": lambda rig: list(rig.store.list("")),
    "delete": lambda rig: rig.store.delete(["there"]),
}
WRITES: dict[str, Callable[[Rig], object]] = {
    "put_if_absent": lambda rig: rig.store.put_if_absent("new", b"2"),
    "compare_and_swap": lambda rig: rig.store.compare_and_swap("there", b"2", rig.etag),
}
EVERY = {**READS, **WRITES}


@pytest.mark.parametrize("name", EVERY)
def test_four_failures_are_survived_with_growing_pauses(rig: Rig, name: str) -> None:
    rig.faulty.fail_at(1, Fault.ERROR, times=4)
    EVERY[name](rig)
    assert rig.faulty.failed == 4
    assert len(rig.pauses) == 4
    for number, pause in enumerate(rig.pauses):
        assert 0 <= pause <= 0.1 * 2**number


@pytest.mark.parametrize(
    ("name", "error"),
    [
        *((name, UnavailableError) for name in READS),
        *((name, OutcomeUnknownError) for name in WRITES),
    ],
)
def test_the_last_error_is_raised_in_the_end(rig: Rig, name: str, error: type[Exception]) -> None:
    rig.faulty.fail_at(1, Fault.ERROR, times=None)
    with pytest.raises(error, match="was made to fail"):
        EVERY[name](rig)
    assert rig.faulty.failed == 5


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.ACCESS_DENIED, AccessDeniedError),
        (Fault.NOT_FOUND, ObjectNotFoundError),
        (Fault.LOST_RACE, ConditionFailedError),
    ],
)
@pytest.mark.parametrize("name", EVERY)
def test_a_clear_answer_is_not_retried(
    rig: Rig, name: str, fault: Fault, error: type[Exception]
) -> None:
    rig.faulty.fail_at(1, fault)
    with pytest.raises(error):
        EVERY[name](rig)
    assert (rig.faulty.failed, rig.pauses) == (1, [])


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_was_refused_for_now_is_repeated(rig: Rig, name: str) -> None:
    rig.faulty.fail_at(1, Fault.REFUSED, times=2)
    EVERY[name](rig)
    assert rig.counting.counts[name] == 1


@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_got_through_unanswered_surfaces_as_a_lost_race(rig: Rig, name: str) -> None:
    rig.faulty.fail_at(1, Fault.DROPPED_ANSWER)
    with pytest.raises(ConditionFailedError):
        EVERY[name](rig)
    assert rig.memory.get("new" if name == "put_if_absent" else "there").data == b"2"


def test_a_listing_that_fails_midway_begins_again_and_is_complete(rig: Rig) -> None:
    for number in range(30):
        rig.memory.put_if_absent(f"log/{number:02d}", b"1")
    faulty = FaultyStore(ShufflingStore(rig.memory))
    faulty.fail_at(3, Fault.ERROR)
    store = RetryingObjectStore(faulty, sleep=rig.pauses.append)
    found = [entry.key for page in store.list("log/") for entry in page.objects]
    assert sorted(found) == [f"log/{number:02d}" for number in range(30)]
    assert len(rig.pauses) == 1


def test_the_bounds_are_options(rig: Rig) -> None:
    store = RetryingObjectStore(rig.faulty, attempts=12, base=1.0, cap=3.0, sleep=rig.pauses.append)
    rig.faulty.fail_at(1, Fault.ERROR, times=None)
    with pytest.raises(UnavailableError):
        store.get("there")
    assert len(rig.pauses) == 11
    assert max(rig.pauses) <= 3.0
    assert len(set(rig.pauses)) > 1
    with pytest.raises(InvalidOptionError, match="1 or more"):
        RetryingObjectStore(rig.faulty, attempts=0)


def test_the_inner_store_is_at_hand_and_closed_with_it(rig: Rig) -> None:
    class Closing(MemoryObjectStore):
        closed = False

        def close(self) -> None:
            self.closed = True

    inner = Closing(secrets.token_hex(6))
    store: ObjectStore = RetryingObjectStore(inner)
    assert isinstance(store, RetryingObjectStore)
    assert store.inner is inner
    assert store.uri == inner.uri
    store.close()
    assert inner.closed
