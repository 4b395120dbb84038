"""Which of the compactor's snapshots stay, and that it follows from the history alone."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from compactor.commands.config import load_operation
from compactor.folding.channels import default_serde, table_of
from compactor.folding.policy import Retention
from compactor.rebuild import RebuildJob
from compactor.verifying.verify import verify
from logstore.codec import encode_patch
from logstore.errors import InvalidOptionError
from logstore.records import Encoding, Record
from tests.compaction.damage import change_runs
from tests.helpers import Place, Script, append, assert_same_tuple, memory_place, rebuilt, thread

D = {"d": DeltaChannel(append, list, snapshot_frequency=2)}
POLICIES = ["all", "newest 3", "powers of two"]


def assert_like(place: Place, model: InMemorySaver) -> None:
    with place.fresh() as saver:
        assert_same_tuple(saver.get_tuple(thread()), model.get_tuple(thread()))
        for entry in model.list(thread()):
            assert_same_tuple(saver.get_tuple(entry.config), entry)
            assert rebuilt(saver, entry.config, D) == rebuilt(model, entry.config, D)


def assert_sound(place: Place, retention: str) -> None:
    with place.store() as store:
        found = verify(store, table_of(channels=D, retention=retention), default_serde())
    assert not found.findings, found.findings


def ids(place: Place) -> list[str]:
    return sorted(checkpoint for _, _, checkpoint, _ in place.snapshots())


# -- policies --------------------------------------------------------------------------


def test_newest_n_keeps_the_last_of_a_branch() -> None:
    policy = Retention.parse("newest 3")
    assert [i for i in range(1, 11) if policy.keeps(i, 10 - i)] == [8, 9, 10]


@pytest.mark.parametrize("length", [1, 2, 3, 7, 64, 100, 1000])
def test_distances_grow_in_powers_of_two_and_nothing_comes_back(length: int) -> None:
    policy = Retention.parse("powers of two")
    before: set[int] = set()
    for end in range(1, length + 1):
        kept = {i for i in range(1, end + 1) if policy.keeps(i, end - i)}
        assert kept <= before | {end}
        before = kept
    distances = sorted(length - i for i in before)
    assert len(distances) <= 2 + 2 * length.bit_length()
    # Wherever a read begins, a snapshot lies not much further back than that.
    for back in range(length):
        assert any(back <= d <= 3 * back for d in distances) or 3 * back >= length


@pytest.mark.parametrize("text", ["", "newest", "newest 0", "newest -1", "some", "powers"])
def test_a_policy_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidOptionError, match="powers of two"):
        Retention.parse(text)


def test_the_configuration_names_the_policy(tmp_path: Path) -> None:
    config = tmp_path / "compactor.toml"
    config.write_text('[snapshots]\nretention = "newest 4"\n')
    assert load_operation(config=config).table.retention == Retention(newest=4)
    operation = load_operation(config=config, retention="powers of two")
    assert operation.table.retention == Retention(powers_of_two=True)
    config.write_text('[snapshots]\nretain = "all"\n')
    with pytest.raises(InvalidOptionError, match="retain"):
        load_operation(config=config)


# -- in a store ------------------------------------------------------------------------


def linear(place: Place, script: Script, job: Callable[[], object]) -> None:
    last = script.put()
    for number in range(18):
        script.write(last, number)
        last = script.put(last)
        job()


def forked(place: Place, script: Script, job: Callable[[], object]) -> None:
    line = script.chain(12)
    job()
    for start in (3, 11):
        at = script.put(line[start])
        for number in range(7):
            script.write(at, f"{start}-{number}")
            at = script.put(at)
            job()


def with_late_writes(place: Place, script: Script, job: Callable[[], object]) -> None:
    line = script.chain(15)
    job()
    script.write(line[6], "late")
    job()
    last = line[-1]
    for number in range(6):
        script.write(last, number)
        last = script.put(last)
        job()
    script.write(line[1], "later")
    job()


@pytest.mark.parametrize("history", [linear, forked, with_late_writes])
@pytest.mark.parametrize("policy", POLICIES)
def test_any_schedule_of_jobs_ends_with_the_same_snapshots(policy: str, history: Any) -> None:
    found = []
    for every in (1, 4):
        with memory_place(short_grace_s=0, long_grace_s=0) as place:
            model = InMemorySaver()
            calls = 0

            def job(place: Place = place, every: int = every) -> None:
                nonlocal calls
                calls += 1
                if calls % every == 0:
                    place.compact(channels=D, retention=policy)

            history(place, Script([place.saver(), model]), job)
            place.compact(channels=D, retention=policy)
            assert_like(place, model)
            assert_sound(place, policy)
            found.append(place.snapshots())
    with memory_place() as place:
        history(place, Script([place.saver()]), lambda: None)
        place.compact(channels=D, retention=policy)
        assert found == [place.snapshots()] * 2
    assert found[0]


def test_what_was_retired_is_not_folded_anew(place: Place) -> None:
    script = Script([place.saver()])
    last = script.chain(20)[-1]
    first = place.compact(channels=D, retention="newest 2")
    assert first.total("snapshots") == 2
    assert len(ids(place)) == 2
    made = 0
    for number in range(8):
        script.write(last, number)
        last = script.put(last)
        report = place.compact(channels=D, retention="newest 2")
        made += report.total("snapshots")
        assert len(ids(place)) == 2
    assert made == 4


def test_a_policy_that_keeps_more_again_makes_up_for_it(place: Place) -> None:
    script = Script([place.saver()])
    last = script.chain(20)[-1]
    place.compact(channels=D)
    everything = ids(place)
    for policy, count in (("newest 1", 1), ("all", len(everything))):
        with place.store() as store:
            table = table_of(channels=D, retention=policy)
            RebuildJob(store, table, default_serde()).run()
        assert len(ids(place)) == count
    assert ids(place) == everything
    script.put(last)


def test_a_graphs_own_snapshots_stay_whatever_the_policy(place: Place) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    last = script.put()
    for number in range(24):
        script.write(last, number)
        values = {"d": _DeltaSnapshot([number])} if number % 8 == 7 else None
        last = script.put(last, values=values)
        place.compact(channels=D, retention="newest 1")
    assert_like(place, model)
    blobs = [r for r in place.run_records() if r.kind == "blob" and r.encoding == Encoding.RAW]
    assert len(blobs) == 3
    assert len(ids(place)) == 1


def test_reads_are_right_when_the_base_of_a_patched_snapshot_is_retired(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge drops the row of what was retired; what was patched against it stays readable."""
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    last = script.put()
    rng = random.Random(3)
    for number in range(16):
        script.write(last, f"{number}" + "".join(rng.choices("abcdefgh ", k=400)))
        last = script.put(last)
    place.compact(channels=D)
    chain = sorted(
        (r for r in place.run_records() if r.kind == "snapshot"), key=lambda r: r.checkpoint_id
    )
    before = {b.checkpoint_id: a for a, b in itertools.pairwise(chain)}

    def patched(record: Record) -> Record:
        base = before.get(record.checkpoint_id) if record.kind == "snapshot" else None
        if base is None:
            return record
        assert isinstance(record.value, bytes)
        assert isinstance(base.value, bytes)
        patch = encode_patch(record.value, base.value, ())
        return (
            record
            if patch is None
            else record._replace(
                encoding=Encoding.PATCH,
                value=patch,
                base_version=base.checkpoint_id,
                size=len(record.value),
            )
        )

    change_runs(place, patched)
    patches = [r for r in place.run_records() if r.kind == "snapshot" and r.encoding == "patch"]
    assert patches
    assert_like(place, model)
    monkeypatch.setattr("compactor.plan.FAN_OUT", 2)
    for number in range(6):
        script.write(last, number)
        last = script.put(last)
        place.compact(channels=D, retention="newest 2")
        assert_like(place, model)
    assert_sound(place, "newest 2")
