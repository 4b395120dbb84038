"""Verifying: what is right is proved, what is wrong is found and named, nothing is changed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from langgraph.channels.delta import DeltaChannel
from typer.testing import CliRunner

from compactor.commands.cli import app
from compactor.folding.channels import ChannelTable, default_serde, table_of
from compactor.verifying.findings import Problem, Verification
from compactor.verifying.verify import verify
from logstore import LogStoreSaver
from logstore.keys import partition_manifest_key
from logstore.records import Encoding, Record, checksum_of
from logstore.store import LogStore
from logstore.testing.counting import CountingStore
from tests.compaction.damage import (
    change_runs,
    flip,
    overwrite,
    read,
    remove,
    the_manifest,
    the_runs,
)
from tests.helpers import Place, Script, append, memory_place

D = {"d": DeltaChannel(append, list, snapshot_frequency=2)}


@pytest.fixture
def place() -> Iterator[Place]:
    """A store that keeps what is replaced for an hour."""
    with memory_place() as found:
        yield found


def verified(place: Place, *threads: str, table: ChannelTable | None = None) -> Verification:
    with place.store() as store:
        return verify(store, table or table_of(channels=D), default_serde(), threads)


def problems(found: Verification) -> list[str]:
    return sorted({finding.problem.value for finding in found.findings})


def lived_in(place: Place, jobs: bool = True) -> Script:
    """Two branches, late writes, large values, a deleted thread, and a tail."""
    saver = place.saver()
    script = Script([saver])
    line = script.chain(9)
    if jobs:
        place.compact(channels=D)
    script.write(line[3], "late")
    script.write(line[4], "x" * 300_000)
    for part in range(2):  # together too large for a manifest, each small enough for a row
        script.write(line[4], random.Random(part).randbytes(120_000), task=f"part{part}")
    script.chain(4, script.put(line[4], values={"x": "y" * 200_000}, updates=("d", "x")))
    Script([saver], "gone").chain(5)
    if jobs:
        place.compact(channels=D)
    saver.delete_thread("gone")
    Script([saver], "other", ns="sub:1").chain(3)
    if jobs:
        place.compact(channels=D)
    script.write(line[8], "tail")
    script.put(line[8])
    return script


@pytest.mark.parametrize("jobs", [True, False])
def test_a_sound_store_is_proved_without_a_request_that_writes(place: Place, jobs: bool) -> None:
    lived_in(place, jobs)
    counting = CountingStore(LogStore.open(place.uri).objects)
    before = {key: read(place, key) for key in place.keys()}
    found = verify(LogStore(counting), table_of(channels=D), default_serde())
    assert not found.findings, found.findings
    assert not found.checked.unproved or "sub" in "".join(found.checked.unproved)
    assert found.checked.threads == 3
    assert found.checked.heads == 2
    assert found.checked.values > 30
    assert found.checked.proved == found.checked.snapshots
    assert bool(found.checked.proved) == jobs
    assert counting.counts.keys() <= {"get", "get_range", "get_if_changed", "list"}
    assert {key: read(place, key) for key in place.keys()} == before
    json.dumps(found.to_dict())


def test_each_snapshot_is_proved_at_any_point_of_a_history_with_jobs_between(place: Place) -> None:
    saver = place.saver()
    script = Script([saver])
    rng = random.Random(5)
    ids = [script.put()]
    for number in range(60):
        action = rng.random()
        if action < 0.5:
            script.write(ids[-1], number, task=f"t{number}")
        elif action < 0.9:
            ids.append(script.put(rng.choice(ids[-4:]) if action > 0.8 else ids[-1]))
        else:
            place.compact(channels=D)
        if number % 10 == 0:
            assert not verified(place).findings
    found = verified(place)
    assert not found.findings
    assert found.checked.proved == found.checked.snapshots > 5


@pytest.mark.parametrize("jobs", [True, False])
def test_a_pruned_thread_is_proved_before_and_after_jobs(place: Place, jobs: bool) -> None:
    saver = place.saver()
    script = Script([saver])
    line = script.chain(9)
    if jobs:
        place.compact(channels=D)
    saver.prune(["t"], strategy="keep_latest", newest=3)
    script.chain(4, script.put(line[-1]))
    for _ in range(2):
        found = verified(place)
        assert not found.findings
        assert found.checked.proved == found.checked.snapshots
        assert found.checked.checkpoints == 8
        place.compact(channels=D)
    assert found.checked.proved


def test_a_head_that_leaves_the_manifest_is_left_to_the_runs(place: Place) -> None:
    """A fork in the tail whose values only the runs hold is no fault of the manifest."""
    script = Script([place.saver()])
    first = script.put(values={"x": "one"}, updates=("d", "x"))
    script.put(first, values={"x": "two"}, updates=("d", "x"))
    place.compact(channels=D)
    script.put(first)
    found = verified(place)
    assert not found.findings, found.findings
    assert found.checked.heads == 0


def test_without_a_reducer_it_says_what_it_could_not_prove(place: Place) -> None:
    lived_in(place)
    found = verified(place, table=table_of())
    assert not found.findings
    assert found.checked.proved == 0
    assert "root: d" in found.checked.unproved


# -- damage ----------------------------------------------------------------------------


def wrong_snapshot(record: Record) -> Record:
    if record.kind != "snapshot" or record.encoding != Encoding.RAW:
        return record
    value = default_serde().dumps_typed(["wrong"])
    return record._replace(
        type=value[0], value=value[1], checksum=checksum_of(*value), size=len(value[1])
    )


def bad_checksum(record: Record) -> Record:
    return record if record.kind != "write" else record._replace(checksum=1)


def lost_ancestor(record: Record) -> Record | None:
    is_first = record.kind == "checkpoint" and record.checkpoint_id == "1f000002"
    return None if is_first else record


def stale(place: Place) -> None:
    script = Script([place.saver()], "stale")
    line = script.chain(5)
    place.compact(channels=D)
    old = read(place, the_manifest(place, "stale"))
    script.chain(4, script.put(line[-1]))
    place.compact(channels=D)
    overwrite(place, the_manifest(place, "stale"), old)


def regressed(place: Place) -> None:
    old = read(place, partition_manifest_key(0))
    for number in range(3):
        Script([place.saver()], f"n{number}").chain(2)
        place.compact(channels=D)
    overwrite(place, partition_manifest_key(0), old)


def missing_object(place: Place) -> None:
    remove(place, *(k for k in place.keys("snapshots/") if "/c." in k))


DAMAGE: dict[str, tuple[Callable[[Place], object], set[Problem], str]] = {
    "a run is damaged": (
        lambda p: flip(p, the_runs(p)[0], 0.2),
        {Problem.UNREADABLE},
        "runs/",
    ),
    "a run is cut off": (
        lambda p: overwrite(p, the_runs(p)[0], read(p, the_runs(p)[0])[:-9]),
        {Problem.UNREADABLE},
        "runs/",
    ),
    "a run is gone": (lambda p: remove(p, *the_runs(p)), {Problem.MISSING_OBJECT}, "runs/"),
    "a segment is damaged": (
        lambda p: flip(p, max(p.keys("log/")), 0.3),
        {Problem.UNREADABLE},
        "log/",
    ),
    "a thread's manifest is damaged": (
        lambda p: flip(p, the_manifest(p)),
        {Problem.UNREADABLE},
        "snapshots/",
    ),
    "a thread's manifest is gone": (
        lambda p: remove(p, the_manifest(p, "other")),
        {Problem.STALE_MANIFEST},
        "snapshots/",
    ),
    "a thread's manifest is an old one": (stale, {Problem.STALE_MANIFEST}, "snapshots/"),
    "a thread's manifest is another's": (
        lambda p: overwrite(p, the_manifest(p), read(p, the_manifest(p, "other"))),
        {Problem.STALE_MANIFEST},
        "snapshots/",
    ),
    "the partition's manifest is damaged": (
        lambda p: flip(p, partition_manifest_key(0)),
        {Problem.UNREADABLE},
        "manifests/",
    ),
    "the partition's manifest is an old one": (
        regressed,
        {Problem.STALE_MANIFEST, Problem.MISSING_OBJECT},
        "manifests/",
    ),
    "a snapshot object is damaged": (
        lambda p: flip(p, next(k for k in p.keys("snapshots/") if "/c." in k)),
        {Problem.UNREADABLE},
        "snapshots/",
    ),
    "a snapshot object is gone": (missing_object, {Problem.UNREADABLE}, "snapshots/"),
    "a large value is damaged": (
        lambda p: flip(p, p.keys("values/")[0]),
        {Problem.UNREADABLE},
        "values/",
    ),
    "a large value is gone": (
        lambda p: remove(p, *p.keys("values/")),
        {Problem.MISSING_OBJECT},
        "values/",
    ),
    "a snapshot is wrong": (
        lambda p: change_runs(p, wrong_snapshot),
        {Problem.WRONG_SNAPSHOT},
        "",
    ),
    "a checksum is wrong": (
        lambda p: change_runs(p, bad_checksum),
        {Problem.UNREADABLE},
        "runs/",
    ),
    "a checkpoint is lost": (
        lambda p: change_runs(p, lost_ancestor),
        {Problem.MISSING_RECORD},
        "",
    ),
    "a foreign object lies about": (
        lambda p: overwrite(p, "log/partition=0000/notes.txt", b"x"),
        {Problem.FOREIGN_OBJECT},
        "log/",
    ),
    "another foreign object lies about": (
        lambda p: overwrite(p, "elsewhere", b"x"),
        {Problem.FOREIGN_OBJECT},
        "elsewhere",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_named(place: Place, name: str) -> None:
    lived_in(place)
    damage, expected, prefix = DAMAGE[name]
    damage(place)
    found = verified(place)
    assert found.findings
    assert {f.problem for f in found.findings} & expected, found.findings
    if prefix:
        assert any((f.key or "").startswith(prefix) for f in found.findings), found.findings
    assert all(f.remedy and f.detail for f in found.findings)


def test_what_nothing_names_is_found_once_it_is_old() -> None:
    with memory_place(short_grace_s=0, long_grace_s=0) as place:
        lived_in(place)
        assert problems(verified(place)) == []
        run = read(place, the_runs(place)[0])
        overwrite(place, "runs/partition=0000/0-0123456789abcdef01234567.parquet", run)
        stray = the_manifest(place).replace("/manifest", "/n.p.x/c.p.d/p.1-00")
        overwrite(place, stray, b"LSV1")
        found = verified(place)
        assert problems(found) == [Problem.UNNAMED_OBJECT]
        assert stray in {f.key for f in found.findings}
        assert problems(verified(place, "t")) == [Problem.UNNAMED_OBJECT]
        assert problems(verified(place, "other")) == []


# -- reducers --------------------------------------------------------------------------


def counting_batches(state: list[Any], writes: Sequence[Any]) -> list[Any]:
    return [*append(state, writes), len(writes)]


def other_append(state: list[Any], writes: Sequence[Any]) -> list[Any]:
    return append(append(state, writes), ())


def test_a_reducer_that_breaks_its_laws_is_named_with_thread_and_step(place: Place) -> None:
    lived_in(place, jobs=False)
    bad = DeltaChannel(counting_batches, list, snapshot_frequency=2)
    found = verified(place, table=table_of(channels={"d": bad}))
    assert problems(found) == [Problem.BROKEN_LAW]
    finding = found.findings[0]
    assert finding.thread_id == "t"
    assert finding.channel == "d"
    assert "step" in finding.detail


def test_snapshots_of_another_reducer_are_reported(place: Place) -> None:
    lived_in(place)
    other = DeltaChannel(other_append, list, snapshot_frequency=2)
    found = verified(place, table=table_of(channels={"d": other}))
    assert problems(found) == [Problem.CHANGED_REDUCER]
    assert "other_append" in found.findings[0].detail


# -- the command -----------------------------------------------------------------------

REDUCER = """
[channels.d]
reducer = "tests.helpers:append"
snapshot_frequency = 2
"""


def test_the_command_exits_with_1_for_findings_and_tells_programs_what(tmp_path: Path) -> None:
    uri = (tmp_path / "store").as_uri()
    config = tmp_path / "compactor.toml"
    config.write_text(REDUCER)
    with LogStoreSaver.from_conn_string(uri, compaction="off") as saver:
        Script([saver]).chain(7)

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, [*arguments])

    assert run("run", uri, "--config", str(config)).exit_code == 0
    result = run("verify", uri, "--config", str(config))
    assert result.exit_code == 0, result.output
    assert "nothing is wrong" in result.stdout
    manifest = next((tmp_path / "store" / "snapshots").rglob("manifest"))
    manifest.unlink()
    result = run("verify", uri, "t", "--config", str(config), "--json")
    assert result.exit_code == 1
    doc = json.loads(result.stdout)
    (finding,) = doc["findings"]
    assert finding["problem"] == "stale manifest"
    assert finding["thread_id"] == "t"
    assert "rebuild" in finding["remedy"]
    text = run("verify", uri, "--config", str(config)).stdout
    assert "stale manifest" in text
    assert run("verify", (tmp_path / "none").as_uri()).exit_code == 1
