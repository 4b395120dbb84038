"""A store with a little of everything, and ways to run the commands on it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from typer.testing import CliRunner, Result

from compactor import compact
from logstore import LogStoreSaver
from logstore.cli import app
from logstore.demo.conversations import DEFAULT_INPUT
from logstore.demo.graph import Recording, build_graph, graph
from logstore.demo.ingest import Ingest
from tests.helpers import thread

MESSAGE = {"role": "user", "content": "hello"}


def run(*arguments: object) -> Result:
    """A command, in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run_json(*arguments: object) -> Any:
    """A command's document."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def run_process(*arguments: object, before: str = "") -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, perhaps after some lines of Python."""
    program = f"{before}\nfrom logstore.cli import main\nmain()"
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def error_line(result: Result | subprocess.CompletedProcess[str]) -> str:
    """The one line that a failed command says on stderr, without its mark."""
    assert "Traceback" not in result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


@dataclass(frozen=True)
class Stocked:
    """A store with conversations, a fork, a subgraph's namespace and a deleted thread."""

    uri: str
    folder: Path
    conversations: tuple[dict[str, Any], ...]

    @property
    def forked(self) -> str:
        """The thread that has a fork and a second namespace."""
        return str(self.conversations[0]["thread_id"])

    @property
    def linear(self) -> str:
        """A thread as it was ingested."""
        return str(self.conversations[1]["thread_id"])


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """The URI of a directory that does not exist."""
    return (tmp_path / "store").as_uri()


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Stocked:
    """The store before any compaction."""
    folder = tmp_path_factory.mktemp("stocked")
    return _stock(folder)


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> Stocked:
    """The same after one compaction."""
    folder = tmp_path_factory.mktemp("compacted")
    stock = _stock(folder)
    compact(stock.uri, graph=graph)
    return stock


def _stock(folder: Path) -> Stocked:
    uri = (folder / "store").as_uri()
    lines = DEFAULT_INPUT.read_text(encoding="utf-8").splitlines()[:3]
    source = folder / "input.jsonl"
    source.write_text("\n".join(lines), encoding="utf-8")
    with LogStoreSaver.from_conn_string(uri, compaction="off") as saver:
        report = Ingest(source, saver).run(3)
        assert not report.problems
        conversations = tuple(map(json.loads, lines))
        _fork(saver, conversations[0]["thread_id"])
        saver.put(thread("gone", ""), empty_checkpoint(), {"source": "input", "step": -1}, {})
        saver.delete_thread("gone")
    return Stocked(uri, folder / "store", conversations)


def _fork(saver: LogStoreSaver, thread_id: str) -> None:
    """Go on from an older checkpoint, so that the head moves, and add a namespace."""
    agent = build_graph(saver)
    older = list(agent.get_state_history(thread(thread_id)))[4]
    agent.invoke({"messages": []}, older.config, context=Recording([]))
    checkpoint = empty_checkpoint()
    metadata: Any = {"source": "loop", "step": 7}
    config = saver.put(thread(thread_id, "sub:task"), checkpoint, metadata, {})
    saver.put_writes(config, [("out", "first"), ("out", b"second")], "task-1")
