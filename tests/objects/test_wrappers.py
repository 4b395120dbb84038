"""The wrappers do what the tests that rest on them believe."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from logstore.errors import (
    AccessDeniedError,
    ConditionFailedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from logstore.objects import ObjectStore
from logstore.objects.memory import MemoryObjectStore
from logstore.testing.suite import ObjectStoreSuite
from logstore.testing.wrappers import (
    CountingStore,
    Fault,
    FaultyStore,
    PausingStore,
    ShufflingStore,
    SkewedClockStore,
    WrappedStore,
)


@pytest.fixture
def memory() -> MemoryObjectStore:
    return MemoryObjectStore(secrets.token_hex(6))


class TestAllAtOnce(ObjectStoreSuite):
    """Wrappers that are told nothing change nothing."""

    many = 60
    rounds = 4

    @pytest.fixture
    def store(self, memory: MemoryObjectStore) -> ObjectStore:
        inner = SkewedClockStore(PausingStore(FaultyStore(CountingStore(memory))), 0.0)
        return WrappedStore(ShufflingStore(inner))


def test_requests_are_counted_with_their_bytes(memory: MemoryObjectStore) -> None:
    store = CountingStore(memory)
    etag = store.put_if_absent("a", b"12").etag
    store.compare_and_swap("a", b"123", etag)
    store.get("a")
    store.get_range("a", 0, 2)
    store.get_if_changed("a", store.get("a").etag)
    list(store.list(""))
    store.delete(["a", "b"])
    with pytest.raises(ObjectNotFoundError):
        store.get("a")
    told = [(request.method, request.key, request.size) for request in store.requests]
    assert told == [
        ("put_if_absent", "a", 2),
        ("compare_and_swap", "a", 3),
        ("get", "a", 3),
        ("get_range", "a", 2),
        ("get", "a", 3),
        ("get_if_changed", "a", 0),
        ("list", "", 0),
        ("delete", "a", 0),
        ("get", "a", 0),
    ]
    assert store.counts["get"] == 3
    assert store.rounds() == 9
    store.reset()
    assert (store.requests, store.counts.total(), store.rounds()) == ((), 0, 0)


def test_each_page_of_a_listing_is_a_request(memory: MemoryObjectStore) -> None:
    for number in range(20):
        memory.put_if_absent(f"key/{number}", b"1")
    store = CountingStore(ShufflingStore(memory))
    assert len(list(store.list(""))) == 3
    assert store.counts["list"] == 3


def test_parallel_requests_are_one_round(memory: MemoryObjectStore) -> None:
    store = CountingStore(memory, latency=0.05)
    memory.put_if_absent("a", b"1")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: store.get("a"), range(4)))
    store.get("a")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: store.get("a"), range(4)))
    assert store.counts["get"] == 9
    assert store.rounds() == 3


CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda store: store.get("there"),
    "get_if_changed": lambda store: store.get_if_changed("there", "other"),
    "get_range": lambda store: store.get_range("there", 0, 1),
    "list": lambda store: list(store.list("")),
    "delete": lambda store: store.delete(["there"]),
    "put_if_absent": lambda store: store.put_if_absent("new", b"2"),
    "compare_and_swap": lambda store: store.compare_and_swap("new", b"2", None),
}
CONDITIONAL = ("put_if_absent", "compare_and_swap")


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("fault", "applied"),
    [(Fault.ERROR, False), (Fault.DROPPED_ANSWER, True), (Fault.LATE, False)],
)
def test_an_unclear_fault_is_of_the_methods_kind(
    memory: MemoryObjectStore, name: str, fault: Fault, applied: bool
) -> None:
    memory.put_if_absent("there", b"1")
    store = FaultyStore(memory)
    store.fail_at(1, fault)
    with pytest.raises(OutcomeUnknownError if name in CONDITIONAL else UnavailableError):
        CALLS[name](store)
    found = {entry.key for page in memory.list("") for entry in page.objects}
    assert ("new" in found) is (applied and name in CONDITIONAL)
    assert ("there" not in found) is (applied and name == "delete")
    CALLS["get"](store) if "there" in found else None
    assert store.failed == 1


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.REFUSED, UnavailableError),
        (Fault.NOT_FOUND, ObjectNotFoundError),
        (Fault.ACCESS_DENIED, AccessDeniedError),
        (Fault.LOST_RACE, ConditionFailedError),
    ],
)
def test_a_clear_fault_changes_nothing(
    memory: MemoryObjectStore, name: str, fault: Fault, error: type[Exception]
) -> None:
    memory.put_if_absent("there", b"1")
    store = FaultyStore(memory)
    store.fail_when(lambda method, key: method == name, fault, times=1)
    with pytest.raises(error, match=name):
        CALLS[name](store)
    assert [entry.key for page in store.list("") for entry in page.objects] == ["there"]


def test_faults_strike_the_planned_requests(memory: MemoryObjectStore) -> None:
    store = FaultyStore(memory)
    store.fail_at(2, Fault.REFUSED)
    store.fail_at(4, Fault.REFUSED, times=2)

    def outcome(number: int) -> bool:
        try:
            store.put_if_absent(f"key/{number}", b"1")
        except UnavailableError:
            return False
        return True

    assert [outcome(number) for number in range(1, 8)] == [
        True, False, True, False, False, True, True,
    ]  # fmt: skip
    store.fail_when(lambda method, key: key.endswith("9"), Fault.REFUSED)
    assert [outcome(number) for number in (8, 9, 9, 10)] == [True, False, False, True]
    store.heal()
    assert outcome(9)


def test_the_end_of_a_listing_is_no_request_to_fail(memory: MemoryObjectStore) -> None:
    store = FaultyStore(memory)
    store.fail_at(2, Fault.REFUSED)
    assert len(list(store.list(""))) == 1
    with pytest.raises(UnavailableError):
        list(store.list(""))


def test_a_late_write_lands_when_it_is_told_to(memory: MemoryObjectStore) -> None:
    store = FaultyStore(memory)
    store.fail_when(lambda method, key: True, Fault.LATE, times=2)
    for key in ("a", "b"):
        with pytest.raises(OutcomeUnknownError):
            store.put_if_absent(key, b"late")
    store.put_if_absent("b", b"early")
    store.land()
    assert (memory.get("a").data, memory.get("b").data) == (b"late", b"early")
    memory.delete(["a"])
    store.land()
    assert [entry.key for page in memory.list("") for entry in page.objects] == ["b"]


def test_listings_are_shuffled_anew_and_repeatably(memory: MemoryObjectStore) -> None:
    for number in range(30):
        memory.put_if_absent(f"key/{number:02d}", b"1")

    def orders(seed: int) -> list[tuple[str, ...]]:
        store = ShufflingStore(memory, seed=seed)
        return [
            tuple(entry.key for page in store.list("") for entry in page.objects) for _ in range(3)
        ]

    assert orders(1) == orders(1)
    assert len(set(orders(1) + orders(2))) == 6
    pages = list(ShufflingStore(memory).list(""))
    assert [len(page.objects) for page in pages] == [7, 7, 7, 7, 2]


@pytest.mark.parametrize("after", [False, True])
def test_a_held_request_waits_before_or_after_it_is_carried_out(
    memory: MemoryObjectStore, after: bool
) -> None:
    store = PausingStore(memory)
    with (
        ThreadPoolExecutor(1) as pool,
        store.hold(lambda method, key: key == "held", after=after) as held,
    ):
        store.put_if_absent("other", b"1")
        write = pool.submit(store.put_if_absent, "held", b"1")
        held.wait_until_blocked()
        visible = {entry.key for page in memory.list("") for entry in page.objects}
        assert ("held" in visible) is after
        with pytest.raises(ConditionFailedError):
            store.put_if_absent("held" if after else "other", b"2")
        assert not write.done()
        held.release()
        write.result(10)
    assert memory.get("held").data == b"1"


def test_the_end_of_a_hold_releases_it(memory: MemoryObjectStore) -> None:
    store = PausingStore(memory)
    memory.put_if_absent("key", b"1")
    with ThreadPoolExecutor(1) as pool:
        with store.hold(lambda method, key: method == "get") as held:
            read = pool.submit(store.get, "key")
            held.wait_until_blocked()
        assert read.result(10).data == b"1"
    with store.hold(lambda method, key: method == "get"):
        pass
    assert store.get("key").data == b"1"


def test_waiting_for_a_request_that_never_comes_ends(memory: MemoryObjectStore) -> None:
    with (
        PausingStore(memory).hold(lambda method, key: True) as held,
        pytest.raises(TimeoutError, match="no request"),
    ):
        held.wait_until_blocked(0.01)


def test_a_skewed_clock_is_consistent(memory: MemoryObjectStore) -> None:
    store = SkewedClockStore(memory, 3600.0)
    now = time.time() + 3600.0
    first = store.put_if_absent("key", b"1")
    second = store.compare_and_swap("key", b"2", first.etag)
    found, changed = store.get("key"), store.get_if_changed("key", first.etag)
    assert changed is not None
    (page,) = store.list("")
    times = [first.date, second.date, found.date, found.modified, changed.date, changed.modified]
    times += [page.date, page.objects[0].modified]
    assert all(now - 5 <= moment <= now + 5 for moment in times)
    assert store.get_if_changed("key", second.etag) is None
    store.offset = -10.0
    assert store.get("key").date < time.time() - 5


def test_counting_is_safe_under_threads(memory: MemoryObjectStore) -> None:
    store = CountingStore(memory)
    barrier = threading.Barrier(8)

    def write(me: int) -> None:
        barrier.wait()
        for number in range(50):
            store.put_if_absent(f"{me}/{number}", b"1")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert store.counts["put_if_absent"] == 400
