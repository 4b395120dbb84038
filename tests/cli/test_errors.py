"""Whatever is wrong: one line that names it and the remedy, and an exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from langgraph.checkpoint.base import empty_checkpoint

from logstore import LogStoreSaver
from logstore.cli.common import human_bytes, human_seconds
from logstore.records import Kind, Record, checksum_of
from logstore.store import LogStore
from tests.cli.conftest import error_line, run, run_json, run_process
from tests.helpers import thread

LOOKING = (["threads"], ["history", "t"], ["show", "t"], ["stats"])


def with_uri(command: list[str], uri: str) -> list[str]:
    return [command[0], uri, *command[1:]]


@pytest.fixture
def written(uri: str, tmp_path: Path) -> Path:
    """A store's directory, with a thread in one segment."""
    with LogStoreSaver.from_conn_string(uri, compaction="off", partitions=1) as saver:
        saver.put(thread("t", ""), empty_checkpoint(), {"source": "input", "step": -1}, {})
    return tmp_path / "store"


@pytest.mark.parametrize("command", LOOKING, ids=lambda c: c[0])
def test_looking_for_a_store_does_not_create_one(
    command: list[str], uri: str, tmp_path: Path
) -> None:
    result = run(*with_uri(command, uri))
    assert result.exit_code == 1
    assert f'logstore init "{uri}"' in error_line(result)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "store").mkdir()
    assert "logstore init" in error_line(run(*with_uri(command, uri)))


@pytest.mark.parametrize("command", [*LOOKING, ["init"], ["ingest", "x.jsonl"]], ids=lambda c: c[0])
def test_a_uri_that_is_none_is_a_usage_error(command: list[str]) -> None:
    for uri in ("somewhere", "ftp://host/dir", "file:relative"):
        result = run(*with_uri(command, uri))
        assert result.exit_code == 2
        assert "file:///dir" in error_line(result)


@pytest.mark.parametrize("command", [*LOOKING, ["init"], ["ingest", "x.jsonl"]], ids=lambda c: c[0])
def test_a_store_in_memory_is_out_of_reach(command: list[str]) -> None:
    result = run(*with_uri(command, "memory://name"))
    assert result.exit_code == 1
    assert "memory of the program" in error_line(result)


@pytest.mark.parametrize("command", LOOKING, ids=lambda c: c[0])
def test_a_truncated_segment_is_named(command: list[str], uri: str, written: Path) -> None:
    (segment,) = written.glob("log/*/*")
    segment.write_bytes(segment.read_bytes()[:-20])
    result = run(*with_uri(command, uri))
    assert result.exit_code == 1
    assert segment.name in error_line(result)
    assert "truncated or damaged" in error_line(result)


def test_stats_show_the_rest_of_a_damaged_store(uri: str, written: Path) -> None:
    (segment,) = written.glob("log/*/*")
    segment.write_bytes(b"PAR1")
    result = run("stats", uri, "--json")
    assert result.exit_code == 1
    doc = json.loads(result.stdout)
    assert doc["threads"] is None
    assert doc["kinds"]["log"]["objects"] == 1
    assert segment.name in doc["problems"][0]


def test_a_broken_manifest_is_named(uri: str, written: Path) -> None:
    (written / "manifests").mkdir()
    (written / "manifests" / "partition=0000").write_bytes(b"LSM but not really")
    for command in (["threads"], ["history", "t"], ["stats"]):
        result = run(*with_uri(command, uri))
        assert result.exit_code == 1
        assert "manifests/partition=0000" in error_line(result)


def test_a_store_of_a_newer_format_is_refused(uri: str, written: Path) -> None:
    doc = json.loads((written / "store.json").read_text())
    (written / "store.json").write_text(json.dumps({**doc, "format": 99}))
    for command in LOOKING:
        result = run(*with_uri(command, uri))
        assert result.exit_code == 1
        assert "upgrade langgraph-checkpoint-logstore" in error_line(result)


