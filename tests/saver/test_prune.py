"""Pruning, deleting runs and copying, against the twin oracle and against threads left alone."""

# No `from __future__ import annotations`: LangGraph evaluates the annotations of states.

from collections.abc import Callable
from typing import Any

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from logstore import InvalidOptionError, LogStoreSaver
from logstore.errors import DeletedCheckpointError, ThreadExistsError
from tests.helpers import (
    Config,
    Make,
    Place,
    Script,
    append,
    assert_twins,
    both,
    linear_graph,
    rebuilt,
    thread,
)

Job = Callable[[Place, Make], None]


def never(place: Place, make: Make) -> None:
    """No compaction."""


def merging(place: Place, make: Make) -> None:
    """A job that knows no reducer."""
    place.compact()


def folding(place: Place, make: Make) -> None:
    """A job that folds."""
    place.compact(graph=make(None))


def dropping(place: Place, make: Make) -> None:
    """Jobs that drop what is hidden at once."""
    for _ in range(2):
        place.compact(graph=make(None), hidden_grace_s=0)


jobs = pytest.mark.parametrize("job", [never, merging, folding, dropping])


def run_of(run_id: str, thread_id: str = "t", **more: Any) -> Config:
    """A config whose checkpoints carry a run id."""
    return {**thread(thread_id), "metadata": {"run_id": run_id}, **more}


def turns(make: Make, saver: LogStoreSaver, thread_id: str, count: int, first: int = 0) -> Any:
    """Turns of a conversation, each a run of its own; the last result."""
    live = None
    for turn in range(first, first + count):
        live = make(saver).invoke(both(f"turn {turn}"), run_of(f"run-{turn}", thread_id))
    return live


def ids(saver: LogStoreSaver, thread_id: str = "t", ns: str = "") -> list[str]:
    """The checkpoints that `list` shows, newest first."""
    return [c.config["configurable"]["checkpoint_id"] for c in saver.list(thread(thread_id, ns))]


def of_run(script: Script, run_id: str) -> None:
    """What the script puts and writes from now on belongs to a run."""
    base = Script.config

    def config(checkpoint_id: str | None = None) -> Any:
        return {**base(script, checkpoint_id), "metadata": {"run_id": run_id}}

    script.config = config  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("k", "step", "job"),
    [(7, 1, never), (7, 2, folding), (7, 2, dropping), (7, 6, merging)]
    + [(1, 6, dropping), (1000, 6, never), (1000, 5, dropping)],
)
def test_a_thread_pruned_at_any_length_goes_on_as_one_that_never_was(
    place: Place, k: int, step: int, job: Job
) -> None:
    make = linear_graph(k)
    lengths = range(1, 26, step)
    states: list[Any] = []
    with place.fresh() as saver:
        for length in range(1, 28):
            states.append(turns(make, saver, "alone", 1, length - 1))
            if length in lengths:
                saver.copy_thread("alone", f"t-{length}")
    job(place, make)
    with place.fresh() as saver:
        saver.prune([f"t-{length}" for length in lengths])
    job(place, make)
    for length in lengths:
        with place.fresh() as saver:
            [kept] = saver.list(thread(f"t-{length}"))
            assert kept.parent_config is None
            assert make(saver).get_state(thread(f"t-{length}")).values == states[length - 1]
            live = turns(make, saver, f"t-{length}", 2, length)
        assert live == states[length + 1]
    job(place, make)
    for length in lengths:
        with place.fresh() as saver:
            history = list(make(saver).get_state_history(thread(f"t-{length}")))
        assert len(history) == 7
        assert history[0].values == states[length + 1]
        assert all(s.values["delta"] == s.values["plain"] for s in history)


@jobs
@pytest.mark.parametrize("gone", [(0,), (1,), (2,), (4,), (3, 4), (0, 2, 4)])
def test_a_thread_without_some_of_its_runs_keeps_the_values_of_the_others(
    place: Place, job: Job, gone: tuple[int, ...]
) -> None:
    make = linear_graph(7)
    with place.fresh() as saver:
        turns(make, saver, "t", 5)
        before = {
            s.config["configurable"]["checkpoint_id"]: s.values
            for s in make(saver).get_state_history(thread())
        }
        expected = [
            c.config["configurable"]["checkpoint_id"]
            for c in saver.list(thread())
            if c.metadata["run_id"] not in {f"run-{n}" for n in gone}
        ]
    job(place, make)
    with place.fresh() as saver:
        saver.delete_for_runs([f"run-{n}" for n in gone])
    job(place, make)
    with place.fresh() as saver:
        history = list(make(saver).get_state_history(thread()))
        assert [s.config["configurable"]["checkpoint_id"] for s in history] == expected
        for state in history:
            assert state.values == before[state.config["configurable"]["checkpoint_id"]]
    left = before[expected[0]]["plain"]
    with place.fresh() as saver:
        live = make(saver).invoke(both("next"), run_of("next"))
    assert live["plain"] == [*left, "next", f"answer {len(left) + 1}"]
    assert_twins(place, make, thread(), live)
    job(place, make)
    assert_twins(place, make, thread(), live)


