"""Patches against values that are on their way to the store: never stored without them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from logstore import LogStoreSaver
from logstore.errors import LogStoreError, ThreadPoisonedError
from logstore.objects.memory import MemoryObjectStore
from logstore.records import Record
from logstore.store import LogStore, StoreOptions
from logstore.testing.wrappers import Fault, FaultyStore, PausingStore
from tests.helpers import Script, memory_place, thread

LARGE = random.Random(3).randbytes(100_000)


def is_segment(method: str, key: str) -> bool:
    return method == "put_if_absent" and key.startswith("log/")


class Rig:
    """A saver whose PUTs of segments can be held and made to fail."""

    def __init__(self, name: str, durability: Any) -> None:
        self.name = name
        self.faulty = FaultyStore(MemoryObjectStore(name))
        self.pausing = PausingStore(self.faulty)
        store = LogStore(self.pausing, StoreOptions(hold_s=0.0))
        self.saver = LogStoreSaver(store, durability=durability)
        self.script = Script([self.saver])
        self.pool = ThreadPoolExecutor(4)

    def behind(self, first: Callable[[], Any], *then: Callable[[], Any]) -> list[Future[Any]]:
        """Begin calls while the segment of the first one is on its way; then let it go on."""
        with self.pausing.hold(is_segment) as held:
            calls = [self.pool.submit(first)]
            held.wait_until_blocked()
            for call in then:
                calls.append(self.pool.submit(call))
                threading.Event().wait(0.05)
            held.release()
        for call in calls:
            call.exception(10)
        return calls

    def stored(self) -> list[Record]:
        """The records in the log, as another process finds them."""
        with closing(LogStore(MemoryObjectStore(self.name))) as store:
            return [
                record
                for page in store.objects.list("log/")
                for info in page.objects
                for record in store.log.fetch(info.key).records("t", 0)
            ]


@pytest.fixture
def name() -> Iterator[str]:
    with memory_place() as place:
        yield place.uri.removeprefix("memory://")


@pytest.mark.parametrize("durability", ["strict", "checkpoint", "buffered"])
def test_a_write_sent_beside_its_checkpoint_is_stored_as_a_patch_against_it(
    name: str, durability: str
) -> None:
    rig = Rig(name, durability)
    head = rig.script.next_id()
    rig.behind(
        lambda: rig.script.put(at=head, updates=("x",), values={"x": LARGE}),
        lambda: rig.script.write(head, LARGE, 1),
    )
    rig.saver.close()
    (write,) = [r for r in rig.stored() if r.kind == "write"]
    assert write.encoding == "patch"
    assert len(write.value or b"") < 1000
    with LogStoreSaver(LogStore(MemoryObjectStore(name))) as other:
        found = other.get_tuple(thread())
    assert found is not None
    assert [value for _, _, value in found.pending_writes or ()] == [[LARGE, 1]]


def test_what_was_made_against_a_put_that_failed_fails_with_it_and_is_not_stored(
    name: str,
) -> None:
    rig = Rig(name, "strict")
    first, second = rig.script.next_id(), rig.script.next_id()
    rig.faulty.fail_when(is_segment, Fault.REFUSED, times=1)
    put, write, child, small = rig.behind(
        lambda: rig.script.put(at=first, updates=("x",), values={"x": LARGE}),
        lambda: rig.script.write(first, LARGE, 1),
        lambda: rig.script.put(first, at=second, updates=("d",), values={"d": [LARGE, 1]}),
        lambda: rig.script.write(first, "small", task="other"),
    )
    for failed in (put, write, child):
        assert isinstance(failed.exception(), LogStoreError)
    assert small.exception() is None, "it needs nothing of what failed"
    assert [r.encoding for r in rig.stored()] == ["raw"]
    rig.script.again(first)
    rig.script.write(first, LARGE, 1)
    found = rig.saver.get_tuple(thread())
    assert found is not None
    assert [LARGE, 1] in [value for _, _, value in found.pending_writes or ()]
    assert all(r.encoding != "patch" or r.checkpoint_id == first for r in rig.stored())
    rig.saver.close()


def test_an_acknowledged_write_that_is_lost_with_its_checkpoint_poisons_the_thread(
    name: str,
) -> None:
    rig = Rig(name, "checkpoint")
    head = rig.script.next_id()
    rig.faulty.fail_when(is_segment, Fault.REFUSED, times=1)
    put, write = rig.behind(
        lambda: rig.script.put(at=head, updates=("x",), values={"x": LARGE}),
        lambda: rig.script.write(head, LARGE, 1),
    )
    assert isinstance(put.exception(), LogStoreError)
    assert write.exception() is None, "it was acknowledged before the put failed"
    with pytest.raises(ThreadPoisonedError):
        rig.script.put(head)
    assert rig.stored() == []


def test_a_put_whose_outcome_is_unknown_takes_what_was_made_against_it_along(name: str) -> None:
    rig = Rig(name, "strict")
    head = rig.script.next_id()
    rig.faulty.fail_when(is_segment, Fault.LATE, times=1)
    put, write = rig.behind(
        lambda: rig.script.put(at=head, updates=("x",), values={"x": LARGE}),
        lambda: rig.script.write(head, LARGE, 1),
    )
    assert isinstance(put.exception(), LogStoreError)
    assert isinstance(write.exception(), LogStoreError)
    rig.faulty.land()
    with LogStoreSaver(LogStore(MemoryObjectStore(name))) as other:
        found = other.get_tuple(thread())
    assert found is not None
    assert found.checkpoint["channel_values"]["x"] == LARGE
    assert not found.pending_writes


class SlowSerde(JsonPlusSerializer):
    """Does something while it serialises one value."""

    meanwhile: Callable[[], None] | None = None

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        if obj == "slow" and self.meanwhile is not None:
            self.meanwhile()
        return super().dumps_typed(obj)


def test_a_put_is_refused_if_what_it_is_made_against_fails_while_it_is_made(name: str) -> None:
    rig = Rig(name, "strict")
    serde = SlowSerde()
    rig.saver.serde = serde
    first = rig.script.put()
    with rig.pausing.hold(is_segment) as held:
        write = rig.pool.submit(lambda: rig.script.write(first, LARGE))
        held.wait_until_blocked()

        def fail_the_write() -> None:
            rig.faulty.fail_when(is_segment, Fault.REFUSED, times=1)
            held.release()
            write.exception(10)

        serde.meanwhile = fail_the_write
        with pytest.raises(LogStoreError):
            rig.script.put(first, updates=("x", "d"), values={"x": "slow", "d": [LARGE]})
    assert isinstance(write.exception(), LogStoreError)
    assert all(record.checkpoint_id == first for record in rig.stored())
