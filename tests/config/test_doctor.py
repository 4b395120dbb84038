"""`logstore doctor`: the storage shape of delta channels, and the cadence that the data shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.types import Overwrite
from typer.testing import CliRunner

from logstore.channels import delta_messages, messages_channel
from logstore.cli.catalog import Catalog
from logstore.cli.common import Commands
from logstore.cli.doctor import doctor
from logstore.convert import convert_to_full
from logstore.doctor import Examination, examine
from logstore.exam import ChannelExam
from logstore.modes import MODE_KEY
from logstore.records import Kind
from tests.config.apps import agent_graph, operator_graph, process, say
from tests.helpers import Place, memory_place, thread

TURNS = [f"q{number}" for number in range(12)]


@pytest.fixture
def place() -> Iterator[Place]:
    with memory_place() as place:
        yield place


def examined(place: Place, **configured: Any) -> Examination:
    with place.store() as store:
        return examine(store, Catalog(store).reads(), **configured)


def messages_of(found: Examination) -> ChannelExam:
    (exam,) = [one for one in found.channels if one.channel == "messages"]
    return exam


@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_cadence_in_line_is_read_from_the_data(place: Place, k: int) -> None:
    say(process(place.saver(), "delta", k), *TURNS)
    found = examined(place, mode="delta", snapshot_frequency=k)
    exam = messages_of(found)
    assert exam.seen == {k: len(TURNS) * 2 // k}
    assert exam.inline == len(TURNS) * 2 // k
    assert exam.replay == exam.unbroken == k - 1
    assert exam.compacted == exam.whole == exam.out_of_turn == 0
    assert exam.configured == k
    assert found.findings == []
    assert (found.threads, found.delta_threads, found.unmarked_threads) == (1, 1, 0)


def test_the_compactors_cadence_is_told_apart(place: Place) -> None:
    say(process(place.saver(), "delta", 1000), *TURNS)
    before = examined(place, mode="delta", snapshot_frequency=4)
    assert messages_of(before).replay == 24
    assert not before.problems
    assert any("run the compactor" in finding.text for finding in before.findings)
    place.compact(graph=operator_graph(1000), frequency=4)
    after = examined(place, mode="delta", snapshot_frequency=4)
    exam = messages_of(after)
    assert exam.compactor_cadence == {4: 6}
    assert (exam.inline, exam.compacted, exam.replay, exam.unbroken) == (0, 6, 3, 24)
    assert [finding.problem for finding in after.findings] == [False]
    assert "the compactor makes the snapshots" in after.findings[0].text


def test_two_processes_with_different_cadences_are_seen(place: Place) -> None:
    for thread_id, k in (("a", 3), ("b", 5)):
        say(process(place.saver(), "delta", k), *TURNS, thread_id=thread_id)
    found = examined(place, mode="delta", snapshot_frequency=3)
    assert messages_of(found).seen == {3: 8, 5: 4}
    texts = [finding.text for finding in found.problems]
    assert any("different cadences" in t and "3 (8 times), 5 (4 times)" in t for t in texts)
    assert any("configured cadence is 3" in text for text in texts)
    assert not [f for f in examined(place).problems if "configured" in f.text]


def test_two_processes_on_one_thread_are_seen(place: Place) -> None:
    for k in (2, 3, 2, 3):
        say(process(place.saver(), "delta", k), *TURNS[:6])
    seen = messages_of(examined(place)).seen
    assert set(seen) == {2, 3}


def test_a_process_that_never_reaches_its_cadence_is_seen(place: Place) -> None:
    for thread_id, k in (("a", 3), ("b", 1000)):
        say(process(place.saver(), "delta", k), *TURNS, thread_id=thread_id)
    (problem,) = examined(place).problems
    assert "24 updates went by without one" in problem.text


def test_another_cadence_than_the_configured_one_is_a_problem(place: Place) -> None:
    say(process(place.saver(), "delta", 3), *TURNS)
    (problem,) = examined(place, mode="delta", snapshot_frequency=10).problems
    assert problem.text == (
        "root: messages: the configured cadence is 10, the data shows 3 (8 times)"
    )


def test_snapshots_out_of_turn_are_no_cadence(place: Place) -> None:
    """Of an update from outside, an `Overwrite`, and a run from an earlier checkpoint."""
    graph = process(place.saver(), "delta", 7)
    say(graph, *TURNS)
    overwritten: Any = {"messages": Overwrite([HumanMessage("anew", id="anew")])}
    graph.update_state(thread(), overwritten)
    graph.invoke(overwritten, thread())
    old = next(s.config for s in graph.get_state_history(thread()) if s.metadata["step"] == 10)
    graph.invoke({"messages": [HumanMessage("fork", id="fork")]}, old)
    say(graph, "after")
    found = examined(place, mode="delta", snapshot_frequency=7)
    exam = messages_of(found)
    assert set(exam.seen) == {7}
    assert exam.out_of_turn >= 2
    assert found.problems == []


def test_a_run_that_saves_at_its_exit_only_is_no_cadence(place: Place) -> None:
    graph = process(place.saver(), "delta", 3)
    for text in TURNS:
        message = {"messages": [HumanMessage(text, id=text)]}
        graph.invoke(message, thread(), durability="exit")
    exam = messages_of(examined(place))
    assert exam.inline > 0
    assert exam.cadence == {}


def test_full_and_delta_threads_are_counted(place: Place) -> None:
    say(process(place.saver(), "full"), "a", thread_id="full")
    say(process(place.saver(), "delta", 3), "a", thread_id="delta")
    say(agent_graph(messages_channel("delta", 3), place.saver()), "a", thread_id="unmarked")
    found = examined(place, mode="delta", snapshot_frequency=3)
    assert (found.threads, found.delta_threads, found.unmarked_threads) == (3, 2, 1)
    assert found.problems == []
    (problem,) = examined(place, mode="full").problems
    assert "2 threads are in delta mode" in problem.text


def test_a_migration_and_a_conversion_are_no_problem(place: Place) -> None:
    say(process(place.saver(), "full"), *TURNS[:3])
    say(process(place.saver(), "delta", 3), *TURNS[3:])
    convert_to_full(place.saver(), "t")
    say(process(place.saver(), "full"), "on")
    place.compact(graph=operator_graph(3), frequency=3)
    found = examined(place)
    assert found.findings == []
    assert {one.channel for one in found.channels} == {"notes"}, "messages are none any more"
    assert found.delta_threads == 0


class Rot(CipherProtocol):
    """As good as encrypted, for one who has no key."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "rot", bytes((byte + 13) % 256 for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return bytes((byte - 13) % 256 for byte in ciphertext)


