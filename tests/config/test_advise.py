"""`logstore advise`: what deltas would save and cost, worked out from real threads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from typer.testing import CliRunner

from logstore.advise import ChannelAdvice, advise
from logstore.channels import messages_channel
from logstore.cli.advise import advise as advise_command
from logstore.cli.common import Commands
from logstore.modes import unfreeze_for_tests
from tests.config.apps import nested_graph, operator_graph, process, say
from tests.helpers import Place, memory_place, thread

TURNS = [f"q{number} " + "some words " * 100 for number in range(10)]
UPDATES = 2 * len(TURNS)


@pytest.fixture
def place() -> Iterator[Place]:
    with memory_place() as place:
        yield place


def messages_of(advice: list[ChannelAdvice]) -> ChannelAdvice:
    (found,) = [one for one in advice if one.channel == "messages"]
    return found


def stored_bytes(saver: InMemorySaver) -> tuple[int, int]:
    """The bytes of the messages' values and of their writes, as a saver has them."""
    values = sum(
        len(blob) for (_, _, channel, _), (_, blob) in saver.blobs.items() if channel == "messages"
    )
    writes = sum(
        len(blob)
        for of_task in saver.writes.values()
        for _, channel, (_, blob), _ in of_task.values()
        if channel == "messages"
    )
    return values, writes


@pytest.mark.parametrize("k", [1, 10, 100])
def test_what_it_foresees_is_what_the_switch_brings(k: int) -> None:
    full = InMemorySaver()
    say(process(full, "full"), *TURNS)
    foreseen = messages_of(advise(full))
    assert foreseen.full.stored == sum(stored_bytes(full))
    delta = InMemorySaver()
    say(process(delta, "delta", k), *TURNS)
    values, writes = stored_bytes(delta)
    assert foreseen.write_bytes == writes
    assert foreseen.delta[k].stored == pytest.approx(values + writes, rel=0.02)
    assert foreseen.delta[k].snapshots == UPDATES // k


def test_counts_are_those_of_the_threads(place: Place) -> None:
    graph = process(place.saver(), "full")
    for thread_id in ("a", "b"):
        say(graph, *TURNS, thread_id=thread_id)
    found = messages_of(advise(place.saver()))
    assert found.threads == 2
    assert found.updates == 2 * UPDATES
    assert found.reads == 2 * (len(TURNS) - 1), "the first turn of a thread finds nothing"
    assert not found.estimated
    assert messages_of(advise(place.saver(), ["a"])).updates == UPDATES


def test_replay_depth_is_that_of_the_reads(place: Place) -> None:
    say(process(place.saver(), "full"), *TURNS)
    found = messages_of(advise(place.saver(), frequencies=(1, 10, 1000)))
    depths = [2 * turn % 10 for turn in range(1, len(TURNS))]
    assert found.delta[10].deepest == max(depths) == 8
    assert found.delta[10].replayed == sum(depths)
    assert found.replays(10) == pytest.approx(sum(depths) / len(depths))
    assert found.delta[1].replayed == 0
    assert found.delta[1000].deepest == 2 * (len(TURNS) - 1)


def test_a_channel_that_grows_is_worth_it_and_one_that_is_replaced_is_not(place: Place) -> None:
    say(process(place.saver(), "full"), *TURNS)
    by_name = {one.channel: one for one in advise(place.saver())}
    assert by_name["messages"].recommended == 10
    assert by_name["messages"].saves(10) > 0.7
    assert "delta with K = 10" in by_name["messages"].verdict
    assert by_name["asked"].recommended is None
    assert by_name["asked"].saves(1000) <= 0.5
    assert "keep full" in by_name["asked"].verdict
    assert next(iter(by_name)) == "messages", "the largest comes first"
    assert not any(name.startswith(("__", "branch:")) for name in by_name)


@pytest.mark.parametrize("k", [1, 3, 1000])
@pytest.mark.parametrize("compacted", [False, True])
def test_a_channel_that_is_delta_already_is_estimated_from_its_writes(
    place: Place, k: int, compacted: bool
) -> None:
    say(process(place.saver(), "full"), *TURNS, thread_id="full")
    say(process(place.saver(), "delta", k), *TURNS, thread_id="delta")
    if compacted:
        place.compact(graph=operator_graph(k), frequency=5)
    full = messages_of(advise(place.saver(), ["full"]))
    delta = messages_of(advise(place.saver(), ["delta"]))
    assert delta.updates == full.updates
    assert delta.reads == full.reads
    assert delta.estimated == (k > 1)
    assert delta.full.stored == pytest.approx(full.full.stored, rel=0.05)


