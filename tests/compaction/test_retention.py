"""Retention: whole threads by age, checkpoints by number, by prefix; never what a head needs."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from compactor.cleaning.retention import (
    HourlyRetention,
    RetentionPolicy,
    RetentionRule,
    apply_retention,
)
from compactor.commands.cli import app
from logstore import InvalidOptionError
from logstore.errors import CorruptObjectError
from tests.compaction.damage import overwrite
from tests.helpers import Place, Script, assert_twins, both, linear_graph, thread
from tests.saver.test_prune import ids, turns

RUN = CliRunner()


def idle_threads(place: Place, *names: str) -> None:
    with place.fresh() as saver:
        for name in names:
            Script([saver], name).chain(4)
    time.sleep(1.2)


@pytest.mark.parametrize("compacted", [False, True])
def test_threads_that_nobody_wrote_to_are_deleted_whole(place: Place, compacted: bool) -> None:
    idle_threads(place, "old", "old-too")
    if compacted:
        place.compact()
    with place.fresh() as saver:
        script = Script([saver], "old-too", _serial=50)
        script.put()
        Script([saver], "new").chain(2)
    policy = RetentionPolicy([RetentionRule(max_age_s=1.0)])
    with place.store() as store:
        assert [r.thread_id for r in apply_retention(store, policy, dry_run=True)] == ["old"]
        [retired] = apply_retention(store, policy)
        assert (retired.thread_id, retired.action, retired.checkpoints) == ("old", "delete", 4)
        assert retired.idle_s > 1.0
        assert apply_retention(store, policy) == []
    place.compact()
    with place.fresh() as saver:
        assert ids(saver, "old") == []
        assert len(ids(saver, "old-too")) == 5
        assert len(ids(saver, "new")) == 2


def test_a_compaction_or_a_prune_is_no_activity(place: Place) -> None:
    idle_threads(place, "old")
    with place.fresh() as saver:
        saver.prune(["old"])
    place.compact()
    with place.store() as store:
        [retired] = apply_retention(store, RetentionPolicy([RetentionRule(max_age_s=1.0)]))
    assert retired.checkpoints == 1


@pytest.mark.parametrize("compacted", [False, True])
def test_the_newest_checkpoints_are_kept_and_the_thread_goes_on(
    place: Place, compacted: bool
) -> None:
    make = linear_graph(7)
    with place.fresh() as saver:
        turns(make, saver, "t", 6)
        turns(make, saver, "short", 1)
    policy = RetentionPolicy([RetentionRule(newest=4)])
    with place.store() as store:
        [retired] = apply_retention(store, policy)
        assert (retired.thread_id, retired.action, retired.checkpoints) == ("t", "prune", 14)
        assert apply_retention(store, policy) == []
    if compacted:
        place.compact(graph=make(None))
    with place.fresh() as saver:
        assert len(ids(saver, "t")) == 4
        assert len(ids(saver, "short")) == 3
        live = make(saver).invoke(both("on"), thread())
    assert_twins(place, make, thread(), live)


def test_of_several_rules_the_longest_prefix_counts() -> None:
    policy = RetentionPolicy.parse(
        {
            "max_age": "90d",
            "threads": [
                {"prefix": "scratch-", "max_age": "12h"},
                {"prefix": "scratch-keep-", "newest": 3},
            ],
        },
        "file",
    )
    assert policy.rule_of("a") == RetentionRule("", 90 * 86_400.0)
    assert policy.rule_of("scratch-a") == RetentionRule("scratch-", 12 * 3_600.0)
    assert policy.rule_of("scratch-keep-a") == RetentionRule("scratch-keep-", None, 3)


@pytest.mark.parametrize(
    "doc",
    [
        {"max_age": 90},
        {"max_age": "90"},
        {"max_age": "0d"},
        {"max_age": "soon"},
        {"newest": 0},
        {"newest": True},
        {"newest": "5"},
        {"newset": 5},
        {"threads": {"prefix": "a"}},
        {"threads": [{"max_age": "1d"}]},
        {"threads": [{"prefix": "a", "max": "1d"}]},
    ],
)
def test_a_mistake_in_the_configuration_is_refused(doc: dict[str, object]) -> None:
    with pytest.raises(InvalidOptionError, match=r"file.*retention"):
        RetentionPolicy.parse(doc, "file")


def test_without_a_rule_nothing_is_read_and_nothing_goes(place: Place) -> None:
    idle_threads(place, "old")
    assert not RetentionPolicy.parse({}, "file")
    with place.store() as store:
        assert apply_retention(store, RetentionPolicy()) == []


def test_a_service_looks_once_an_hour(place: Place) -> None:
    with place.store() as store:
        retention = HourlyRetention(store, RetentionPolicy([RetentionRule(newest=1)]))
        with place.fresh() as saver:
            Script([saver], "a").chain(3)
            assert [r.thread_id for r in retention.apply_if_due()] == ["a"]
            Script([saver], "b").chain(3)
            assert retention.apply_if_due() == []


def test_the_command_shows_what_would_go_and_then_lets_it_go(tmp_path: Path) -> None:
    place = Place(f"file://{tmp_path}/store").create()
    with place.fresh() as saver:
        Script([saver], "t").chain(9)
    config = tmp_path / "compactor.toml"
    config.write_text("[retention]\nnewest = 2\n")
    before = place.keys()
    arguments = ["run", place.uri, "--config", str(config)]
    shown = RUN.invoke(app, [*arguments, "--dry-run"])
    assert shown.exit_code == 0, shown.output
    assert "retention would take away 7 checkpoints" in shown.output
    assert place.keys() == before
    done = RUN.invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    [retired] = json.loads(done.output)["retired"]
    assert (retired["thread_id"], retired["action"], retired["checkpoints"]) == ("t", "prune", 7)
    with place.fresh() as saver:
        assert len(ids(saver)) == 2


@pytest.mark.parametrize("purge", [[], ["--purge"]])
def test_damage_stops_neither_the_retention_of_others_nor_the_job(
    tmp_path: Path, purge: list[str]
) -> None:
    place = Place(f"file://{tmp_path}/store").create(partitions=2, short_grace_s=0)
    with place.fresh() as saver:
        for name in "abcdef":
            Script([saver], name).chain(4)
    damaged = place.keys("log/partition=0000/")
    overwrite(place, damaged[-1], b"no segment")
    config = tmp_path / "compactor.toml"
    config.write_text("[retention]\nnewest = 2\n")
    done = RUN.invoke(app, ["run", place.uri, "--config", str(config), *purge])
    assert done.exit_code == 1
    assert damaged[-1] in " ".join(done.output.split())
    with place.fresh() as saver:
        sound = [name for name in "abcdef" if saver.store.partition(name) == 1]
        assert [len(ids(saver, name)) for name in sound] == [2] * len(sound)
    assert len(place.keys("runs/partition=0000/")) == 1


def test_a_service_goes_on_when_retention_fails(place: Place) -> None:
    with place.fresh() as saver:
        Script([saver], "a").chain(3)
    overwrite(place, place.keys("log/")[-1], b"no segment")
    with place.store() as store:
        retention = HourlyRetention(store, RetentionPolicy([RetentionRule(newest=1)]))
        with pytest.raises(CorruptObjectError):
            retention.apply_if_due()
        assert retention.apply_if_due() == []