def test_an_encrypted_store_shows_its_cadence_all_the_same(place: Place) -> None:
    saver = place.saver(serde=EncryptedSerializer(Rot()))
    say(process(saver, "delta", 3), *TURNS)
    found = examined(place, mode="delta", snapshot_frequency=3)
    assert messages_of(found).seen == {3: 8}
    assert {one.channel for one in found.channels} == {"messages", "notes"}
    assert found.problems == []


# -- broken shapes ------------------------------------------------------------------------


def tampered(place: Place, **change: Any) -> None:
    """A checkpoint after the head that no LangGraph would write."""
    saver = place.saver()
    head = saver.get_tuple(thread())
    assert head is not None
    checkpoint = {**head.checkpoint, "id": "2" + head.checkpoint["id"][1:]}
    metadata: Any = {**head.metadata, "source": "loop", "step": head.metadata["step"] + 1}
    new_versions = {}
    if "messages" in change:
        version = saver.get_next_version(checkpoint["channel_versions"]["messages"], None)
        new_versions = {"messages": version}
        checkpoint["channel_versions"] = {**checkpoint["channel_versions"], **new_versions}
        checkpoint["channel_values"] = {
            **checkpoint["channel_values"],
            "messages": change["messages"],
        }
    metadata.update(change.get("metadata", {}))
    metadata = {k: v for k, v in metadata.items() if v is not None}
    saver.put(head.config, checkpoint, metadata, new_versions)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"metadata": {"counters_since_delta_snapshot": None}},
            "counters of messages went back without a snapshot",
        ),
        ({"messages": [HumanMessage("x", id="x")]}, "brings the whole list"),
        (
            {"metadata": {"counters_since_delta_snapshot": None, MODE_KEY: None}},
            "without the guard",
        ),
    ],
    ids=["counters", "whole list", "full mode on top"],
)
def test_a_broken_shape_is_a_problem_with_its_place(
    place: Place, change: dict[str, Any], told: str
) -> None:
    say(process(place.saver(), "delta", 1000), "a")
    assert examined(place).problems == []
    tampered(place, **change)
    (problem,) = [f for f in examined(place).problems if told in f.text]
    assert problem.times == 1
    assert problem.examples[0].startswith("thread 't', checkpoint 2")