@jobs
@pytest.mark.parametrize("pruned", [False, True])
def test_a_copy_equals_its_source_and_is_independent_of_it(
    place: Place, job: Job, pruned: bool
) -> None:
    make = linear_graph(7)
    with place.fresh() as saver:
        turns(make, saver, "source", 9)
    job(place, make)
    with place.fresh() as saver:
        if pruned:
            saver.prune(["source"])
            turns(make, saver, "source", 1, 9)
            saver.delete_for_runs(["run-9"])
            turns(make, saver, "source", 2, 9)
            saver.prune(["source"], newest=4)
    job(place, make)
    with place.fresh() as saver:
        saver.copy_thread("source", "copy")
        found = [
            (s.config["configurable"]["checkpoint_id"], s.values)
            for s in make(saver).get_state_history(thread("source"))
        ]
    job(place, make)
    with place.fresh() as saver:
        copied = [
            (s.config["configurable"]["checkpoint_id"], s.values)
            for s in make(saver).get_state_history(thread("copy"))
        ]
        assert copied == found
        assert [c.metadata for c in saver.list(thread("copy"))] == [
            c.metadata for c in saver.list(thread("source"))
        ]
        on = turns(make, saver, "copy", 1, 50)
        assert ids(saver, "source") == [id_ for id_, _ in found]
        saver.delete_thread("source")
    job(place, make)
    assert assert_twins(place, make, thread("copy"), on) == len(found) + 3
    with place.fresh() as saver:
        assert ids(saver, "source") == []


@jobs
def test_a_pruned_head_can_be_copied_and_updated(place: Place, job: Job) -> None:
    make = linear_graph(7)
    with place.fresh() as saver:
        turns(make, saver, "t", 4)
        saver.prune(["t"])
    job(place, make)
    with place.fresh() as saver:
        graph = make(saver)
        before = graph.get_state(thread())
        copied = graph.update_state(before.config, None, as_node="__copy__")
        assert graph.get_state(copied).values == before.values
        updated = graph.update_state(before.config, both("by hand"), as_node="work")
        assert graph.get_state(updated).values["plain"] == [*before.values["plain"], "by hand"]
        graph.update_state(copied, both("onto the copy"), as_node="work")
    job(place, make)
    assert_twins(place, make, thread())
    with place.fresh() as saver:
        live = make(saver).invoke(both("on"), thread())
    assert_twins(place, make, thread(), live)


def test_a_prune_keeps_the_newest_of_each_namespace(place: Place) -> None:
    with place.fresh() as saver:
        root, child = Script([saver]), Script([saver], ns="child")
        roots, children = root.chain(6), child.chain(4)
        saver.prune(["t"], newest=2)
        assert ids(saver) == roots[:-3:-1]
        assert ids(saver, ns="child") == children[:-3:-1]
        saver.prune(["t"])
        assert ids(saver) == roots[-1:]
        assert saver.get_tuple(thread(checkpoint_id=roots[-2])) is None


def test_what_is_saved_below_a_pruned_checkpoint_meanwhile_stays(place: Place) -> None:
    with place.fresh() as saver, place.fresh() as worker:
        script = Script([worker])
        chain = script.chain(5)
        saver.prune(["t"])
        late = script.put(chain[2])
        assert ids(saver) == [late, chain[-1]]
        found = saver.get_delta_channel_history(config=thread(checkpoint_id=late), channels=["d"])
        assert [w[2] for w in found["d"]["writes"]] == [
            [f"{c}-{n}"] for n, c in enumerate(chain[:3])
        ]


