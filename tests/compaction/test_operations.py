"""Jobs as operators run them: planned, limited in time, over some partitions, and purging."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import get_checkpoint_id
from langgraph.checkpoint.memory import InMemorySaver
from typer.testing import CliRunner, Result

from compactor import Outcome, compact
from compactor.cleaning.purge import purge
from compactor.commands.cli import app
from compactor.commands.dryrun import DryRunStore
from compactor.commands.options import parse_partitions
from compactor.folding.channels import default_serde, table_of
from compactor.job import Job
from compactor.verifying.verify import verify
from logstore import LogStoreSaver
from logstore.errors import InvalidOptionError
from logstore.keys import partition_of
from logstore.store import LogStore, StoreOptions
from logstore.testing.counting import CountingStore
from tests.compaction.damage import overwrite, read, the_manifest
from tests.helpers import Place, Script, append, assert_same_tuple, memory_place, rebuilt, thread

D = {"d": DeltaChannel(append, list, snapshot_frequency=2)}
READS = {"get", "get_range", "get_if_changed", "list"}


def job(store: LogStore, **options: Any) -> Job:
    return Job(store, table_of(channels=D), default_serde(), **options)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def assert_like(place: Place, model: InMemorySaver, thread_id: str = "t") -> None:
    with place.fresh() as saver:
        for entry in model.list(thread(thread_id)):
            assert_same_tuple(saver.get_tuple(entry.config), entry)
            assert rebuilt(saver, entry.config, D) == rebuilt(model, entry.config, D)


# -- dry runs --------------------------------------------------------------------------


def test_a_dry_run_tells_exactly_what_the_job_then_does_and_writes_nothing(
    place: Place, tmp_path: Path
) -> None:
    script = Script([place.saver()])
    last = script.chain(9)[-1]
    place.compact(channels=D)
    script.write(last, "x" * 300_000)
    script.chain(5, script.put(last))
    counting = CountingStore(LogStore.open(place.uri).objects)
    plan = DryRunStore(counting, tmp_path)
    before = {key: read(place, key) for key in place.keys()}
    planned = job(LogStore(plan)).run()
    merged = [one.key for one in plan.inputs() if one.key.startswith("log/")]
    made, voided = plan.snapshots()
    assert counting.counts.keys() <= READS
    assert {key: read(place, key) for key in place.keys()} == before
    done = place.compact(channels=D)
    for name in ("segments_merged", "runs_merged", "rows_written", "snapshots", "manifests"):
        assert getattr(planned.partitions[0], name) == getattr(done.partitions[0], name)
    folders = sorted(write.key.split("/")[0] for write in plan.written)
    new = [k for k in place.keys() if read(place, k) != before.get(k)]
    assert folders == sorted(key.split("/")[0] for key in new)
    assert set(plan.deleted) == before.keys() - set(place.keys())
    assert len(merged) == done.total("segments_merged")
    assert len(made) == done.total("snapshots") > 0
    assert not voided
    with place.fresh() as saver:
        held = {
            get_checkpoint_id(entry.config)
            for entry in saver.list(thread("t"))
            if "d" in entry.checkpoint["channel_values"]
        }
    assert {one.checkpoint_id for one in made} <= held
    assert {one.thread_id for one in made} == {"t"}


def test_the_commands_dry_run_prints_inputs_outputs_and_bytes(tmp_path: Path) -> None:
    uri = (tmp_path / "store").as_uri()
    with LogStoreSaver.from_conn_string(uri, compaction="off") as saver:
        Script([saver]).chain(5)
    text = run("run", uri, "--dry-run").stdout
    assert "nothing was written" in text
    assert "runs/partition=" in text
    assert "segments" in text
    doc = json.loads(run("run", uri, "--dry-run", "--json").stdout)
    assert doc["would_merge"]
    assert all(one["size"] > 0 for one in doc["would_write"] + doc["would_merge"])
    assert not (tmp_path / "store" / "runs").exists()
    assert run("run", uri, "--dry-run", "--purge").exit_code == 2


# -- partitions and time -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, None), ("0", [0]), ("0,3-5", [0, 3, 4, 5]), (" 7 , 2-2", [2, 7])],
)
def test_partitions_are_numbers_and_ranges(text: str | None, expected: list[int] | None) -> None:
    assert parse_partitions(text) == expected


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "-1", "1-"])
def test_a_list_of_partitions_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidOptionError, match="--partitions"):
        parse_partitions(text)


@pytest.fixture
def four() -> Iterator[Place]:
    """A store with a thread in each of four partitions."""
    with memory_place(partitions=4, short_grace_s=0, long_grace_s=0) as place:
        names: dict[int, str] = {}
        while len(names) < 4:
            name = secrets.token_hex(4)
            names.setdefault(partition_of(name, 4), name)
        saver = place.saver()
        for name in names.values():
            Script([saver], name).chain(3)
        yield place


def test_jobs_that_are_cut_off_get_round_all_partitions(four: Place) -> None:
    done: list[int] = []
    for left in (3, 2, 1, 0):
        report = four.compact(max_runtime_s=0)
        (part,) = report.partitions
        assert part.outcome == Outcome.COMMITTED
        done.append(part.partition)
        assert len(report.unfinished) == 3
        waiting = len({key.split("/")[1] for key in four.keys("log/")})
        assert waiting >= left
    assert sorted(done) == [0, 1, 2, 3]


def test_a_long_log_is_committed_in_batches_that_read_right_at_each_point(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compactor.job.BATCH_SEGMENTS", 7)
    first, second, model = place.saver(), place.saver(), InMemorySaver()
    one = Script([first, model])
    line = one.chain(8)
    # Another process goes on from what the first one wrote, and the first from that.
    for number in range(6):
        script = Script([second if number % 2 else first, model], _serial=100 + 10 * number)
        script._known.update(one._known)
        at = script.put(line[-1])
        script.write(at, number)
        one._known.update(script._known)
        line.append(at)
    left = []
    for _ in range(20):
        report = place.compact(channels=D, max_runtime_s=0)
        left.append(report.partitions[0].segments_left)
        assert_like(place, model)
        if not left[-1]:
            break
    assert left == sorted(left, reverse=True)
    assert len(left) > 2
    assert left[-1] == 0
    with memory_place() as at_once:
        Script([at_once.saver()]).chain(8)
        report = at_once.compact(channels=D, max_runtime_s=60)
        assert report.partitions[0].segments_left == 0
        assert report.total("segments_merged") > 7


def test_the_time_that_a_service_or_job_has_shows_in_its_report(tmp_path: Path) -> None:
    uri = (tmp_path / "store").as_uri()
    with LogStoreSaver.from_conn_string(uri, compaction="off") as saver:
        Script([saver]).chain(3)
    result = run("run", uri, "--max-runtime", "0")
    assert "left to the next job" in result.stdout
    assert json.loads(run("run", uri, "--max-runtime", "0", "--json").stdout)["unfinished"]


# -- purging and sweeping ------------------------------------------------------------------


SECRET = "the secret of the thread " * 8_000
"""Large enough for a snapshot object."""


def test_after_a_purge_nothing_of_a_deleted_thread_is_left() -> None:
    with memory_place(short_grace_s=0.2) as place:
        saver = place.saver()
        script = Script([saver])
        line = script.chain(3)
        script.write(line[-1], SECRET)
        script.chain(4, script.put(line[-1], values={"x": SECRET}, updates=("d", "x")))
        place.compact(channels=D)
        assert place.keys("values/")
        saver.delete_thread("t")
        told: list[str] = []
        with place.store() as store:
            first, last = purge(job(store, purge=True), 0.2, None, told.append)
        assert first.total("runs_written") == 1
        assert last.total("segments_deleted") > 0
        assert last.total("runs_deleted") == 1
        assert any("waiting" in text for text in told)
        # One run is left, with the tombstone, and the thread's grave.
        assert len(place.keys("runs/")) == 1
        assert {record.kind for record in place.run_records()} == {"tombstone"}
        assert not place.keys("log/")
        assert place.keys("snapshots/") == [the_manifest(place)]
        assert not place.keys("values/")
        with place.store() as store:
            assert not verify(store, table_of(channels=D), default_serde()).findings


def test_the_command_purges_and_shows_what_it_waits_for(tmp_path: Path) -> None:
    uri = (tmp_path / "store").as_uri()
    with_short_grace = LogStore.open(uri, StoreOptions(short_grace_s=0.1))
    with_short_grace.create()
    with_short_grace.close()
    with LogStoreSaver.from_conn_string(uri, compaction="off") as saver:
        Script([saver]).chain(3)
        saver.delete_thread("t")
    result = run("run", uri, "--purge")
    assert result.exit_code == 0, result.output
    assert "purged" in result.stdout
    assert not list((tmp_path / "store" / "log").rglob("*.parquet"))


def test_what_a_killed_job_left_of_large_values_is_swept() -> None:
    with memory_place(short_grace_s=0, long_grace_s=0) as place:
        script = Script([place.saver()])
        line = script.chain(3)
        script.write(line[-1], "x" * 300_000)
        script.chain(4, script.put(line[-1]))
        place.compact(channels=D)
        baseline = set(place.keys("values/"))
        named = sorted(baseline)
        stray = named[0].rsplit("-", 1)[0] + "-0123456789abcdef"
        overwrite(place, stray, read(place, named[0]))
        with place.store() as store:
            report = job(store, purge=True).run()
        assert report.total("objects_deleted") == 1
        assert set(place.keys("values/")) == baseline
        with place.store() as store:
            assert not verify(store, table_of(channels=D), default_serde()).findings


def test_a_young_object_that_nothing_names_is_left_alone() -> None:
    with memory_place(short_grace_s=0) as place:
        Script([place.saver()]).chain(5)
        place.compact(channels=D)
        stray = the_manifest(place).replace("/manifest", "/n.p.x/c.p.d/p.1-00")
        overwrite(place, stray, b"LSV1")
        with place.store() as store:
            report = job(store, purge=True).run()
        assert report.total("waiting") == 1
        assert stray in place.keys("snapshots/")


def test_a_second_job_without_news_writes_nothing() -> None:
    with memory_place() as place:
        Script([place.saver()]).chain(5)
        assert place.compact(channels=D).partitions[0].outcome == Outcome.COMMITTED
        assert place.compact(channels=D).partitions[0].outcome == Outcome.IDLE


def test_ordinary_jobs_sweep_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    with memory_place(short_grace_s=0, long_grace_s=0) as place:
        Script([place.saver()]).chain(5)
        place.compact(channels=D)
        place.compact(channels=D)
        assert place.compact(channels=D).partitions[0].outcome == Outcome.IDLE
        stray = the_manifest(place).replace("/manifest", "/n.p.x/c.p.d/p.1-00")
        overwrite(place, stray, b"LSV1")
        assert place.compact(channels=D).partitions[0].outcome == Outcome.IDLE
        monkeypatch.setattr("compactor.job.SWEEP_INTERVAL_S", 0.01)
        time.sleep(0.02)
        assert place.compact(channels=D).total("objects_deleted") == 1
        assert stray not in place.keys("snapshots/")


def test_a_job_with_time_enough_finishes_all(four: Place) -> None:
    report = compact(four.uri, max_runtime_s=60)
    assert report.unfinished == ()
    assert len(report.partitions) == 4
