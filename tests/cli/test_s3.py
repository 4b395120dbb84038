"""The commands and the demo on a real S3 server."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from compactor.commands.cli import app
from logstore import LogStoreSaver
from logstore.demo.conversations import DEFAULT_INPUT
from logstore.store import LogStore, StoreOptions
from logstore.testing.servers import BUCKET, CREDENTIALS
from tests.cli.conftest import error_line, run, run_json

pytestmark = [pytest.mark.s3, pytest.mark.timeout(300)]


@pytest.fixture
def s3_uri(seaweedfs_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix of its own on SeaweedFS."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    prefix = f"cli-{secrets.token_hex(6)}"
    return f"s3://{BUCKET}/{prefix}?endpoint_url={seaweedfs_endpoint}&region=us-east-1"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The two shortest of the project's conversations."""
    lines = DEFAULT_INPUT.read_text(encoding="utf-8").splitlines()
    path = tmp_path / "small.jsonl"
    path.write_text("\n".join(sorted(lines, key=len)[:2]), encoding="utf-8")
    return path


def test_the_demo_runs_on_s3_and_the_commands_look_at_it(
    s3_uri: str, small: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "logstore.demo", "--input", str(small), "--store", s3_uri]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert "0 differences" in done.stdout
    assert " checkpoint" in done.stdout
    stats = run_json("stats", s3_uri)
    assert stats["threads"] == 2
    assert stats["kinds"]["runs"]["objects"] > 0
    for row in run_json("threads", s3_uri)["threads"]:
        assert run_json("history", s3_uri, row["thread_id"])["checkpoints"]
        assert run_json("show", s3_uri, row["thread_id"])["head"]


def test_hints_name_the_whole_uri(s3_uri: str) -> None:
    assert f'logstore init "{s3_uri}"' in error_line(run("threads", s3_uri))
    run_json("init", s3_uri)
    assert f'logstore threads "{s3_uri}"' in error_line(run("show", s3_uri, "nobody"))


def test_a_bucket_that_is_not_there_is_named(s3_uri: str) -> None:
    uri = s3_uri.replace(f"//{BUCKET}/", "//no-such-bucket/")
    for command in (["stats"], ["threads"], ["init"], ["ingest", str(DEFAULT_INPUT)]):
        result = run(command[0], uri, *command[1:])
        assert result.exit_code == 1
        assert "no-such-bucket" in error_line(result)


def compactor(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--graph", "logstore.demo.graph:graph"])


def test_a_store_on_s3_is_verified_rebuilt_and_purged(s3_uri: str, small: Path) -> None:
    with closing(LogStore.open(s3_uri, StoreOptions(short_grace_s=1.0))) as store:
        store.create()
    run_json("ingest", s3_uri, small)
    assert compactor("run", s3_uri).exit_code == 0
    assert compactor("verify", s3_uri).exit_code == 0
    with closing(LogStore.open(s3_uri)) as store:
        keys = [info.key for page in store.objects.list("") for info in page.objects]
        lost = [k for k in keys if k.endswith("/manifest") or k.startswith(("manifests/", "log/"))]
        store.objects.delete(lost)
    assert compactor("verify", s3_uri).exit_code == 1
    assert compactor("rebuild", s3_uri).exit_code == 0
    result = compactor("verify", s3_uri)
    assert result.exit_code == 0, result.output
    first, *_ = (row["thread_id"] for row in run_json("threads", s3_uri)["threads"])
    with LogStoreSaver.from_conn_string(s3_uri) as saver:
        saver.delete_thread(first)
    result = compactor("run", s3_uri, "--purge")
    assert result.exit_code == 0, result.output
    with closing(LogStore.open(s3_uri)) as store:
        assert not [i.key for page in store.objects.list("log/") for i in page.objects]
        manifest, _ = store.reader.partition_manifest(store.partition(first))
        for live in manifest.runs:
            assert {r.kind for r in store.runs.rows(live, first)} <= {"tombstone"}
    assert compactor("verify", s3_uri).exit_code == 0
