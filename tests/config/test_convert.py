"""`logstore convert`: a delta thread, materialised for full mode."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from langchain_core.messages import HumanMessage, RemoveMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command
from typer.testing import CliRunner

from logstore import LogStoreSaver
from logstore.channels import messages_channel
from logstore.cli.common import Commands
from logstore.cli.convert import convert
from logstore.convert import convert_to_full
from logstore.errors import CheckpointModeMismatchError, ConversionError
from logstore.guard import with_mode
from logstore.modes import MODE_KEY, unfreeze_for_tests
from tests.config.apps import (
    contents,
    nested_graph,
    operator_graph,
    process,
    say,
    waiting_graph,
)
from tests.helpers import Place, append, memory_place, thread

KS = (1, 2, 1000)


@pytest.fixture
def place() -> Iterator[Place]:
    with memory_place() as place:
        yield place


def values(place: Place, mode: Any, k: int | None = None, thread_id: str = "t") -> Any:
    """The state as a new process of that mode reads it."""
    with place.fresh() as saver:
        return process(saver, mode, k).get_state(thread(thread_id)).values


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("k", KS)
def test_a_full_process_goes_on_from_the_state_of_delta_mode(
    place: Place, k: int, compacted: bool
) -> None:
    graph = process(place.saver(), "delta", k)
    say(graph, "a", "b", "c")
    graph.update_state(thread(), {"messages": [RemoveMessage(id="human-a")]})
    before = values(place, "delta", k)
    if compacted:
        place.compact(graph=operator_graph(k), frequency=2)
    (done,) = convert_to_full(place.saver(), "t")
    assert done.messages == len(before["messages"]) == 5
    assert values(place, "full") == before
    full = process(place.saver(), "full")
    assert full.get_state(thread()).next == ()
    live = say(full, "d", "e")
    assert contents(live["messages"])[-4:] == ["d", "answer to d", "e", "answer to e"]
    assert live["messages"][:5] == before["messages"]
    assert live["notes"] == [*before["notes"], 7, 9], "another delta channel stays one"
    assert values(place, "full") == live
    place.compact(graph=operator_graph(k), frequency=2)
    assert values(place, "full") == live


def test_a_converted_checkpoint_has_the_plain_list_and_no_mark(place: Place) -> None:
    say(process(place.saver(), "delta", 1000), "a")
    old = place.saver().get_tuple(thread())
    convert_to_full(place.saver(), "t")
    new = place.saver().get_tuple(thread())
    assert old is not None
    assert new is not None
    assert isinstance(new.checkpoint["channel_values"]["messages"], list)
    assert MODE_KEY not in new.metadata
    assert "messages" not in new.metadata["counters_since_delta_snapshot"]
    assert new.metadata["counters_since_delta_snapshot"]["notes"]
    assert new.parent_config == old.parent_config
    others = {"messages"}
    assert {c: v for c, v in new.checkpoint["channel_versions"].items() if c not in others} == {
        c: v for c, v in old.checkpoint["channel_versions"].items() if c not in others
    }


def test_converting_again_does_nothing(place: Place) -> None:
    say(process(place.saver(), "delta", 3), "a")
    assert len(convert_to_full(place.saver(), "t")) == 1
    before = place.keys("log/")
    assert convert_to_full(place.saver(), "t") == []
    assert place.keys("log/") == before
    say(process(place.saver(), "full"), "b")
    assert convert_to_full(place.saver(), "t") == []


def test_a_thread_of_full_mode_and_no_thread_are_left_alone(place: Place) -> None:
    say(process(place.saver(), "full"), "a")
    assert convert_to_full(place.saver(), "t") == []
    assert convert_to_full(place.saver(), "no such thread") == []


def test_a_converted_thread_may_turn_delta_again(place: Place) -> None:
    say(process(place.saver(), "delta", 2), "a")
    convert_to_full(place.saver(), "t")
    say(process(place.saver(), "full"), "b")
    live = say(process(place.saver(), "delta", 5), "c")
    assert values(place, "delta", 5) == live
    with pytest.raises(CheckpointModeMismatchError):
        values(place, "full")
    convert_to_full(place.saver(), "t")
    assert values(place, "full") == live


# -- every checkpoint -----------------------------------------------------------------------


def branched(place: Place, k: int) -> Any:
    """A thread with a removal, an update from outside and a fork; its delta-mode graph."""
    graph = process(place.saver(), "delta", k)
    say(graph, "a", "b")
    graph.update_state(thread(), {"messages": [RemoveMessage(id="human-a")]})
    say(graph, "c", "d")
    middle = history(graph)[5]
    graph.update_state(middle.config, {"messages": [HumanMessage("aside", id="aside")]})
    say(graph, "e")
    return graph


def history(graph: Any) -> list[Any]:
    return list(graph.get_state_history(thread()))


def shown(graph: Any) -> list[dict[str, Any]]:
    """All that a graph tells of its checkpoints, but for what says how messages are kept."""
    unlike = (MODE_KEY, "counters_since_delta_snapshot")
    return [
        {
            **state._asdict(),
            "metadata": {k: v for k, v in state.metadata.items() if k not in unlike},
        }
        for state in history(graph)
    ]


@pytest.mark.parametrize(
    ("k", "compacted"),
    [(1, "both"), (2, "before"), (2, "after"), (1000, "never"), (1000, "both")],
)
def test_the_history_reads_in_full_mode_as_it_did_in_delta_mode(
    place: Place, k: int, compacted: str
) -> None:
    expected = shown(branched(place, k))
    if compacted in ("before", "both"):
        place.compact(graph=operator_graph(k), frequency=2)
    (done,) = convert_to_full(place.saver(), "t")
    assert done.checkpoints == len(expected)
    if compacted in ("after", "both"):
        place.compact(graph=operator_graph(k), frequency=2)
    for mode in ("full", "delta"):
        with place.fresh() as saver:
            assert shown(process(saver, mode, k)) == expected
    with place.fresh() as saver:
        full = process(saver, "full")
        for state in expected[::3]:
            assert full.get_state(state["config"]).values == state["values"]


def test_a_full_process_goes_on_from_any_checkpoint(place: Place) -> None:
    states = history(branched(place, 3))
    convert_to_full(place.saver(), "t")
    full = process(place.saver(), "full")
    for state in states[2::6]:
        config = full.update_state(state.config, {"messages": [HumanMessage("on", id="on")]})
        before = contents(state.values.get("messages", []))
        assert contents(full.get_state(config).values["messages"]) == [*before, "on"]


def test_checkpoints_keep_their_places(place: Place) -> None:
    branched(place, 3)
    before = {t.checkpoint["id"]: t for t in place.saver().list(thread())}
    convert_to_full(place.saver(), "t")
    after = {t.checkpoint["id"]: t for t in place.saver().list(thread())}
    assert after.keys() == before.keys()
    for id_, found in after.items():
        assert found.parent_config == before[id_].parent_config
        assert found.pending_writes == before[id_].pending_writes
        assert found.checkpoint["ts"] == before[id_].checkpoint["ts"]
        assert MODE_KEY not in found.metadata


def size(place: Place, prefix: str) -> int:
    with place.store() as store:
        return sum(o.size for page in store.objects.list(prefix) for o in page.objects)


def test_each_checkpoint_costs_one_segment_and_the_messages_no_second_copy(place: Place) -> None:
    graph = process(place.saver(), "delta", 1000)
    for number in range(12):
        say(graph, f"{number} " + secrets.token_hex(2000))
    stored = size(place, "log/")
    segments = len(place.keys("log/"))
    (done,) = convert_to_full(place.saver(), "t")
    assert len(place.keys("log/")) == segments + done.checkpoints
    whole = sum(4000 * 2 * number for number in range(12)) * 3
    assert size(place, "log/") - stored < whole / 4
    place.compact(graph=operator_graph(1000))
    assert size(place, "runs/") < stored * 2


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("newest", [1, 2, 4])
def test_a_pruned_thread_is_converted_and_stays_pruned(
    place: Place, newest: int, compacted: bool
) -> None:
    say(process(place.saver(), "delta", 1000), "a", "b", "c")
    place.saver().prune(["t"], newest=newest)
    expected = shown(process(place.saver(), "delta", 1000))
    assert len(expected) == newest
    convert_to_full(place.saver(), "t")
    if compacted:
        place.compact(graph=operator_graph(1000), frequency=2)
    with place.fresh() as saver:
        full = process(saver, "full")
        assert shown(full) == expected
        assert say(full, "on")["messages"][:-2] == expected[0]["values"]["messages"]


@pytest.mark.parametrize("newest", [1, 2, 4])
def test_a_thread_of_which_hidden_rows_were_dropped_is_converted(newest: int) -> None:
    def dropped(place: Place) -> int:
        jobs = [
            place.compact(graph=operator_graph(1000), frequency=2, hidden_grace_s=0)
            for _ in range(2)
        ]
        return sum(job.total("rows_dropped") for job in jobs)

    with memory_place(short_grace_s=0) as place:
        say(process(place.saver(), "delta", 1000), "a", "b", "c")
        place.saver().prune(["t"], newest=newest)
        assert dropped(place) > 0
        expected = shown(process(place.saver(), "delta", 1000))
        assert len(expected) == newest
        (done,) = convert_to_full(place.saver(), "t")
        assert done.checkpoints == newest
        for _ in range(2):
            with place.fresh() as saver:
                full = process(saver, "full")
                assert shown(full) == expected
            place.saver().prune(["t"], newest=newest)
            dropped(place)
        with place.fresh() as saver:
            live = say(process(saver, "full"), "on")
            assert live["messages"][:-2] == expected[0]["values"]["messages"]
        assert values(place, "full") == live


class Killed(RuntimeError):
    """The process ends here."""


@pytest.mark.parametrize("after", [1, 4, 9])
def test_a_conversion_that_was_killed_is_finished_by_the_next(place: Place, after: int) -> None:
    class Mortal(LogStoreSaver):
        left = after

        def put(self, *args: Any) -> Any:
            if not self.left:
                raise Killed
            self.left -= 1
            return super().put(*args)

    expected = shown(branched(place, 3))
    with pytest.raises(Killed):
        convert_to_full(place.saver(Mortal), "t")
    with place.fresh() as saver:
        assert shown(process(saver, "delta", 3)) == expected, "delta mode goes on"
    with pytest.raises(CheckpointModeMismatchError):
        values(place, "full")
    (done,) = convert_to_full(place.saver(), "t")
    assert done.checkpoints == len(expected) - after
    with place.fresh() as saver:
        assert shown(process(saver, "full")) == expected


# -- unfinished work ------------------------------------------------------------------------


def test_an_interrupted_thread_still_waits_for_its_answer(place: Place) -> None:
    delta = process(place.saver(), "delta", 3)
    say(delta, "a")
    say(delta, "wait")
    assert delta.get_state(thread()).next == ("rest",)
    convert_to_full(place.saver(), "t")
    full = process(place.saver(), "full")
    state = full.get_state(thread())
    assert state.next == ("rest",)
    assert state.tasks[0].interrupts[0].value == "go on?"
    assert full.invoke(Command(resume="yes"), thread())["asked"] == "yes"
    assert contents(values(place, "full")["messages"])[-2:] == ["wait", "answer to wait"]


def test_a_task_that_was_finished_beside_an_interrupted_one_does_not_run_again(
    place: Place,
) -> None:
    ran: list[str] = []

    def graph(mode: Any) -> Any:
        unfreeze_for_tests()
        return waiting_graph(messages_channel(mode), with_mode(place.saver(), mode), ran)

    say(graph("delta"), "a")
    convert_to_full(place.saver(), "t")
    done = graph("full").invoke(Command(resume="yes"), thread())
    assert contents(done["messages"]) == ["a", "from fast", "yes"]
    assert ran == ["fast"]


# -- subgraphs ------------------------------------------------------------------------------


def subgraph_process(saver: BaseCheckpointSaver[Any], mode: Any) -> Any:
    unfreeze_for_tests()
    return nested_graph(messages_channel(mode), with_mode(saver, mode))


def test_every_namespace_is_converted_the_root_last(place: Place) -> None:
    graph = subgraph_process(place.saver(), "delta")
    say(graph, "a")
    assert say(graph, "b")["seen"] == [2, 4]
    saver = place.saver()
    namespaces = {t.config["configurable"]["checkpoint_ns"] for t in saver.list(thread())}
    assert len(namespaces) == 2
    done = convert_to_full(saver, "t")
    assert [one.checkpoint_ns for one in done] == [*(namespaces - {""}), ""]
    full = subgraph_process(place.saver(), "full")
    assert say(full, "c")["seen"] == [2, 4, 6], "the subgraph knew what it had"


# -- other savers, other reducers, races -------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite"])
def another(request: pytest.FixtureRequest) -> Iterator[BaseCheckpointSaver[Any]]:
    if request.param == "memory":
        yield InMemorySaver()
        return
    with SqliteSaver.from_conn_string(":memory:") as saver:
        yield saver


def test_another_saver_is_converted_through_its_public_interface(
    another: BaseCheckpointSaver[Any],
) -> None:
    delta = process(another, "delta", 3)
    say(delta, "a", "b", "c")
    expected = shown(delta)
    convert_to_full(another, "t")
    full = process(another, "full")
    assert shown(full) == expected
    assert len(say(full, "d")["messages"]) == 8


def test_the_applications_own_reducer_is_used(place: Place) -> None:
    say(process(place.saver(), "delta", 1000), "a")
    (done,) = convert_to_full(place.saver(), "t", reducer=append)
    assert done.messages == 2


def test_a_conversion_that_was_overtaken_says_so() -> None:
    class Overtaken(InMemorySaver):
        armed = False

        def put(self, *args: Any) -> Any:
            done = super().put(*args)
            if self.armed:
                self.armed = False
                say(graph, "meanwhile")
            return done

    saver = Overtaken()
    graph = process(saver, "delta", 3)
    say(graph, "a")
    saver.armed = True
    with pytest.raises(ConversionError, match="another process wrote"):
        convert_to_full(saver, "t")
    convert_to_full(saver, "t")
    assert process(saver, "full").get_state(thread()).values["messages"]


# -- the command ------------------------------------------------------------------------------


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer(cls=Commands)
    app.command("convert")(convert)
    app.command("other")(lambda: None)
    return app


def test_the_command_converts_and_says_what_it_did(tmp_path: Path, app: typer.Typer) -> None:
    place = Place(f"file://{tmp_path}/store").create()
    live = say(process(place.saver(), "delta", 3), "a")
    command = ["convert", place.uri, "t", "--to", "full"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0
    assert "2 messages" in done.output
    assert values(place, "full") == live
    again = CliRunner().invoke(app, [*command, "--json"])
    assert again.exit_code == 0
    assert json.loads(again.output)["converted"] == []
    place.close()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["t", "--to", "delta"], 2),
        (["t"], 2),
        (["nobody", "--to", "full"], 1),
        (["t", "--to", "full", "--reducer", "no.such:thing"], 2),
    ],
)
def test_the_command_refuses(
    tmp_path: Path, app: typer.Typer, arguments: list[str], code: int
) -> None:
    place = Place(f"file://{tmp_path}/store").create()
    say(process(place.saver(), "delta", 3), "a")
    assert CliRunner().invoke(app, ["convert", place.uri, *arguments]).exit_code == code
    with pytest.raises(CheckpointModeMismatchError):
        values(place, "full")
    place.close()
