"""`logstore convert`: a delta thread, materialised for full mode."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from langchain_core.messages import RemoveMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from typer.testing import CliRunner

from logstore.channels import messages_channel
from logstore.cli.common import Commands
from logstore.cli.convert import convert
from logstore.convert import ConversionError, convert_to_full
from logstore.modes import MODE_KEY, CheckpointModeMismatchError, unfreeze_for_tests, with_mode
from tests.config.apps import contents, nested_graph, operator_graph, process, say
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


def test_the_new_head_has_the_plain_list_and_no_mark(place: Place) -> None:
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


def test_what_came_before_stays_readable_in_delta_mode(place: Place) -> None:
    graph = process(place.saver(), "delta", 3)
    say(graph, "a", "b")
    before = {s.config["configurable"]["checkpoint_id"]: s.values for s in _history(graph)}
    convert_to_full(place.saver(), "t")
    after = {
        s.config["configurable"]["checkpoint_id"]: s.values
        for s in _history(process(place.saver(), "delta", 3))
    }
    assert {id_: after[id_] for id_ in before} == before
    assert len(after) == len(before) + 1


def test_full_mode_refuses_what_lies_below_the_new_head(place: Place) -> None:
    say(process(place.saver(), "delta", 3), "a")
    convert_to_full(place.saver(), "t")
    full = process(place.saver(), "full")
    (head,) = full.get_state_history(thread(), limit=1)
    assert len(head.values["messages"]) == 2
    with pytest.raises(CheckpointModeMismatchError):
        list(full.get_state_history(thread()))


def _history(graph: Any) -> list[Any]:
    return list(graph.get_state_history(thread()))


# -- unfinished work ------------------------------------------------------------------------


def test_an_interrupted_thread_is_refused_unless_its_step_may_run_again(place: Place) -> None:
    delta = process(place.saver(), "delta", 3)
    say(delta, "a")
    say(delta, "wait")
    assert delta.get_state(thread()).next == ("rest",)
    with pytest.raises(ConversionError, match="--rerun-unfinished"):
        convert_to_full(place.saver(), "t")
    with pytest.raises(CheckpointModeMismatchError):
        values(place, "full")
    convert_to_full(place.saver(), "t", rerun_unfinished=True)
    full = process(place.saver(), "full")
    assert full.get_state(thread()).next == ("rest",)
    assert full.invoke(None, thread())["__interrupt__"][0].value == "go on?", "it asks again"
    assert full.invoke(Command(resume="yes"), thread())["asked"] == "yes"


# -- subgraphs ------------------------------------------------------------------------------


def subgraph_process(saver: BaseCheckpointSaver[Any], mode: Any) -> Any:
    unfreeze_for_tests()
    return nested_graph(messages_channel(mode), with_mode(saver, mode))


@pytest.mark.parametrize("named", [False, True])
def test_every_namespace_is_converted_the_root_last(place: Place, named: bool) -> None:
    graph = subgraph_process(place.saver(), "delta")
    say(graph, "a")
    assert say(graph, "b")["seen"] == [2, 4]
    saver = place.saver()
    namespaces = {t.config["configurable"]["checkpoint_ns"] for t in saver.list(thread())}
    assert len(namespaces) == 2
    done = convert_to_full(saver, "t", namespaces=namespaces if named else None)
    assert [one.checkpoint_ns for one in done] == [*(namespaces - {""}), ""]
    full = subgraph_process(place.saver(), "full")
    assert say(full, "c")["seen"] == [2, 4, 6], "the subgraph knew what it had"


# -- other savers, other reducers, races -------------------------------------------------------


def test_another_saver_is_converted_through_its_public_interface() -> None:
    saver = InMemorySaver()
    live = say(process(saver, "delta", 3), "a", "b")
    convert_to_full(saver, "t")
    full = process(saver, "full")
    assert full.get_state(thread()).values == live
    assert len(say(full, "c")["messages"]) == 6


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


def _one_checkpoint(place: Place) -> Any:
    found = place.saver().get_tuple(thread())
    assert found is not None
    versions = found.checkpoint["channel_versions"]
    return thread("t", ""), found.checkpoint, found.metadata, versions


def test_a_head_from_the_future_is_refused(place: Place) -> None:
    say(process(place.saver(), "delta", 1), "a")
    saver = place.saver()
    config, checkpoint, metadata, versions = _one_checkpoint(place)
    saver.put(config, {**checkpoint, "id": "ffffffff"}, metadata, versions)
    with pytest.raises(ConversionError, match="clock"):
        convert_to_full(saver, "t")


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
