"""The benchmarks for the operator's decision: their shapes and counts, never their times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from logstore.demo.conversations import DEFAULT_INPUT
from tests.benchmarks import channel_bench, compaction_bench, production_bench, storage_bench

UPDATES = 12


@pytest.fixture(scope="module")
def channel_rows() -> list[dict[str, Any]]:
    return run(
        channel_bench, "--updates", f"{UPDATES}", "--payload-bytes", "64",
        "--snapshot-frequencies", "1,4,1000",
    )  # fmt: skip


@pytest.fixture(scope="module")
def production_rows() -> list[dict[str, Any]]:
    return run(
        production_bench, "--turns", "6", "--payload-bytes", "256", "--snapshot-frequency", "4",
        "--reads", "1", "--history-limits", "5,20",
    )  # fmt: skip


def run(benchmark: Any, *arguments: str) -> list[dict[str, Any]]:
    """A benchmark's lines, after it has ended well."""
    lines: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(benchmark, "emit", lambda row: lines.append(json.loads(json.dumps(row))))
        assert benchmark.main(arguments) == 0
    return lines


def test_every_variant_of_the_channel_has_the_same_messages(
    channel_rows: list[dict[str, Any]],
) -> None:
    rows = [row for row in channel_rows if row["benchmark"] == "channel"]
    assert {row["backend"] for row in rows} == {
        "memory", "sqlite", "logstore", "logstore-compacted",
    }  # fmt: skip
    assert len(rows) == 16
    assert len({row["digest"] for row in rows} | {row["warm_digest"] for row in rows}) == 1
    assert {row["messages"] for row in rows} == {UPDATES}


def test_rows_and_bytes_mean_the_same_on_every_saver(channel_rows: list[dict[str, Any]]) -> None:
    rows = [row for row in channel_rows if row["benchmark"] == "channel"]
    for k in (None, 1, 4, 1000):
        same = [row for row in rows if row["snapshot_frequency"] == k]
        for name in ("checkpoint_rows", "value_rows", "write_rows", "value_bytes", "write_bytes"):
            assert len({row[name] for row in same}) == 1, (k, name)
        assert same[0]["checkpoint_rows"] == 3 * UPDATES


def test_ratios_are_delta_by_full(channel_rows: list[dict[str, Any]]) -> None:
    rows = {
        (row["backend"], row["snapshot_frequency"]): row
        for row in channel_rows
        if row["benchmark"] == "channel"
    }
    summary = [row for row in channel_rows if row["benchmark"] == "channel_summary"]
    assert len(summary) == 12
    for one in summary:
        delta, full = rows[one["backend"], one["snapshot_frequency"]], rows[one["backend"], None]
        expected = delta["value_bytes"] / full["value_bytes"]
        assert one["ratio_value_bytes"] == pytest.approx(expected, abs=1e-4)
    by_k = {one["snapshot_frequency"]: one for one in summary if one["backend"] == "logstore"}
    assert by_k[1000]["ratio_value_bytes"] < by_k[4]["ratio_value_bytes"] < 1


def test_the_agent_ends_equal_however_its_messages_are_kept(
    production_rows: list[dict[str, Any]],
) -> None:
    rows = [row for row in production_rows if row["benchmark"] == "production"]
    assert [row["variant"] for row in rows] == ["full", "inline", "bare", "compactor"]
    assert len({row["digest"] for row in rows}) == 1
    assert len({str(row["history_20_digests"]) for row in rows}) == 1
    assert {row["messages"] for row in rows} == {4 * (6 + production_bench.WARM_UP)}
    assert {row["puts"] for row in rows} == {5 * 6}


def test_the_compactor_takes_the_snapshots_off_the_write_path(
    production_rows: list[dict[str, Any]],
) -> None:
    spike = {
        row["variant"]: row["snapshot_byte_spike"]
        for row in production_rows
        if row["benchmark"] == "production_summary"
    }
    assert spike["compactor"] == spike["bare"] < spike["inline"]


def test_the_summary_has_what_the_operator_decides_by(
    production_rows: list[dict[str, Any]],
) -> None:
    summary = [row for row in production_rows if row["benchmark"] == "production_summary"]
    assert [row["variant"] for row in summary] == ["inline", "bare", "compactor"]
    for row in summary:
        assert row["snapshot_write_spike"] >= 1
        assert isinstance(row["cache_effect_ms"], float)
        assert row["ratio_run_p50_ms"] > 0


def test_messages_that_differ_end_a_benchmark_with_an_error() -> None:
    row = {
        "backend": "memory", "mode": "full", "snapshot_frequency": None, "updates": 2,
        "payload_bytes": 8, "digest": "a", "warm_digest": "a",
    }  # fmt: skip
    assert channel_bench.differing([row]) == ["memory, full, K = None"]
    assert production_bench.differing([{"digest": "a"}, {"digest": "b"}]) == ["digest"]


# -- storage ------------------------------------------------------------------------------


def test_the_storage_table_has_every_saver_and_every_bound(tmp_path: Path) -> None:
    recorded = tmp_path / "airline.jsonl"
    recorded.write_text("".join(DEFAULT_INPUT.read_text().splitlines(keepends=True)[:2]))
    lines = run(
        storage_bench, "--turns", "2,6", "--snapshot-frequencies", "2,1000",
        "--conversations", f"{recorded}",
    )  # fmt: skip
    rows = [line for line in lines if line["benchmark"] == "storage"]
    assert {(row["workload"], row["saver"], row["mode"]) for row in rows} == {
        (workload, saver, mode)
        for workload in ("words", "airline")
        for saver in ("memory", "sqlite", "logstore")
        for mode in ("full", "K=2", "K=1000")
    }
    assert {row["turns"] for row in rows if row["workload"] == "words"} == {2, 6}
    assert all(row["before_bytes"] > 0 and row["predicted_bytes"] > 0 for row in rows)
    own = [row for row in rows if row["saver"] == "logstore"]
    assert all(row["after_bytes"] < row["before_bytes"] < row["written_bytes"] for row in own)
    bounds = [line for line in lines if line["benchmark"] == "storage_bound"]
    assert len(bounds) == 3 * 3
    missed = [bound for bound in bounds if not bound["holds"]]
    assert all("less than InMemorySaver" in bound["what"] for bound in missed), "for many turns"
    assert all(bound["missed_by"].endswith("%") for bound in missed)


def test_the_compaction_benchmark_merges_all_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert compaction_bench.main(["--megabytes", "1"]) == 0
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert row["rows"] == 8 * ((1 << 20) // (8 * compaction_bench.VALUE_BYTES))
    assert row["mb_a_second_and_core"] > 0