@pytest.mark.parametrize("folds", [False, True])
def test_a_run_that_goes_on_after_its_delete_counts_its_own_writes(
    place: Place, folds: bool
) -> None:
    channels = {"d": DeltaChannel(append, list, snapshot_frequency=3)}
    with place.fresh() as saver:
        script = Script([saver])
        of_run(script, "a")
        last = script.chain(5)[-1]
        of_run(script, "b")
        script.write(last, "of b")
        saver.delete_for_runs(["b"])
        place.compact(channels=channels if folds else None)
        assert rebuilt(saver, thread(), channels) == rebuilt(saver, thread("t", "", last), channels)
        child = script.put(last)
    for _ in range(2):
        with place.fresh() as saver:
            assert rebuilt(saver, thread(), channels)["d"][-1] == "of b"
            list(saver.list(thread()))
            assert rebuilt(saver, thread("t", "", child), channels)["d"][-1] == "of b"
        place.compact(channels=channels if folds else None)


@pytest.mark.parametrize("merged", [False, True])
def test_writes_of_a_run_that_a_prune_had_hidden_before_do_not_come_back(
    place: Place, merged: bool
) -> None:
    channels = {"d": DeltaChannel(append, list, snapshot_frequency=3)}
    with place.fresh() as saver:
        script = Script([saver])
        of_run(script, "a")
        first = script.put()
        script.write(first, "of a")
        of_run(script, "b")
        last = script.put(first)
        saver.prune(["t"])
        if merged:
            place.compact(channels=channels)
        for _ in range(2):
            saver.delete_for_runs(["a"])
            stored = saver.store.read_history("t").view.tombstones
            assert len(stored) == 2  # the prune's, and one for the run
        fork = script.put(first)
        assert rebuilt(saver, thread("t", "", last), channels)["d"] == ["of a"]
        assert rebuilt(saver, thread("t", "", fork), channels)["d"] == []


@pytest.mark.parametrize("merged", ["nothing", "the write", "the delete", "all"])
def test_a_task_that_a_later_run_repeats_counts_instead_of_the_deleted_run_s(
    place: Place, merged: str
) -> None:
    """A task that runs again at the same checkpoint has the same id; the first write wins."""
    channels = {"d": DeltaChannel(append, list, snapshot_frequency=3)}
    with place.fresh() as saver:
        script = Script([saver])
        of_run(script, "a")
        last = script.chain(4)[-1]
        of_run(script, "b")
        script.write(last, "of b")
    if merged != "nothing":
        place.compact(channels=channels)
    with place.fresh() as saver:
        saver.delete_for_runs(["b"])
    if merged in ("the delete", "all"):
        place.compact(channels=channels)
    script.savers = [place.saver()]
    of_run(script, "c")
    script.write(last, "of c")
    if merged == "all":
        place.compact(channels=channels)
    with place.fresh() as saver:
        found = saver.get_tuple(thread())
        assert found is not None
        assert [value for _, _, value in found.pending_writes or ()] == [["of c"]]
    child = script.put(last)
    for grace_s in (86_400.0, 86_400.0, 0.0, 0.0):
        with place.fresh() as saver:
            assert rebuilt(saver, thread(), channels)["d"][-1] == "of c"
            list(saver.list(thread()))
            assert rebuilt(saver, thread("t", "", child), channels)["d"][-1] == "of c"
        place.compact(channels=channels, hidden_grace_s=grace_s)
    with place.fresh() as saver:
        assert rebuilt(saver, thread(), channels)["d"][-1] == "of c"


def test_a_write_that_lost_to_a_deleted_run_s_shows(place: Place) -> None:
    channels = {"d": DeltaChannel(append, list, snapshot_frequency=3)}
    script = Script([place.saver()])
    of_run(script, "a")
    last = script.chain(4)[-1]
    of_run(script, "b")
    script.write(last, "of b")
    of_run(script, "c")
    script.write(last, "of c")
    for _ in range(2):
        place.compact(channels=channels)
    with place.fresh() as saver:
        saver.delete_for_runs(["b"])
    for _ in range(2):
        with place.fresh() as saver:
            found = saver.get_tuple(thread())
            assert found is not None
            assert [value for _, _, value in found.pending_writes or ()] == [["of c"]]
        place.compact(channels=channels)


def test_two_prunes_of_a_thread_need_only_the_later_tombstone(place: Place) -> None:
    make = linear_graph(1000)
    for turn in range(6):
        with place.fresh() as saver:
            turns(make, saver, "t", 1, turn)
            saver.prune(["t"])
        place.compact()
    with place.store() as store:
        manifest = store.reader.snapshot_manifest("t", 0).manifest
    assert sum(r.kind == "tombstone" for r in manifest.records) == 1
    assert_twins(place, make, thread())


