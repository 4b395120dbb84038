"""A checkpoint that is put again, below another parent or after writes below it were hidden."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from compactor.folding.channels import default_serde, table_of
from compactor.rebuild import RebuildJob
from compactor.verifying.verify import verify
from logstore.records import Encoding
from tests.helpers import (
    Place,
    Script,
    append,
    assert_same_tuple,
    memory_place,
    rebuilt,
    thread,
)

D = {"d": DeltaChannel(append, list, snapshot_frequency=2)}


@pytest.fixture
def place() -> Iterator[Place]:
    with memory_place() as found:
        yield found


@pytest.fixture
def dropping() -> Iterator[Place]:
    """Where what was hidden may go at once."""
    with memory_place(short_grace_s=0, long_grace_s=0) as found:
        yield found


def move(script: Script, at: str, parent: str | None) -> None:
    """Put a checkpoint again, below another parent."""
    _, checkpoint, metadata, _ = script.calls[at]
    script.calls[at] = (script.config(parent), checkpoint, metadata, {})
    script.again(at)


def assert_like(place: Place, model: InMemorySaver) -> None:
    with place.fresh() as saver:
        assert rebuilt(saver, thread(), D) == rebuilt(model, thread(), D)
        for entry in model.list(thread()):
            found = saver.get_tuple(entry.config)
            assert found is not None
            assert found.parent_config == entry.parent_config
            assert rebuilt(saver, entry.config, D) == rebuilt(model, entry.config, D)


def assert_sound(place: Place) -> None:
    with place.store() as store:
        found = verify(store, table_of(channels=D), default_serde())
    assert not found.findings, found.findings


@pytest.mark.parametrize("merged", [False, True], ids=["in the tail", "merged"])
@pytest.mark.parametrize("to", [1, None], ids=["another parent", "no parent"])
@pytest.mark.parametrize("number", [3, 4, 7, 8])
def test_snapshots_above_a_checkpoint_that_moves_are_not_believed(
    place: Place, number: int, to: int | None, merged: bool
) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    line = script.chain(9)
    branch = script.chain(3, line[4])
    place.compact(channels=D)
    move(script, line[number], None if to is None else line[to])
    if merged:
        place.compact(channels=D)
    assert_like(place, model)
    assert_sound(place)
    script.chain(3, branch[-1])
    script.chain(3, line[-1])
    place.compact(channels=D)
    assert_like(place, model)
    assert_sound(place)


@pytest.mark.parametrize("merged", [False, True], ids=["in the tail", "merged"])
def test_a_checkpoint_that_moves_back_is_as_it_was(place: Place, merged: bool) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    line = script.chain(9)
    place.compact(channels=D)
    for parent in (1, 4):
        move(script, line[5], line[parent])
        if merged:
            place.compact(channels=D)
    assert_like(place, model)
    assert_sound(place)


def test_a_checkpoint_that_is_put_after_its_write_was_hidden_follows_it_no_more(
    place: Place,
) -> None:
    saver = place.saver()
    script = Script([saver])
    line = script.chain(4)
    config = {**thread("t", "", line[3]), "metadata": {"run_id": "hidden"}}
    saver.put_writes(config, [("d", ["from another run"])], "t9")
    last = script.put(line[3])
    before = rebuilt(saver, thread(), D)
    assert "from another run" in before["d"]
    saver.delete_for_runs(["hidden"])
    assert rebuilt(saver, thread(), D) == before
    place.compact(channels=D)
    script.again(last)
    for _ in range(2):
        with place.fresh() as fresh:
            after = rebuilt(fresh, thread(), D)["d"]
            assert after == [item for item in before["d"] if item != "from another run"]
        place.compact(channels=D)
        assert_sound(place)


def test_checkpoints_of_a_hidden_namespace_that_are_put_again_have_the_writes_of_their_run(
    place: Place,
) -> None:
    saver = place.saver()
    script = Script([saver])
    line = [script.put(run_id="r")]
    config = {**script.config(line[0]), "metadata": {"run_id": "r"}}
    saver.put_writes(config, [("d", ["of the run"])], "t1")
    line.append(script.put(line[0], run_id="r"))
    before = rebuilt(saver, thread(), D)
    saver.delete_for_runs(["r"])
    place.compact(channels=D)
    for at in reversed(line):
        script.again(at)
        with place.fresh() as fresh:
            assert rebuilt(fresh, thread(), D) == before
    assert_sound(place)


def test_a_hidden_checkpoint_above_the_head_that_is_put_again_has_all_its_writes(
    place: Place,
) -> None:
    saver = place.saver()
    script = Script([saver])
    script.chain(2)
    last = script.put(script.put(), run_id="r")
    saver.delete_for_runs(["r"])
    script.write(last, "after")
    place.compact(channels=D)
    script.again(last)
    for _ in range(2):
        with place.fresh() as fresh:
            found = fresh.get_tuple(thread())
            assert found is not None
            assert found.config["configurable"]["checkpoint_id"] == last
            assert [value for _, _, value in found.pending_writes or ()] == [["after"]]
        place.compact(channels=D)
    assert_sound(place)


@pytest.mark.parametrize("merged", [False, True], ids=["in the tail", "merged"])
def test_a_checkpoint_that_moves_below_a_hidden_one_shows_no_parent(
    place: Place, merged: bool
) -> None:
    saver = place.saver()
    script = Script([saver])
    line = script.chain(6)
    last = script.put(line[-1])
    saver.prune(["t"], newest=3)
    place.compact(channels=D)
    move(script, last, line[1])
    if merged:
        place.compact(channels=D)
    with place.fresh() as fresh:
        found = fresh.get_tuple(thread())
        assert found is not None
        assert found.parent_config is None
        listed = [entry for entry in fresh.list(thread()) if entry.parent_config is None]
        assert [entry.config["configurable"]["checkpoint_id"] for entry in listed] == [
            last,
            line[-2],
        ]
        assert len(rebuilt(fresh, thread(), D)["d"]) == 2
    assert_sound(place)


@pytest.mark.parametrize("when", ["never", "before", "after", "before and after"])
@pytest.mark.parametrize("to", [1, 0, None], ids=["skipping one", "the first", "no parent"])
def test_a_value_that_was_made_against_writes_of_ancestors_decodes_when_one_of_them_moves(
    place: Place, to: int | None, when: str
) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    items = [random.Random(number).randbytes(20_000).hex() for number in range(6)]
    line = [script.put(values={"d": _DeltaSnapshot([items[0]])})]
    for item in items[1:]:
        script.write(line[-1], item)
        line.append(script.put(line[-1]))
    script.write(line[-1], "last")
    value = _DeltaSnapshot([*items, "last"])
    line.append(script.put(line[-1], values={"d": value}))
    with place.store() as store:
        read = store.reader.history("t", 0)
    [blob] = [r for r in read.view.records if r.checkpoint_id == line[-1] and r.kind == "blob"]
    assert blob.encoding == Encoding.PATCH
    assert (blob.dictionary or b"").count(1) >= 5, "it was made against writes of ancestors"
    if "before" in when:
        place.compact(channels=D)
    move(script, line[3], None if to is None else line[to])
    if "after" in when:
        place.compact(channels=D)
    for _ in range(2):
        with place.fresh() as fresh:
            for at in (None, line[-1]):
                expected = model.get_tuple(thread("t", "", at))
                assert_same_tuple(fresh.get_tuple(thread("t", "", at)), expected)
        assert_sound(place)
        with place.store() as store:
            RebuildJob(store, table_of(channels=D), default_serde()).run()


def test_what_a_value_was_made_against_goes_only_when_it_needs_it_no_more(place: Place) -> None:
    """Its checkpoint moved, and what it followed before was pruned and dropped."""
    saver = place.saver()
    script = Script([saver])
    items = [random.Random(number).randbytes(20_000).hex() for number in range(6)]
    line = [script.put(values={"d": _DeltaSnapshot([items[0]])})]
    for item in items[1:]:
        script.write(line[-1], item)
        line.append(script.put(line[-1]))
    line.append(script.put(line[-1], values={"d": _DeltaSnapshot(items)}))
    move(script, line[4], line[0])
    saver.prune(["t"])
    for _ in range(3):
        place.compact(channels=D, hidden_grace_s=0)
    with place.fresh() as fresh:
        assert rebuilt(fresh, thread(), D)["d"] == items
        assert len(list(fresh.list(thread()))) == 1
    assert_sound(place)


@pytest.mark.parametrize("merged", [False, True], ids=["in the tail", "merged"])
def test_a_root_since_a_drop_that_is_put_again_is_a_root_still(
    dropping: Place, merged: bool
) -> None:
    saver = dropping.saver()
    script = Script([saver])
    last = script.chain(9)[-1]
    before = rebuilt(saver, thread(), D)
    saver.prune(["t"])
    dropped = [
        dropping.compact(channels=D, hidden_grace_s=0).total("rows_dropped") for _ in range(2)
    ]
    assert sum(dropped)
    script.again(last)
    if merged:
        dropping.compact(channels=D)
    for _ in range(2):
        with dropping.fresh() as fresh:
            found = fresh.get_tuple(thread())
            assert found is not None
            assert found.parent_config is None
            assert rebuilt(fresh, thread(), D) == before
            walked = fresh.get_delta_channel_history(config=thread(), channels=["d"])
            assert walked["d"]["writes"] == []
        assert_sound(dropping)
        dropping.compact(channels=D)
    script.savers = [dropping.saver()]
    script.write(last, "on")
    script.put(last)
    with dropping.fresh() as fresh:
        assert rebuilt(fresh, thread(), D)["d"] == [*before["d"], "on"]
