"""Values made against earlier ancestors: never against what may have been dropped meanwhile."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from itertools import count

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from logstore import LogStoreSaver
from logstore.dictionary import name_of
from logstore.records import checksum_of
from tests.helpers import Place, Script, append, memory_place, thread

D = {"d": DeltaChannel(append, list, snapshot_frequency=2)}
GRACE_S = 0.6
LARGE = random.Random(3).randbytes(400_000)


@pytest.fixture
def place() -> Iterator[Place]:
    with memory_place(short_grace_s=GRACE_S, long_grace_s=0) as place:
        yield place


def drop_what_is_hidden(place: Place) -> None:
    """Two jobs: the first notes what is hidden; the second drops it after the short grace."""
    place.compact(channels=D)
    time.sleep(GRACE_S + 0.1)
    report = place.compact(channels=D, hidden_grace_s=0)
    assert report.total("rows_dropped") > 0


def stored(place: Place, at: str) -> str:
    """How the value of the channel at a checkpoint is stored in the log."""
    with place.store() as store:
        records = [
            record
            for page in store.objects.list("log/")
            for info in page.objects
            for record in store.log.fetch(info.key).records("t", 0)
        ]
    (blob,) = [r for r in records if r.checkpoint_id == at and r.kind == "blob"]
    return str(blob.encoding)


def value_of(place: Place, at: str) -> object:
    with place.fresh() as saver:
        found = saver.get_tuple(thread("t", "", at))
    assert found is not None
    return found.checkpoint["channel_values"]["d"].value


def grown(script: Script) -> str:
    """A line of checkpoints, the first with a large write."""
    first = script.put()
    script.write(first, LARGE)
    return script.chain(4, script.put(first))[-1]


def test_a_value_that_a_graph_stores_is_a_patch_against_writes_far_below(place: Place) -> None:
    script = Script([place.saver()])
    last = grown(script)
    value = [LARGE, "and more"]
    at = script.put(last, updates=("d",), values={"d": _DeltaSnapshot(value)})
    assert stored(place, at) == "patch"
    script.write(at, "more")
    again = script.put(script.put(at), values={"d": _DeltaSnapshot([*value, "more"])})
    assert stored(place, again) == "patch"
    assert value_of(place, at) == value
    assert value_of(place, again) == [*value, "more"]
    place.compact(channels=D)
    assert value_of(place, again) == [*value, "more"]


def test_nothing_is_made_against_an_ancestor_that_was_dropped_meanwhile(place: Place) -> None:
    script = Script([place.saver()])
    last = grown(script)
    with place.fresh() as other:
        other.prune(["t"], newest=1)
    drop_what_is_hidden(place)
    at = script.put(last, updates=("d",), values={"d": _DeltaSnapshot([LARGE, "after"])})
    assert stored(place, at) == "raw"
    assert value_of(place, at) == [LARGE, "after"]
    place.compact(channels=D)
    assert value_of(place, at) == [LARGE, "after"]


def test_nothing_is_made_against_a_write_that_was_hidden_before_its_checkpoint_was_read_again(
    place: Place,
) -> None:
    saver: LogStoreSaver = place.saver()
    script = Script([saver])
    last = script.chain(3)[-1]
    of_run = {"configurable": script.config(last)["configurable"], "metadata": {"run_id": "r"}}
    saver.put_writes(of_run, [("d", [LARGE])], "t1")
    with place.fresh() as other:
        other.delete_for_runs(["r"])
    drop_what_is_hidden(place)
    found = saver.get_tuple(script.config(last))
    assert found is not None
    assert not found.pending_writes
    at = script.put(last, updates=("d",), values={"d": _DeltaSnapshot([LARGE, "after"])})
    assert stored(place, at) == "raw"
    assert value_of(place, at) == [LARGE, "after"]


def test_nothing_is_made_against_a_write_at_the_parent_that_was_dropped_meanwhile(
    place: Place,
) -> None:
    """However short the hidden grace of a job is, and although the parent itself stays."""
    saver: LogStoreSaver = place.saver()
    script = Script([saver])
    last = script.chain(3)[-1]
    of_run = {"configurable": script.config(last)["configurable"], "metadata": {"run_id": "r"}}
    saver.put_writes(of_run, [("d", [LARGE])], "t1")
    with place.fresh() as other:
        other.delete_for_runs(["r"])
    drop_what_is_hidden(place)
    at = script.put(last, updates=("d",), values={"d": _DeltaSnapshot([LARGE, "after"])})
    assert stored(place, at) == "raw"
    assert value_of(place, at) == [LARGE, "after"]


def clashing_pairs(number: int) -> list[tuple[str, str]]:
    """Pairs of writes whose names in a dictionary are the same."""
    serde = JsonPlusSerializer()
    seen: dict[bytes, str] = {}
    pairs: list[tuple[str, str]] = []
    for serial in count():
        text = f"message {serial}"
        name = name_of(checksum_of(*serde.dumps_typed([text])))
        if name in seen:
            pairs.append((seen.pop(name), text))
            if len(pairs) == number:
                break
        else:
            seen[name] = text
    return pairs


@pytest.mark.parametrize("jobs", [0, 2])
def test_writes_whose_names_clash_do_not_hide_a_value(place: Place, jobs: int) -> None:
    script = Script([place.saver()])
    last = script.put(updates=("d",), values={"d": _DeltaSnapshot([LARGE])})
    state: list[object] = [LARGE]
    for pair in clashing_pairs(8):
        for task, text in enumerate(pair):
            script.write(last, text, task=f"t{task}")
            state.append(text)
        last = script.put(last)
    at = script.put(last, updates=("d",), values={"d": _DeltaSnapshot(state)})
    for _ in range(jobs):
        place.compact(channels=D)
    assert value_of(place, at) == state
