"""The demo: write, compact, read back in a fresh process, compare."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from logstore.demo.__main__ import fresh_directory
from logstore.demo.conversations import DEFAULT_INPUT
from tests.cli.conftest import run_json

pytestmark = pytest.mark.timeout(300)


def run_module(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A module of the demo as a process in a directory."""
    return subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=250,
    )


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The two shortest of the project's conversations."""
    lines = DEFAULT_INPUT.read_text(encoding="utf-8").splitlines()
    path = tmp_path / "small.jsonl"
    path.write_text("\n".join(sorted(lines, key=len)[:2]), encoding="utf-8")
    return path


def test_the_demo_writes_compacts_and_finds_no_difference(tmp_path: Path, small: Path) -> None:
    done = run_module(tmp_path, "logstore.demo", "--input", small)
    assert done.returncode == 0, done.stderr
    assert "0 differences" in done.stdout
    assert "Traceback" not in done.stderr
    assert "compactor run file://" in done.stderr
    uri = (tmp_path / "demo-store").as_uri()
    stats = run_json("stats", uri)
    assert stats["threads"] == 2
    assert sum(part["tail_segments"] for part in stats["partitions"]) == 0
    files = [str(path) for path in (tmp_path / "demo-store").glob("runs/*/*.parquet")]
    with duckdb.connect() as connection:
        sql = "SELECT count(*) FROM read_parquet($1) WHERE kind = 'checkpoint'"
        ((count,),) = connection.execute(sql, [files]).fetchall()
    assert f"{count} checkpoint" in done.stdout
    assert f"{count} in" in done.stdout


def test_the_demo_begins_with_a_fresh_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fresh_directory(Path("demo-store")) == (tmp_path / "demo-store").as_uri()
    (tmp_path / "demo-store" / "log").mkdir()
    fresh_directory(Path("demo-store"))
    assert [path.name for path in (tmp_path / "demo-store").iterdir()] == ["DEMO_STORE"]


def test_the_demo_adds_to_a_store_that_is_named(tmp_path: Path, small: Path) -> None:
    uri = (tmp_path / "mine").as_uri()
    run_json("ingest", uri, small)
    done = run_module(tmp_path, "logstore.demo", "--input", small, "--store", uri)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "demo-store").exists()
    assert run_json("stats", uri)["threads"] == 2


def test_the_demo_removes_nothing_that_it_did_not_make(tmp_path: Path, small: Path) -> None:
    (tmp_path / "demo-store").mkdir()
    (tmp_path / "demo-store" / "diary").write_text("mine")
    done = run_module(tmp_path, "logstore.demo", "--input", small)
    assert done.returncode == 1
    assert "no demo made it" in done.stderr
    assert (tmp_path / "demo-store" / "diary").read_text() == "mine"


def test_the_demo_names_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"thread_id": "a", "messages": []}\n')
    done = run_module(tmp_path, "logstore.demo", "--input", path)
    assert done.returncode == 1
    assert "bad.jsonl:1: " in done.stderr
    assert "Traceback" not in done.stderr


def test_verify_finds_a_difference(tmp_path: Path, small: Path) -> None:
    uri = (tmp_path / "store").as_uri()
    run_json("ingest", uri, small)
    same = run_module(tmp_path, "logstore.demo.verify", uri, small)
    assert same.returncode == 0
    assert json.loads(same.stdout)["differences"] == []
    documents = [json.loads(line) for line in small.read_text(encoding="utf-8").splitlines()]
    documents[0]["messages"][2]["content"] += "!"
    documents[1]["messages"].append({"role": "user", "content": "more"})
    small.write_text("\n".join(map(json.dumps, documents)), encoding="utf-8")
    other = run_module(tmp_path, "logstore.demo.verify", uri, small)
    assert other.returncode == 1
    first, second = json.loads(other.stdout)["differences"]
    assert first.endswith("message 2 differs")
    assert "read back" in second


def test_verify_of_a_store_that_is_not_there_finds_nothing_equal(
    tmp_path: Path, small: Path
) -> None:
    done = run_module(tmp_path, "logstore.demo.verify", (tmp_path / "no").as_uri(), small)
    assert done.returncode == 1
    assert json.loads(done.stdout)["messages"] == 0
    assert run_module(tmp_path, "logstore.demo.verify").returncode == 2
