"""Dropping what was hidden: only what nothing needs, only after its time, and then all of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from langgraph.channels.delta import DeltaChannel

from compactor.commands.status import read_status
from logstore import LogStoreSaver
from logstore.errors import MissingDataError
from logstore.records import Kind, Tombstone
from tests.helpers import (
    Place,
    Script,
    append,
    assert_twins,
    both,
    linear_graph,
    memory_place,
    rebuilt,
    thread,
)
from tests.saver.test_prune import ids, run_of, turns

CHANNELS = {"d": DeltaChannel(append, snapshot_frequency=1000)}


def kinds(place: Place) -> dict[str, int]:
    """How many rows of each kind the runs hold."""
    found: dict[str, int] = {}
    for record in place.run_records():
        found[record.kind] = found.get(record.kind, 0) + 1
    return found


def drop(place: Place, **how: Any) -> int:
    """Jobs that may drop at once; how many rows went."""
    how = {"channels": CHANNELS, "hidden_grace_s": 0.0, **how}
    return sum(place.compact(**how).total("rows_dropped") for _ in range(2))


def test_what_a_prune_hid_is_dropped_when_its_time_has_come(place: Place) -> None:
    with place.fresh() as saver:
        script = Script([saver])
        script.chain(20)
        before = rebuilt(saver, thread(), CHANNELS)
        saver.prune(["t"])
    place.compact(channels=CHANNELS)
    place.compact(channels=CHANNELS)
    assert kinds(place)[Kind.CHECKPOINT] == 20
    assert drop(place) > 38
    assert kinds(place) == {"checkpoint": 1, "blob": 2, "tombstone": 1}
    assert drop(place) == 0
    with place.fresh() as saver:
        assert rebuilt(saver, thread(), CHANNELS) == before
        assert len(ids(saver)) == 1


def test_without_a_reducer_it_is_kept_and_the_status_says_why(place: Place) -> None:
    with place.fresh() as saver:
        Script([saver]).chain(9)
        saver.prune(["t"])
    assert drop(place, channels=None) == 0
    with place.store() as store:
        [reason] = read_status(store).partitions[0].hidden.values()
        assert "d at checkpoint 1f000009 is rebuilt from hidden checkpoints" in reason
        assert "--graph" in reason
    assert kinds(place)["checkpoint"] == 9
    assert drop(place) > 0
    with place.store() as store:
        assert read_status(store).partitions[0].hidden == {}


def test_a_plain_thread_needs_no_reducer(place: Place) -> None:
    with place.fresh() as saver:
        script = Script([saver])
        parent = None
        for number in range(9):
            text = f"{number} and so on " * (20 + number)
            parent = script.put(parent, updates=("x",), values={"x": text})
        saver.prune(["t"])
    assert drop(place, channels=None) > 0
    with place.fresh() as saver:
        found = saver.get_tuple(thread())
        assert found is not None
        assert found.checkpoint["channel_values"]["x"] == text
    assert kinds(place)["checkpoint"] == 1
    assert kinds(place)["blob"] == 1


def test_values_that_were_patches_against_dropped_ones_are_whole(place: Place) -> None:
    make = linear_graph(7)
    with place.fresh() as saver:
        for turn in range(12):
            make(saver).invoke(both(f"{turn} " * 200), run_of(f"run-{turn}"))
    place.compact(graph=make(None))
    with place.fresh() as saver:
        saver.delete_for_runs([f"run-{n}" for n in (0, 1, 2, 5, 8, 11)])
        states = [s.values for s in make(saver).get_state_history(thread())]
    assert drop(place, graph=make(None), channels=None) > 0
    with place.fresh() as saver:
        assert [s.values for s in make(saver).get_state_history(thread())] == states
    live = turns(make, place.saver(), "t", 1)
    assert_twins(place, make, thread(), live)


def test_a_fork_below_hidden_checkpoints_keeps_what_it_needs(place: Place) -> None:
    with place.fresh() as saver:
        script = Script([saver])
        chain = script.chain(12)
        saver.prune(["t"])
        fork = script.put(chain[5])
        before = rebuilt(saver, thread(checkpoint_id=fork), CHANNELS)
    assert drop(place) > 0
    with place.fresh() as saver:
        assert ids(saver) == [fork, chain[-1]]
        assert rebuilt(saver, thread(checkpoint_id=fork), CHANNELS) == before


def test_a_fork_from_a_dropped_checkpoint_raises(place: Place) -> None:
    with place.fresh() as saver:
        script = Script([saver])
        chain = script.chain(12)
        saver.prune(["t"])
    assert drop(place) > 0
    with place.fresh() as saver:
        script.savers = [saver]
        late = script.put(chain[5])
    with place.fresh() as saver, pytest.raises(MissingDataError, match=chain[5]):
        rebuilt(saver, thread(checkpoint_id=late), CHANNELS)


def test_a_late_write_to_a_channel_that_the_boundary_lacks_keeps_what_is_below(
    place: Place,
) -> None:
    channels = {**CHANNELS, "e": DeltaChannel(append, snapshot_frequency=1000)}
    with place.fresh() as saver:
        script = Script([saver])
        line = script.chain(5)
        script.write(line[1], "late", to="e", task="late")
        saver.prune(["t"], newest=2)
    for _ in range(2):
        place.compact(channels=channels, hidden_grace_s=0.0)
    with place.fresh() as saver:
        history = saver.get_delta_channel_history(config=thread(), channels=["e"])["e"]
    assert [value for _, _, value in history["writes"]] == [["late"]]
    with place.store() as store:
        status = read_status(store)
    assert "late write" in "".join(status.partitions[0].hidden.values())


def test_a_late_write_below_the_hidden_checkpoints_keeps_them_too(place: Place) -> None:
    channels = {**CHANNELS, "e": DeltaChannel(append, snapshot_frequency=1000)}
    with place.fresh() as saver:
        script = Script([saver])
        first = script.put(script.put())
        last = script.put(script.put(first, run_id="r"))
        script.write(first, "late", to="e", task="late")
        saver.delete_for_runs(["r"])
        assert drop(place, channels=channels) == 0
    with place.fresh() as saver:
        history = saver.get_delta_channel_history(config=thread(), channels=["e"])["e"]
        assert [value for _, _, value in history["writes"]] == [["late"]]
        assert ids(saver)[0] == last


def test_a_thread_with_waiting_segments_is_left_to_a_later_job(place: Place) -> None:
    with place.fresh() as saver:
        script = Script([saver])
        chain = script.chain(12)
        saver.prune(["t"])
        place.compact(channels=CHANNELS)
        with place.store() as store:
            from compactor.cleaning.dropping import threads_due
            from compactor.plan import plan_without_segments

            settings = store.settings()
            assert settings is not None
            assert threads_due(plan_without_segments(store, settings, 0), 0.0) == ["t"]
            script.put(chain[4])
            assert threads_due(plan_without_segments(store, settings, 0), 0.0) == []


def test_a_thread_that_was_created_anew_and_pruned_stays_shown(place: Place) -> None:
    with place.fresh() as saver:
        Script([saver]).chain(3)
        saver.delete_thread("t")
        script = Script([saver], _serial=50)
        chain = script.chain(12)
        before = rebuilt(saver, thread(), CHANNELS)
        saver.prune(["t"])
    assert drop(place) > 0
    with place.fresh() as saver:
        assert ids(saver) == [chain[-1]]
        assert rebuilt(saver, thread(), CHANNELS) == before
        script.savers = [saver]
        assert ids(saver) != [script.put(chain[-1])]


def test_a_prune_every_day_drops_what_earlier_ones_hid(place: Place) -> None:
    script = Script([place.saver()])
    parent: str | None = None
    for _ in range(5):
        for item in script.chain(4, parent):
            parent = item
        script.savers[0].prune(["t"])
        place.compact(channels=CHANNELS, hidden_grace_s=0)
    drop(place)
    assert kinds(place)["checkpoint"] == 1
    assert kinds(place)["tombstone"] == 1


@pytest.mark.parametrize("first", ["prune", "single"])
def test_a_late_copy_of_dropped_rows_stays_hidden_after_a_prune_that_keeps_lower_ids(
    first: str,
) -> None:
    """Checkpoints with lower ids were imported between the two prunes."""
    with memory_place(short_grace_s=0, long_grace_s=0) as place, place.fresh() as saver:
        script = Script([saver], _serial=50)
        chain = script.chain(6)
        with place.store() as store:
            [*pages] = store.objects.list("log/")
            copies = [store.objects.get(info.key) for page in pages for info in page.objects]
        if first == "prune":
            saver.prune(["t"])
        else:
            seen = saver.store.read_history("t").positions
            hidden = frozenset(("", at) for at in chain[:-1])
            saver.store.hide("t", Tombstone(seen, checkpoints=hidden))
        assert drop(place) > 0
        low = Script([saver], _serial=10)
        imported = [low.put() for _ in range(3)]
        saver.prune(["t"], newest=3)
        assert drop(place) > 0
        with place.store() as store:
            for copy in copies:
                store.objects.put_if_absent(copy.key, copy.data)
        for _ in range(3):
            with place.fresh() as fresh:
                assert ids(fresh) == [chain[-1], *imported[:0:-1]]
            drop(place)


# -- any order of events -----------------------------------------------------------------


@dataclass
class Model:
    """What a thread is to tell: every checkpoint and write, and what hides which."""

    clock: int = 0
    checkpoints: dict[str, tuple[str | None, str, int]] = field(default_factory=dict)
    """Parent, run, time."""
    writes: list[tuple[str, str, int, str]] = field(default_factory=list)
    """Checkpoint, run, time, item."""
    runs: list[tuple[frozenset[str], int]] = field(default_factory=list)
    hidden: set[str] = field(default_factory=set)

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def shown(self) -> list[str]:
        return sorted(set(self.checkpoints) - self.hidden)

    def value(self, checkpoint_id: str) -> list[str]:
        found: list[str] = []
        child = checkpoint_id
        while (parent := self.checkpoints[child][0]) is not None:
            mine = [w for w in self.writes if w[0] == parent and not self.forgotten(w, child)]
            found = [item for _, _, _, item in mine] + found
            child = parent
        return found

    def forgotten(self, write: tuple[str, str, int, str], child: str) -> bool:
        _, run, at, _ = write
        _, child_run, child_at = self.checkpoints[child][:3]
        return child_run != run and any(
            run in runs and at < deleted < child_at for runs, deleted in self.runs
        )


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("turn"), st.integers(0, 40)),
        st.tuples(st.just("turn"), st.integers(0, 2)),
        st.tuples(st.just("prune"), st.integers(1, 4)),
        st.tuples(st.just("delete runs"), st.integers(0, 1023)),
        st.tuples(st.just("merge"), st.just(0)),
        st.tuples(st.just("fold"), st.sampled_from([1, 3, 1000])),
        st.tuples(st.just("drop"), st.sampled_from([2, 1000])),
    ),
    min_size=5,
    max_size=24,
)


@settings(deadline=None, max_examples=60)
@given(events=EVENTS)
@example([*[("turn", 0)] * 4, ("delete runs", 16), ("fold", 1), ("turn", 1)])
@example(
    [("turn", 0), ("fold", 1), ("turn", 1), ("fold", 9), ("turn", 2), ("turn", 1), ("merge", 0)]
)
def test_what_is_shown_keeps_its_value_in_any_order_of_events(
    events: list[tuple[str, int]],
) -> None:
    with memory_place(short_grace_s=0) as place:
        model, number = Model(), 0
        for event, how in [("turn", 0), *events]:
            with place.fresh() as saver:
                if event == "turn":
                    number += 1
                    turn(saver, model, number, how)
                elif event == "prune":
                    saver.prune(["t"], newest=how)
                    model.hidden |= set(model.shown()[:-how])
                elif event == "delete runs":
                    gone = frozenset(f"run-{n}" for n in range(10) if how >> n & 1)
                    saver.delete_for_runs(sorted(gone))
                    model.runs.append((gone, model.tick()))
                    model.hidden |= {
                        c for c, (_, run, _) in model.checkpoints.items() if run in gone
                    }
                elif event == "merge":
                    place.compact()
                elif event == "fold":
                    place.compact(channels=CHANNELS, frequency=how)
                else:
                    place.compact(channels=CHANNELS, frequency=how, hidden_grace_s=0)
            compare(place, model)


def turn(saver: LogStoreSaver, model: Model, number: int, back: int) -> None:
    """A write at a shown checkpoint, and a child that has it."""
    shown = model.shown()
    parent = shown[-1 - back % len(shown)] if shown else None
    run, checkpoint_id = f"run-{number % 10}", f"1f0{number:05d}"
    config = {**thread("t", "", parent), "metadata": {"run_id": run}}
    versions: dict[str, str] = {}
    counters = 0
    if parent is not None:
        at = model.tick()
        saver.put_writes(config, [("d", [f"item {number}"])], f"task {number:05d}")
        model.writes.append((parent, run, at, f"item {number}"))
        found = saver.get_tuple(thread("t", "", parent))
        assert found is not None
        versions = {
            "d": saver.get_next_version(found.checkpoint["channel_versions"].get("d"), None)
        }
        counters = found.metadata.get("counters_since_delta_snapshot", {}).get("d", (0, 0))[0] + 1
    checkpoint: Any = {
        "v": 4,
        "id": checkpoint_id,
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": {},
        "channel_versions": versions,
        "versions_seen": {},
    }
    metadata: Any = {"source": "loop", "step": number, "parents": {}}
    if counters:
        metadata["counters_since_delta_snapshot"] = {"d": (counters, counters)}
    saver.put(config, checkpoint, metadata, versions)
    model.checkpoints[checkpoint_id] = (parent, run, model.tick())


def compare(place: Place, model: Model) -> None:
    """Every checkpoint that is shown, from a fresh reader."""
    with place.fresh() as saver:
        assert ids(saver) == model.shown()[::-1]
        for checkpoint_id in model.shown():
            found = rebuilt(saver, thread("t", "", checkpoint_id), CHANNELS)
            assert found["d"] == model.value(checkpoint_id), checkpoint_id
