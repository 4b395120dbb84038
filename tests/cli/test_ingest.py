"""`logstore ingest`: conversations through a real graph into a store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from compactor import compact
from logstore import LogStoreSaver
from logstore.demo.conversations import DEFAULT_INPUT, read_conversations
from logstore.demo.graph import build_graph
from logstore.demo.ingest import Ingest
from logstore.demo.messages import to_recorded
from logstore.demo.verify import verify
from tests.cli.conftest import error_line, run, run_json, run_process
from tests.helpers import thread

AIRLINE = Path(__file__).parents[3] / "shared" / "data" / "tau_airline.jsonl"


def write_lines(path: Path, *lines: Any) -> Path:
    """A file of lines, each a document or a text."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def conversation(thread_id: str, *turns: str) -> dict[str, Any]:
    """A conversation in which each turn is said and answered."""
    messages = []
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        messages.append({"role": "assistant", "content": f"you said {turn}"})
    return {"thread_id": thread_id, "messages": messages}


def read_back(uri: str, thread_id: str) -> list[dict[str, Any]]:
    with LogStoreSaver.from_conn_string(uri, compaction="off") as saver:
        state = build_graph(saver).get_state(thread(thread_id))
        return [to_recorded(message) for message in state.values.get("messages", [])]


def test_what_was_recorded_is_in_the_store(uri: str) -> None:
    report = run_json("ingest", uri, DEFAULT_INPUT, "--threads", "4")
    conversations = read_conversations(DEFAULT_INPUT)
    assert report["threads"] == len(conversations)
    assert report["already"] == 0
    assert report["messages"] == sum(len(c.messages) for c in conversations)
    assert report["problems"] == []
    found = verify(uri, DEFAULT_INPUT)
    assert found.differences == []
    assert found.messages == report["messages"]
    rows = run_json("threads", uri)["threads"]
    assert sum(row["checkpoints"] for row in rows) == report["supersteps"]


def test_each_answer_and_each_batch_of_results_is_a_superstep(uri: str, tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calls = [call, {**call, "id": "d"}]
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "1", "tool_call_id": "c"},
        {"role": "tool", "content": "2", "tool_call_id": "d"},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "bye"},
    ]
    path = write_lines(tmp_path / "in.jsonl", {"thread_id": "t", "messages": messages})
    run_json("ingest", uri, path)
    assert read_back(uri, "t") == messages
    doc = run_json("show", uri, "t")
    sizes = [len(write["value"]) for write in doc["channels"]["messages"]["writes"]]
    assert sum(sizes) + len((doc["channels"]["messages"]["seed"] or {}).get("value", [])) == 7
    assert 2 in sizes


def test_conversations_in_unusual_orders(uri: str, tmp_path: Path) -> None:
    user, answer = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}
    result = {"role": "tool", "content": "r", "tool_call_id": "c"}
    lines = {
        "answers first": [answer, answer, user],
        "only a result": [result],
        "only users": [user, user, user],
        "results after a user": [user, result, answer, result, user, answer, answer],
    }
    documents = [{"thread_id": name, "messages": m} for name, m in lines.items()]
    run_json("ingest", uri, write_lines(tmp_path / "in.jsonl", *documents))
    for name, messages in lines.items():
        assert read_back(uri, name) == messages


def test_a_malformed_line_is_named_and_nothing_of_the_rest_is_lost(
    uri: str, tmp_path: Path
) -> None:
    good = [conversation("a", "x"), conversation("b", "y", "z")]
    path = write_lines(tmp_path / "in.jsonl", good[0], "{broken", good[1], {"thread_id": "c"})
    result = run("ingest", uri, path)
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr
    lines = result.stderr.strip().splitlines()
    assert lines[0].startswith(f"error: {path}:2: not a line of JSON")
    assert lines[1].startswith(f"error: {path}:4: ")
    assert lines[-1].startswith("error: 2 lines of ")
    for document in good:
        assert read_back(uri, document["thread_id"]) == document["messages"]


