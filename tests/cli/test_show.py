"""`logstore show`: what a checkpoint holds, decoded without its classes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import empty_checkpoint

from logstore import LogStoreSaver
from logstore.demo.graph import build_graph
from logstore.structural import CLASS, DELTA_SNAPSHOT
from tests.cli.conftest import Stocked, error_line, run, run_json, run_process
from tests.helpers import thread


@pytest.fixture(params=["stocked", "compacted"])
def store(request: pytest.FixtureRequest) -> Stocked:
    """The store before and after a compaction."""
    found: Stocked = request.getfixturevalue(request.param)
    return found


def rebuilt(channel: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages that a delta channel's parts add up to."""
    seed = channel["seed"]
    base: list[dict[str, Any]] = seed["value"]["value"] if seed else []
    return base + [message for write in channel["writes"] for message in write["value"]]


def fields(message: BaseMessage) -> dict[str, Any]:
    """A message as it is shown."""
    kind = type(message)
    dumped = json.loads(json.dumps(message.model_dump()))
    return {CLASS: f"{kind.__module__}.{kind.__name__}", **dumped}


def states(store: Stocked, thread_id: str) -> dict[str, list[BaseMessage]]:
    """The messages at each checkpoint, as the graph has them."""
    with LogStoreSaver.from_conn_string(store.uri, compaction="off") as saver:
        history = build_graph(saver).get_state_history(thread(thread_id))
        return {
            str(state.config["configurable"]["checkpoint_id"]): state.values.get("messages", [])
            for state in history
        }


def test_the_parts_of_a_delta_channel_add_up_to_the_graphs_state(store: Stocked) -> None:
    thread_id = store.conversations[2]["thread_id"]
    for checkpoint_id, messages in list(states(store, thread_id).items())[::3]:
        doc = run_json("show", store.uri, thread_id, "--checkpoint", checkpoint_id)
        channel = doc["channels"].get("messages")
        if channel is None:
            shown: Any = []
        elif channel["kind"] == "delta":
            shown = rebuilt(channel)
        else:
            assert channel["value"][CLASS] == DELTA_SNAPSHOT
            shown = channel["value"]["value"]
        assert shown == [fields(message) for message in messages]


def test_the_head_of_an_uncompacted_thread_is_read_from_the_log(stocked: Stocked) -> None:
    doc = run_json("show", stocked.uri, stocked.linear)
    channel = doc["channels"]["messages"]
    assert doc["head"]
    assert doc["read"]["kind"] == "head"
    assert doc["read"]["generation"] == 0
    assert channel["seed"] is None
    keys = {write["where"] for write in channel["writes"]}
    assert keys <= set(doc["read"]["segments"])
    assert all((stocked.folder / key).is_file() for key in keys)
    assert doc["channels"]["__start__"]["kind"] == "empty"
    assert doc["metadata"]["value"]["source"] == doc["source"] == "loop"


def test_the_head_of_a_compacted_thread_is_read_from_its_manifest(compacted: Stocked) -> None:
    doc = run_json("show", compacted.uri, compacted.conversations[2]["thread_id"])
    seed = doc["channels"]["messages"]["seed"]
    assert doc["read"]["kind"] == "head"
    assert doc["read"]["generation"] == 1
    assert doc["read"]["segments"] == doc["read"]["runs"] == []
    assert seed["value"][CLASS] == DELTA_SNAPSHOT
    assert (compacted.folder / seed["where"]).is_file()
    assert len(doc["channels"]["messages"]["writes"]) <= 10


def test_an_old_checkpoint_of_a_compacted_thread_is_read_from_the_runs(compacted: Stocked) -> None:
    thread_id = compacted.linear
    rows = run_json("history", compacted.uri, thread_id)["checkpoints"]
    old = next(row for row in rows[3:] if "branch:to:agent" in row["values"])["checkpoint_id"]
    doc = run_json("show", compacted.uri, thread_id, "--checkpoint", old)
    assert not doc["head"]
    assert doc["read"]["kind"] == "history"
    (run_key,) = doc["read"]["runs"]
    assert doc["channels"]["branch:to:agent"]["where"] == run_key
    assert "messages" in [write["channel"] for write in doc["pending_writes"]]