def test_a_snapshot_beside_a_value_is_a_problem(place: Place) -> None:
    saver = place.saver()
    say(agent_graph(delta_messages(1), saver), "a")
    read = saver.store.read_history("t")
    head = read.view.head("")
    assert head is not None
    stored = read.view.stored_value(head, "messages")
    assert stored is not None
    wrong = stored._replace(
        kind=Kind.SNAPSHOT, checkpoint_id=head.checkpoint_id, stamp=saver.store.stamp()
    )
    saver.store.write("t", [wrong])
    (problem,) = examined(place).problems
    assert "where the graph stored a value" in problem.text


def test_a_snapshot_beside_a_value_that_came_later_is_none(place: Place) -> None:
    say(process(place.saver(), "delta", 1000), "a", "b")
    place.compact(graph=operator_graph(1000), frequency=2)
    assert {channel for *_, channel in place.snapshots()} == {"messages", "notes"}
    convert_to_full(place.saver(), "t")
    assert examined(place).findings == []


# -- the command -----------------------------------------------------------------------------


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer(cls=Commands)
    app.command("doctor")(doctor)
    app.command("other")(lambda: None)
    return app


def test_the_command_compares_with_the_configuration(tmp_path: Path, app: typer.Typer) -> None:
    place = Place(f"file://{tmp_path}/store").create()
    say(process(place.saver(), "delta", 3), *TURNS)
    config = tmp_path / "config.yaml"
    text = (
        "database:\n  checkpoint_channel_mode: delta\n  checkpoint_delta:\n"
        "    snapshot_frequency: {}\n"
    )
    config.write_text(text.format(3))
    good = CliRunner().invoke(app, ["doctor", place.uri, "--config", str(config)])
    assert good.exit_code == 0, good.output
    assert "3 ×8" in good.output
    config.write_text(text.format(4))
    bad = CliRunner().invoke(app, ["doctor", place.uri, "--config", str(config)])
    assert bad.exit_code == 1
    assert "the configured cadence is 4" in bad.output
    as_json = CliRunner().invoke(app, ["doctor", place.uri, "--json"])
    assert as_json.exit_code == 0
    doc = json.loads(as_json.output)
    assert doc["channels"][0]["cadence"] == {"3": 8}
    assert doc["delta_threads"] == 1
    place.close()


def test_the_command_refuses_a_configuration_that_is_not_there(
    tmp_path: Path, app: typer.Typer
) -> None:
    place = Place(f"file://{tmp_path}/store").create()
    done = CliRunner().invoke(app, ["doctor", place.uri, "--config", str(tmp_path / "none")])
    assert done.exit_code == 2
    empty = CliRunner().invoke(app, ["doctor", place.uri])
    assert empty.exit_code == 0
    assert "0 threads" in empty.output
    place.close()
