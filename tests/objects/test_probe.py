"""The probe refuses stores that do not enforce conditional writes."""

from __future__ import annotations

import secrets

import pytest

from logstore.errors import ConditionFailedError, OutcomeUnknownError, UnsupportedStoreError
from logstore.objects import ObjectData, RetryingObjectStore, Stored, probe_conditional_writes
from logstore.objects.memory import MemoryObjectStore
from logstore.testing.wrappers import CountingStore, Fault, FaultyStore, WrappedStore


class Careless(WrappedStore):
    """Ignores If-None-Match, If-Match, or both, as some S3-compatible stores did."""

    def __init__(self, *, create: bool, swap: bool) -> None:
        super().__init__(MemoryObjectStore(secrets.token_hex(6)))
        self._ignores = {"create": create, "swap": swap}

    def put_if_absent(self, key: str, data: bytes) -> Stored:
        if self._ignores["create"]:
            self.inner.delete([key])
        return super().put_if_absent(key, data)

    def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> Stored:
        current = self.inner.get(key).etag if self._ignores["swap"] else expected
        return super().compare_and_swap(key, data, current)


class Refusing(WrappedStore):
    """Answers 412 to every If-Match."""

    def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> Stored:
        raise ConditionFailedError(key)


class Stale(WrappedStore):
    """Reads back an earlier version."""

    def get(self, key: str) -> ObjectData:
        found = super().get(key)
        return ObjectData(key, b"old", found.etag, found.modified, found.date)


@pytest.mark.parametrize(
    ("store", "said"),
    [
        (Careless(create=True, swap=False), r"memory://\w+ ignored 'If-None-Match: \*'"),
        (Careless(create=True, swap=True), r"memory://\w+ ignored 'If-None-Match: \*'"),
        (Careless(create=False, swap=True), r"memory://\w+ ignored 'If-Match'"),
        (Refusing(MemoryObjectStore("refusing")), r"memory://refusing refused"),
        (Stale(MemoryObjectStore("stale")), r"memory://stale.*read-after-write"),
    ],
)
def test_a_store_that_breaks_a_promise_is_refused_and_left_clean(
    store: WrappedStore, said: str
) -> None:
    with pytest.raises(UnsupportedStoreError, match=said) as caught:
        probe_conditional_writes(store, "probe")
    assert "use a store" in str(caught.value)
    assert [page.objects for page in store.list("")] == [()]


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_lost_answers_do_not_condemn_a_good_store(k: int) -> None:
    faulty = FaultyStore(MemoryObjectStore(secrets.token_hex(6)))
    faulty.fail_at(k, Fault.DROPPED_ANSWER)
    store = RetryingObjectStore(faulty, sleep=lambda seconds: None)
    probe_conditional_writes(store, "probe")
    assert [page.objects for page in store.list("")] == [()]
    assert faulty.failed == 1


def test_an_outage_is_not_a_verdict() -> None:
    faulty = FaultyStore(MemoryObjectStore(secrets.token_hex(6)))
    faulty.fail_at(1, Fault.ERROR)
    with pytest.raises(OutcomeUnknownError):
        probe_conditional_writes(faulty, "probe")


def test_probes_do_not_meet_each_other() -> None:
    store = CountingStore(MemoryObjectStore(secrets.token_hex(6)))
    probe_conditional_writes(store, "")
    probe_conditional_writes(store, "some/where")
    keys = {request.key for request in store.requests}
    assert len(keys) == 2
    assert sum(key.startswith("some/where/probe-") for key in keys) == 1