def test_the_document_of_a_failed_ingest_lists_the_lines(uri: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.jsonl", "{broken", conversation("a", "x"))
    result = run("ingest", uri, path, "--json")
    assert result.exit_code == 1
    doc = json.loads(result.stdout)
    assert doc["threads"] == 1
    (problem,) = doc["problems"]
    assert (problem["line"], problem["thread_id"]) == (1, None)


def test_repeating_it_changes_nothing_and_adds_what_is_new(uri: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "in.jsonl", conversation("a", "x"))
    first = run_json("ingest", uri, path)
    again = run_json("ingest", uri, path)
    assert (again["threads"], again["already"], again["supersteps"]) == (1, 1, 0)
    longer = conversation("a", "x", "y", "z")
    write_lines(path, longer, conversation("b", "w"))
    more = run_json("ingest", uri, path)
    assert (more["threads"], more["already"]) == (2, 0)
    assert more["supersteps"] == 3 * first["supersteps"]
    assert read_back(uri, "a") == longer["messages"]


def test_a_thread_with_other_messages_is_left_alone(uri: str, tmp_path: Path) -> None:
    theirs, other = conversation("a", "x"), conversation("b", "y")
    run_json("ingest", uri, write_lines(tmp_path / "in.jsonl", theirs))
    path = write_lines(tmp_path / "in.jsonl", conversation("a", "not x"), other)
    result = run("ingest", uri, path)
    assert result.exit_code == 1
    assert "thread 'a': the store has a thread of that id with other messages" in result.stderr
    assert read_back(uri, "a") == theirs["messages"]
    assert read_back(uri, "b") == other["messages"]


def test_a_run_that_was_cut_off_is_gone_on_with(uri: str, tmp_path: Path) -> None:
    whole = conversation("a", "x", "y")
    path = write_lines(tmp_path / "in.jsonl", whole)
    recorded = read_conversations(path)[0].messages
    with LogStoreSaver.from_conn_string(uri, compaction="off") as saver:
        agent = build_graph(saver)
        from logstore.demo.graph import Recording

        config = {**thread("a"), "recursion_limit": 10}
        stream = agent.stream(
            {"messages": list(recorded[:1])},
            config,
            context=Recording(recorded),
            interrupt_before=["agent"],
        )
        list(stream)
        assert agent.get_state(config).next == ("agent",)
        report = Ingest(path, saver).run(1)
        assert report.problems == []
    assert read_back(uri, "a") == whole["messages"]


def test_a_file_that_is_not_there_is_named(uri: str, tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.jsonl", tmp_path):
        result = run("ingest", uri, path)
        assert result.exit_code == 1
        assert f"{path} cannot be read" in error_line(result)


def test_options_out_of_range_are_usage_errors(uri: str) -> None:
    for option in ("--threads", "--frequency"):
        assert run("ingest", uri, DEFAULT_INPUT, option, "0").exit_code == 2


def test_without_langgraph_it_says_what_to_install(uri: str) -> None:
    hide = "import sys; sys.modules['langgraph.graph'] = None"
    done = run_process("ingest", uri, DEFAULT_INPUT, before=hide)
    assert done.returncode == 1
    assert 'pip install "langgraph-checkpoint-logstore[langgraph]"' in error_line(done)


@pytest.mark.timeout(300)
@pytest.mark.skipif(os.name != "posix", reason="sends a POSIX signal")
def test_ctrl_c_ends_it_with_130_and_repeating_it_completes(uri: str, tmp_path: Path) -> None:
    turns = [f"turn {number}" for number in range(1000)]  # more than a slow signal lets through
    path = write_lines(tmp_path / "in.jsonl", *(conversation(f"t{i}", *turns) for i in range(2)))
    program = "from logstore.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "ingest", uri, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A suite that runs in a shell's background has Ctrl-C ignored, and hands that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    log = tmp_path / "store" / "log"
    deadline = time.monotonic() + 120
    while len(list(log.glob("*/*"))) < 10 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert stdout == ""
    known = [len(read_back(uri, f"t{i}")) for i in range(2)]
    assert 0 < sum(known) < 4000
    longer = [conversation(f"t{i}", *turns[: max(known) // 2 + 2]) for i in range(2)]
    report = run_json("ingest", uri, write_lines(path, *longer))
    assert report["threads"] == 2
    assert read_back(uri, "t0") == longer[0]["messages"]


@pytest.mark.timeout(300)
@pytest.mark.skipif(
    not AIRLINE.is_file(), reason="the recorded airline conversations are not beside this checkout"
)
def test_every_recorded_airline_conversation_comes_back_equal(uri: str) -> None:
    options: Any = {"compaction": "off", "durability": "buffered", "linger_s": 0.5}
    with LogStoreSaver.from_conn_string(uri, **options) as saver:
        report = Ingest(AIRLINE, saver).run(8)
    assert report.problems == []
    assert (report.threads, report.messages) == (126, 3450)
    compacted = compact(uri, graph=build_graph(None), frequency=10)
    assert compacted.total("snapshots") > 126
    assert not compacted.unfolded
    found = verify(uri, AIRLINE)
    assert found.differences == []
    assert found.messages == 3450