def test_pending_writes_and_another_namespace(store: Stocked) -> None:
    doc = run_json("show", store.uri, store.forked, "--ns", "sub:task")
    assert [(w["channel"], w["task_id"], w["idx"]) for w in doc["pending_writes"]] == [
        ("out", "task-1", 0),
        ("out", "task-1", 1),
    ]
    assert doc["pending_writes"][0]["value"] == "first"
    assert doc["pending_writes"][1]["value"] == {"__bytes__": 6, "base64": "c2Vjb25k"}
    text = run("show", store.uri, store.forked, "--ns", "sub:task").stdout
    assert "pending writes" in text
    assert "6 B of bytes" in text


def test_show_for_people(compacted: Stocked) -> None:
    thread_id = compacted.conversations[2]["thread_id"]
    text = run("show", compacted.uri, thread_id).stdout
    assert "(head)" in text
    assert "the snapshot manifest (generation 1)" in text
    assert "the compactor's snapshot at" in text
    assert "AIMessage: " in text
    assert "without a value: __start__" in text


def test_one_channel_is_shown_whole(stocked: Stocked) -> None:
    text = run("show", stocked.uri, stocked.linear, "--channel", "messages").stdout
    for message in stocked.conversations[1]["messages"]:
        if message["content"]:
            assert message["content"].split("\n")[0] in text.replace('\\"', '"')
    (only,) = run_json("show", stocked.uri, stocked.linear, "--channel", "messages")["channels"]
    assert only == "messages"


def test_what_is_not_there_is_told_with_what_is(stocked: Stocked) -> None:
    for arguments, expected in (
        (("nobody",), f'logstore threads "{stocked.uri}"'),
        (("gone",), "it was deleted"),
        ((stocked.linear, "--checkpoint", "x"), "logstore history"),
        ((stocked.linear, "--ns", "x"), "it has ''"),
        ((stocked.linear, "--channel", "x"), "it has __start__"),
    ):
        result = run("show", stocked.uri, *arguments)
        assert result.exit_code == 1
        assert expected in error_line(result)


def test_a_thread_that_has_only_writes_says_so(tmp_path: Path) -> None:
    uri = tmp_path.as_uri()
    with LogStoreSaver.from_conn_string(uri, compaction="off") as saver:
        saver.put_writes(thread("t", "", "1"), [("a", 1)], "task")
    result = run("show", uri, "t")
    assert result.exit_code == 1
    assert "no checkpoint has arrived" in error_line(result)


def test_values_without_versions_and_encrypted_ones_are_shown(tmp_path: Path) -> None:
    class Cipher:
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            return "msgpack+rot", b"\x01\x02\x03"

        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            raise AssertionError("nothing may be decrypted here")

    uri = tmp_path.as_uri()
    with LogStoreSaver.from_conn_string(uri, compaction="off", serde=Cipher()) as saver:
        checkpoint = {**empty_checkpoint(), "channel_values": {"secret": 1}}
        saver.put(thread("t", ""), checkpoint, {"source": "input", "step": -1}, {})  # type: ignore[arg-type]
    doc = run_json("show", uri, "t")
    assert doc["channels"]["secret"]["kind"] == "value"
    assert doc["channels"]["secret"]["version"] is None
    assert doc["channels"]["secret"]["value"] == {
        "__encrypted__": "rot",
        "type": "msgpack",
        "bytes": 3,
    }
    assert "encrypted with rot, 3 B" in run("show", uri, "t").stdout


def test_a_thread_whose_code_is_gone_can_be_looked_at(tmp_path: Path) -> None:
    uri = (tmp_path / "store").as_uri()
    (tmp_path / "vanished.py").write_text(
        "from dataclasses import dataclass\n@dataclass\nclass Plan:\n    steps: list\n"
    )
    program = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
from langgraph.checkpoint.base import empty_checkpoint
from logstore import LogStoreSaver
from vanished import Plan
with LogStoreSaver.from_conn_string({uri!r}, compaction="off") as saver:
    values = {{"plan": Plan(["look", "leap"])}}
    checkpoint = {{**empty_checkpoint(), "channel_values": values}}
    checkpoint["channel_versions"] = {{"plan": "1"}}
    config = {{"configurable": {{"thread_id": "t", "checkpoint_ns": ""}}}}
    saver.put(config, checkpoint, {{"source": "input", "step": -1}}, {{"plan": "1"}})
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    (tmp_path / "vanished.py").write_text("raise SystemExit('imported')\n")
    doc = json.loads(
        run_process(
            "show", uri, "t", "--json", before=f"import sys; sys.path.insert(0, {str(tmp_path)!r})"
        ).stdout
    )
    assert doc["channels"]["plan"]["value"] == {CLASS: "vanished.Plan", "steps": ["look", "leap"]}