def test_a_value_that_fails_its_checksum_does_not_hide_the_others(uri: str, written: Path) -> None:
    with LogStoreSaver.from_conn_string(uri, compaction="off") as saver:
        head = saver.get_tuple(thread("t"))
        assert head is not None
        checkpoint_id = head.checkpoint["id"]
        writes = [
            Record(
                *("t", "", checkpoint_id, Kind.WRITE, channel),
                task_id="task",
                idx=idx,
                type="msgpack",
                value=value,
                checksum=checksum_of("msgpack", good),
            )
            for idx, (channel, value, good) in enumerate(
                [("a", b"\x01", b"\x02"), ("b", b"\x02", b"\x02")]
            )
        ]
        saver.store.write("t", writes)
    result = run("show", uri, "t", "--json")
    assert result.exit_code == 1
    assert "fails its checksum" in error_line(result)
    bad, good = json.loads(result.stdout)["pending_writes"]
    assert "checksum" in bad["error"]
    assert "value" not in bad
    assert good["value"] == 2
    assert "fails its checksum" in run("show", uri, "t").stdout


def test_a_segment_that_somebody_deleted_does_not_hide_the_rest(uri: str, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    messages = [{"role": role, "content": "x"} for role in ("user", "assistant") * 3]
    path.write_text(json.dumps({"thread_id": "t", "messages": messages}))
    run_json("ingest", uri, path)
    ids = [row["checkpoint_id"] for row in run_json("history", uri, "t")["checkpoints"]]
    segments = sorted((tmp_path / "store").glob("log/*/*"), key=lambda path: path.name)
    for segment in segments[len(segments) // 2 :]:
        body = segment.read_bytes()
        segment.unlink()
        left = [row["checkpoint_id"] for row in run_json("history", uri, "t")["checkpoints"]]
        if left and left[0] == ids[0] and len(left) < len(ids):
            break
        segment.write_bytes(body)
    rows = run_json("history", uri, "t")["checkpoints"]
    (orphan,) = [row for row in rows if row["parent_missing"]]
    assert f"{orphan['parent_checkpoint_id']} (missing)" in run("history", uri, "t").stdout
    result = run("show", uri, "t", "--json")
    assert result.exit_code == 1
    assert "does not exist" in error_line(result)
    doc = json.loads(result.stdout)
    assert doc["checkpoint_id"] == ids[0]
    assert "needs its ancestor" in doc["channels"]["messages"]["error"]
    assert doc["metadata"]["value"]["source"] == "loop"
    assert "needs its ancestor" in run("show", uri, "t").stdout
    assert "needs its ancestor" in run("show", uri, "t", "--channel", "messages").stdout


def test_a_name_that_is_too_long_is_a_usage_error(uri: str, written: Path) -> None:
    result = run("show", uri, "x" * 9000)
    assert result.exit_code == 2
    assert "at most 8192" in error_line(result)


def test_the_installed_command_fails_as_well_as_it_should(uri: str) -> None:
    done = run_process("threads", uri)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "logstore init" in error_line(done)
    assert run_process("threads").returncode == 2
    assert run_process("thread", uri).returncode == 2


def test_help_teaches() -> None:
    top = run("--help").stdout
    for command in ("init", "threads", "history", "show", "stats", "ingest"):
        assert command in top
        text = run(command, "--help").stdout
        assert "Examples:" in text
        assert f"logstore {command} file:///" in text


def test_sizes_and_spans_for_people() -> None:
    assert [human_bytes(n) for n in (0, 1023, 1024, 5 << 20, 3 << 50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 MiB",
        "3072.0 TiB",
    ]
    assert [human_seconds(s) for s in (-1, 5, 600, 7200, 10**6)] == [
        "0 s",
        "5 s",
        "10 min",
        "2 h",
        "12 days",
    ]


def test_closing_is_not_forgotten(uri: str, written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[LogStore] = []
    original = LogStore.close
    monkeypatch.setattr(LogStore, "close", lambda self: (closed.append(self), original(self))[1])
    run_json("stats", uri)
    run("show", uri, "nobody")
    assert len(closed) == 2
