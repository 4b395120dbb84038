"""What README.md and infra/README.md show works as it stands there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from compactor.commands.config import load_operation
from logstore import LogStoreSaver
from logstore.cli import app
from tests.cli.conftest import run, run_json
from tests.helpers import Script

ROOT = Path(__file__).parents[2]


def blocks(name: str, language: str) -> list[str]:
    """The fenced blocks of a language in a document."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_example_runs(tmp_path: Path) -> None:
    example = blocks("README.md", "python")[0]
    assert len([line for line in example.splitlines() if line]) <= 15
    uri = (tmp_path / "store").as_uri()
    program = example.replace("file:///var/lib/agents", uri)
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)
    shown = run_json("show", uri, "customer-42")["channels"]["messages"]
    written = [message for write in shown["writes"] for message in write["value"]]
    seed = shown["seed"]["value"]["value"] if shown["seed"] else []
    assert seed + written == ["hello", "answer 1"]


def test_the_example_of_a_configuration_runs(tmp_path: Path) -> None:
    (config,) = blocks("README.md", "yaml")
    program = blocks("README.md", "python")[1]
    uri = (tmp_path / "store").as_uri()
    (tmp_path / "config.yaml").write_text(config.replace("file:///var/lib/agents", uri))
    command = [sys.executable, "-W", "error", "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, timeout=60, cwd=tmp_path, env=environment)
    shown = run_json("show", uri, "customer-42")
    assert shown["metadata"]["value"]["deerflow_checkpoint_channel_mode"] == "delta"
    done = run_json("doctor", uri, "--config", str(tmp_path / "config.yaml"))
    assert not [finding for finding in done["findings"] if finding["problem"]]


def test_the_calls_that_delete_prune_and_copy_run(tmp_path: Path) -> None:
    calls = blocks("README.md", "python")[2]
    with LogStoreSaver.from_conn_string((tmp_path / "store").as_uri(), compaction="off") as saver:
        for name in ("42", "43"):
            Script([saver], name).chain(3)
        exec(calls, {"saver": saver})
        shown = [c.config["configurable"]["thread_id"] for c in saver.list(None)]
    assert shown == ["43"]


def test_the_retention_that_is_shown_is_understood(tmp_path: Path) -> None:
    (text,) = blocks("README.md", "toml")
    path = tmp_path / "compactor.toml"
    path.write_text(text)
    assert load_operation(config=path).retention.rule_of("scratch-1").max_age_s == 86_400


def test_every_command_that_is_named_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    known = {command.callback.__name__ for command in app.registered_commands if command.callback}
    named = set(re.findall(r"^    logstore (\w+) URI", text, re.MULTILINE))
    assert {"threads", "history", "show", "stats", "ingest"} <= named
    assert named <= known
    assert run("init", "--help").exit_code == 0


def test_the_permissions_are_json() -> None:
    (policy,) = blocks("infra/README.md", "json")
    actions = [s["Action"] for s in json.loads(policy)["Statement"]]
    assert actions == [["s3:GetObject", "s3:PutObject", "s3:DeleteObject"], "s3:ListBucket"]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_explains_itself() -> None:
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in ("demo", "test", "check", "clean"):
        assert f"make {target}" in done.stdout