def test_bad_arguments_are_refused_and_hide_nothing(place: Place) -> None:
    with place.fresh() as saver:
        chain = Script([saver]).chain(3)
        for call in (
            lambda: saver.prune("t"),
            lambda: saver.prune(["t"], strategy="keep_some"),
            lambda: saver.prune(["t"], newest=0),
            lambda: saver.delete_for_runs("run"),
        ):
            with pytest.raises(InvalidOptionError):
                call()
        saver.prune(["nobody"])
        saver.prune([])
        saver.delete_for_runs([])
        saver.delete_for_runs(["no such run"])
        assert len(ids(saver)) == len(chain)


def test_a_thread_is_not_copied_onto_another(place: Place) -> None:
    with place.fresh() as saver:
        Script([saver], "a").chain(2)
        Script([saver], "b").chain(2)
        with pytest.raises(ThreadExistsError, match="'b'"):
            saver.copy_thread("a", "b")
        saver.delete_thread("b")
        saver.copy_thread("a", "b")
        assert ids(saver, "b") == ids(saver, "a")


def test_a_call_that_names_a_deleted_checkpoint_is_refused_where_it_is_known(place: Place) -> None:
    with place.fresh() as saver:
        script = Script([saver])
        chain = script.chain(3)
        saver.delete_thread("t")
        with pytest.raises(DeletedCheckpointError, match=chain[-1]):
            script.put(chain[-1])
        with pytest.raises(DeletedCheckpointError, match=chain[0]):
            script.write(chain[0], "late")
        assert ids(saver) == []
        anew = script.put()
        assert ids(saver) == [anew]


@pytest.mark.parametrize("by_another", [False, True])
def test_a_copy_that_took_the_place_of_a_deleted_thread_goes_on(
    place: Place, by_another: bool
) -> None:
    with place.fresh() as saver, place.fresh() as other:
        script = Script([saver])
        chain = script.chain(3)
        saver.copy_thread("t", "copy")
        saver.delete_thread("copy")
        (other if by_another else saver).copy_thread("t", "copy")
        channels = {"d": DeltaChannel(append, list)}
        copy = Script([saver], "copy", _serial=50, _known=dict(script._known))
        if by_another:
            with pytest.raises(DeletedCheckpointError):
                copy.put(chain[-1])
            assert saver.get_tuple(thread("copy")) is not None
        copy.write(chain[-1], "more")
        last = copy.put(chain[-1])
        assert ids(saver, "copy") == [last, *reversed(chain)]
        assert rebuilt(saver, thread("copy"), channels)["d"][-1] == "more"


def test_a_deleted_thread_can_be_imported_again_with_its_old_ids(place: Place) -> None:
    with place.fresh() as saver:
        script = Script([saver])
        chain = script.chain(3)
        saver.delete_thread("t")
        for checkpoint_id in chain:
            script.again(checkpoint_id)
            script.write(checkpoint_id, "again")
        assert ids(saver) == chain[::-1]


@pytest.mark.parametrize("pruned", [False, True])
def test_a_checkpoint_of_an_old_format_takes_its_tasks_from_its_parent(
    place: Place, pruned: bool
) -> None:
    with place.fresh() as saver:
        script = Script([saver])
        first = script.put()
        script.write(first, {"node": "work", "arg": 1}, to="__pregel_tasks")
        second = script.put(first)
        config, checkpoint, metadata, new = script.calls[second]
        saver.put(config, {**checkpoint, "v": 3}, metadata, new)
        if pruned:
            saver.prune(["t"])
    place.compact()
    with place.fresh() as saver:
        found = saver.get_tuple(thread())
    assert found is not None
    assert found.checkpoint["channel_values"]["__pregel_tasks"] == [[{"node": "work", "arg": 1}]]
    assert "__pregel_tasks" in found.checkpoint["channel_versions"]


class BlindSerde(JsonPlusSerializer):
    """Cannot read: as where a class is missing, or a key."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        raise AssertionError("a value was decoded")


@pytest.mark.parametrize("compacted", [False, True])
def test_maintenance_decodes_no_value(place: Place, compacted: bool) -> None:
    make = linear_graph(7)
    with place.fresh() as saver:
        turns(make, saver, "t", 6)
    if compacted:
        place.compact()
    with place.fresh(serde=BlindSerde()) as blind:
        blind.copy_thread("t", "copy")
        blind.delete_for_runs(["run-2"])
        blind.prune(["t"])
        blind.prune(["copy"], newest=5)
        blind.delete_thread("t")
    place.compact()
    with place.fresh() as saver:
        assert len(ids(saver, "copy")) == 5
        assert ids(saver, "t") == []
        live = make(saver).invoke(both("on"), thread("copy"))
    assert_twins(place, make, thread("copy"), live)
