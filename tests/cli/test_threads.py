"""`logstore threads` and `logstore history`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint

from logstore import LogStoreSaver
from tests.cli.conftest import Stocked, run, run_json
from tests.helpers import thread


@pytest.fixture(params=["stocked", "compacted"])
def store(request: pytest.FixtureRequest) -> Stocked:
    """The store before and after a compaction."""
    found: Stocked = request.getfixturevalue(request.param)
    return found


def saved(store: Stocked, thread_id: str) -> list[Any]:
    """The thread's checkpoints as the saver lists them, newest first."""
    with LogStoreSaver.from_conn_string(store.uri, compaction="off") as saver:
        return list(saver.list(thread(thread_id, "")))


def test_threads_shows_all_but_the_deleted(store: Stocked) -> None:
    found = run_json("threads", store.uri)
    by_id = {row["thread_id"]: row for row in found["threads"]}
    assert set(by_id) == {c["thread_id"] for c in store.conversations}
    assert not found["more"]
    heads = [row["head"] for row in found["threads"]]
    assert found["threads"][0]["thread_id"] == store.forked
    for thread_id, row in by_id.items():
        tuples = saved(store, thread_id)
        assert row["head"] == tuples[0].checkpoint["id"]
        assert row["step"] == tuples[0].metadata["step"]
        assert datetime.fromisoformat(row["ts"]).tzinfo is not None
    assert by_id[store.linear]["checkpoints"] == len(saved(store, store.linear))
    assert by_id[store.forked]["namespaces"] == ["", "sub:task"]
    assert by_id[store.forked]["checkpoints"] == len(saved(store, store.forked)) + 1
    assert sorted(heads[1:], reverse=True) == heads[1:]


def test_threads_keeps_to_the_limit_and_says_so(store: Stocked) -> None:
    found = run_json("threads", store.uri, "--limit", "2")
    assert len(found["threads"]) == 2
    assert found["more"]
    assert "--limit 0 shows all" in run("threads", store.uri, "--limit", "2").stdout
    assert len(run_json("threads", store.uri, "--limit", "0")["threads"]) == 3


def test_threads_for_people(store: Stocked) -> None:
    text = run("threads", store.uri).stdout
    assert store.linear in text
    assert "sub:task" in text
    assert "gone" not in text


def test_history_shows_every_checkpoint_and_the_fork(store: Stocked) -> None:
    found = run_json("history", store.uri, store.forked)
    rows, tuples = found["checkpoints"], saved(store, store.forked)
    assert [row["checkpoint_id"] for row in rows] == [t.checkpoint["id"] for t in tuples]
    for row, expected in zip(rows, tuples, strict=True):
        parent = expected.parent_config
        assert row["parent_checkpoint_id"] == (parent and parent["configurable"]["checkpoint_id"])
        assert (row["step"], row["source"]) == (
            expected.metadata["step"],
            expected.metadata["source"],
        )
        assert row["writes"] == len(expected.pending_writes)
    assert [row["head"] for row in rows] == [True] + [False] * (len(rows) - 1)
    assert sum(not row["on_path"] for row in rows) == 4
    base = next(row for row in rows if row["children"] == 2)
    assert base["on_path"]
    assert {
        row["on_path"] for row in rows if row["parent_checkpoint_id"] == base["checkpoint_id"]
    } == {
        True,
        False,
    }
    assert found["namespaces"] == ["", "sub:task"]


def test_history_for_people_marks_head_and_fork(store: Stocked) -> None:
    lines = run("history", store.uri, store.forked).stdout.splitlines()
    assert lines[1].startswith("head")
    assert sum(line.startswith("fork") for line in lines) == 4
    assert "'sub:task'" in lines[-1]
    limited = run("history", store.uri, store.forked, "--limit", "2").stdout
    assert "the newest 2 of" in limited


def test_history_of_another_namespace(store: Stocked) -> None:
    found = run_json("history", store.uri, store.forked, "--ns", "sub:task")
    (row,) = found["checkpoints"]
    assert (row["step"], row["writes"], row["parent_checkpoint_id"]) == (7, 2, None)


def test_history_tells_where_values_and_snapshots_are(compacted: Stocked, stocked: Stocked) -> None:
    def with_snapshot(store: Stocked) -> list[str]:
        rows = run_json("history", store.uri, store.conversations[2]["thread_id"])["checkpoints"]
        return [row["checkpoint_id"] for row in rows if "messages" in row["snapshots"]]

    assert with_snapshot(stocked) == []
    assert len(with_snapshot(compacted)) >= 2
    with LogStoreSaver.from_conn_string(compacted.uri, compaction="off") as saver:
        config = thread(compacted.conversations[2]["thread_id"])
        inline = {
            t.checkpoint["id"]
            for t in saver.list({**config})
            if "messages" in t.checkpoint["channel_values"]
        }
    assert inline == set(with_snapshot(compacted))


def test_a_name_that_would_steer_the_terminal_is_escaped(tmp_path: Path) -> None:
    uri = tmp_path.as_uri()
    name = "evil\x1b[31m[red]\n/[/red]"
    with LogStoreSaver.from_conn_string(uri, compaction="off") as saver:
        saver.put(thread(name, ""), empty_checkpoint(), {"source": "input", "step": -1}, {})
    text = run("threads", uri).stdout
    assert "evil\\x1b[31m[red]\\n/[/red]" in text
    assert "\x1b" not in text
    assert run_json("threads", uri)["threads"][0]["thread_id"] == name
    assert run("history", uri, name).exit_code == 0


def test_a_recreated_thread_shows_again(tmp_path: Path) -> None:
    uri = tmp_path.as_uri()
    with LogStoreSaver.from_conn_string(uri, compaction="off") as saver:
        for _ in range(2):
            saver.put(thread("t", ""), empty_checkpoint(), {"source": "input", "step": -1}, {})
            (row,) = run_json("threads", uri)["threads"]
            assert row["checkpoints"] == 1
            saver.delete_thread("t")
            assert run_json("threads", uri)["threads"] == []
            assert run_json("stats", uri)["threads"] == 0
        saver.put(thread("t", ""), empty_checkpoint(), {"source": "input", "step": -1}, {})
    assert run_json("stats", uri)["threads"] == 1
