"""`logstore init` and `logstore stats`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Stocked, error_line, run, run_json


def test_init_creates_a_store_once(uri: str) -> None:
    first = run_json("init", uri, "--partitions", "3")
    assert first["created"]
    assert first["settings"] == {
        "partitions": 3,
        "short_grace_s": 300.0,
        "long_grace_s": 3600.0,
    }
    again = run_json("init", uri)
    assert not again["created"]
    assert again["settings"] == first["settings"]
    assert run_json("init", uri, "--partitions", "3") == again


def test_init_tells_people_the_settings(uri: str) -> None:
    result = run("init", uri)
    assert result.exit_code == 0
    assert f"created {uri}" in result.stdout
    assert "partitions   4" in result.stdout


def test_init_with_another_count_is_an_error(uri: str) -> None:
    run_json("init", uri, "--partitions", "3")
    result = run("init", uri, "--partitions", "5")
    assert result.exit_code == 1
    assert "has 3 partitions" in error_line(result)


def test_a_count_that_no_store_can_have_is_a_usage_error(uri: str, tmp_path: Path) -> None:
    for count in ("0", "4097", "many"):
        assert run("init", uri, "--partitions", count).exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_stats_of_an_empty_store(uri: str) -> None:
    run_json("init", uri, "--partitions", "2")
    found = run_json("stats", uri)
    assert found["threads"] == 0
    assert found["kinds"]["log"] == {"objects": 0, "bytes": 0}
    assert [part["tail_segments"] for part in found["partitions"]] == [0, 0]
    assert run("stats", uri).exit_code == 0


def test_stats_before_a_compaction_show_the_tail(stocked: Stocked) -> None:
    found = run_json("stats", stocked.uri)
    segments = list(stocked.folder.glob("log/*/*"))
    assert found["settings"]["partitions"] == 4
    assert found["kinds"]["log"] == {
        "objects": len(segments),
        "bytes": sum(path.stat().st_size for path in segments),
    }
    assert sum(part["tail_segments"] for part in found["partitions"]) == len(segments)
    assert all(part["oldest_tail_s"] >= 0 for part in found["partitions"] if part["tail_segments"])
    assert found["kinds"]["runs"]["objects"] == 0
    assert found["threads"] == len(stocked.conversations)
    assert found["problems"] == []


def test_stats_after_a_compaction_show_the_runs(compacted: Stocked) -> None:
    found = run_json("stats", compacted.uri)
    assert sum(part["tail_segments"] for part in found["partitions"]) == 0
    assert sum(part["runs"] for part in found["partitions"]) == found["kinds"]["runs"]["objects"]
    assert sum(part["waiting"] for part in found["partitions"]) == found["kinds"]["log"]["objects"]
    assert found["threads"] == len(compacted.conversations)
    text = run("stats", compacted.uri).stdout
    assert f"{len(compacted.conversations)} threads, 4 partitions" in text
    assert "snapshots" in text