def test_the_supersteps_bound_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    saver = InMemorySaver()
    graph = process(saver, "full")
    say(graph, "once")
    for _ in range(9):
        graph.update_state(thread(), {"asked": "x"}, as_node="rest")
    monkeypatch.setenv("LANGGRAPH_DELTA_MAX_SUPERSTEPS_SINCE_SNAPSHOT", "5")
    assert messages_of(advise(saver)).delta[1000].snapshots == 2


def test_without_stored_writes_the_growth_stands_for_them() -> None:
    stored, at_exit = InMemorySaver(), InMemorySaver()
    say(process(stored, "full"), *TURNS)
    graph = process(at_exit, "full")
    for text in TURNS:
        graph.invoke({"messages": [HumanMessage(text, id=text)]}, thread(), durability="exit")
    usual, grown = messages_of(advise(stored)), messages_of(advise(at_exit))
    assert grown.write_bytes == 0
    assert grown.delta[1000].stored == pytest.approx(usual.delta[1000].stored, rel=0.1)


def test_forks_are_followed_along_their_own_path(place: Place) -> None:
    graph = process(place.saver(), "full")
    say(graph, *TURNS[:5])
    old = next(s.config for s in graph.get_state_history(thread()) if s.metadata["step"] == 6)
    graph.invoke({"messages": ["fork"]}, old)
    found = messages_of(advise(place.saver()))
    assert found.updates == 12
    assert found.delta[1000].deepest <= 10


def test_subgraphs_are_told_apart(place: Place) -> None:
    unfreeze_for_tests()
    say(nested_graph(messages_channel("full"), place.saver()), "a", "b")
    places = {(one.namespace, one.channel) for one in advise(place.saver())}
    assert places == {("", "messages"), ("", "seen"), ("call", "messages")}


def test_no_threads_give_no_advice() -> None:
    assert advise(InMemorySaver()) == []


# -- the command --------------------------------------------------------------------------


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer(cls=Commands)
    app.command("advise")(advise_command)
    app.command("other")(lambda: None)
    return app


def test_the_command_prints_a_table_and_json(tmp_path: Path, app: typer.Typer) -> None:
    place = Place(f"file://{tmp_path}/store").create()
    say(process(place.saver(), "full"), *TURNS)
    table = CliRunner().invoke(app, ["advise", place.uri])
    assert table.exit_code == 0
    assert "delta with K = 10" in table.output
    done = CliRunner().invoke(app, ["advise", place.uri, "--thread", "t", "--json"])
    (messages,) = [c for c in json.loads(done.output)["channels"] if c["channel"] == "messages"]
    assert messages["recommended"] == 10
    assert set(messages["delta"]) == {"1", "10", "100", "1000"}
    assert messages["updates"] == UPDATES
    place.close()


@contextmanager
def managed_saver() -> Iterator[SqliteSaver]:
    """A saver of the application's, as a context manager."""
    with SqliteSaver.from_conn_string(":memory:") as saver:
        say(process(saver, "full"), *TURNS)
        yield saver


def no_saver() -> str:
    return "something else"


def test_the_command_looks_at_another_saver(app: typer.Typer) -> None:
    path = f"{__name__}:managed_saver"
    done = CliRunner().invoke(app, ["advise", "--saver", path, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["channels"][0]["recommended"] == 10


def test_the_command_takes_a_saver_as_it_is(
    app: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = InMemorySaver()
    say(process(made, "full"), *TURNS)
    monkeypatch.setattr(f"{__name__}.no_saver", lambda: made)
    assert CliRunner().invoke(app, ["advise", "--saver", f"{__name__}:no_saver"]).exit_code == 0
    monkeypatch.setattr(f"{__name__}.no_saver", made)
    assert CliRunner().invoke(app, ["advise", "--saver", f"{__name__}:no_saver"]).exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["file:///nowhere", "--saver", "a:b"],
        ["--saver", "nothing"],
        ["--saver", "no.such.module:x"],
        ["--saver", f"{__name__}:no_saver"],
    ],
)
def test_the_command_refuses(app: typer.Typer, arguments: list[Any]) -> None:
    done = CliRunner().invoke(app, ["advise", *arguments])
    assert done.exit_code == 2
