"""Tables that the compactor keeps say exactly what decoding everything says, after any history."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, RemoveMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from typer.testing import CliRunner

from compactor.commands.cli import app
from compactor.commands.status import read_status
from compactor.commit import commit
from compactor.folding.channels import ChannelTable, default_serde
from compactor.keeping import merge as kept_merge
from compactor.keeping import rows as kept_rows
from compactor.keeping import thread as kept_thread
from compactor.rebuild import RebuildJob
from compactor.report import Outcome
from compactor.verifying.findings import Problem
from compactor.verifying.verify import verify
from logstore import LogStoreSaver, analytics
from logstore.analytics import Reading, StoreSnapshot
from logstore.analytics.decoded import rows_of
from logstore.analytics.visibility import visibility
from logstore.erase import prove_erasure, purge_partition
from logstore.errors import FormatError, MissingDataError
from logstore.manifest import KEPT
from tests.helpers import Place, Script, append, memory_place, thread

CHANNELS = {"d": DeltaChannel(append, snapshot_frequency=4)}
THREADS = ("a", "b", "c", "é", "z")
Rows = list[dict[str, Any]]


def say(script: Script, at: str, number: int) -> None:
    """Let an agent call a tool at a checkpoint, and the tool answer."""
    call = {"name": f"tool-{number % 3}", "args": {"n": number}, "id": f"c{number}"}
    usage = {"input_tokens": number, "output_tokens": 1, "total_tokens": number + 1}
    said = AIMessage(f"text {number}", id=f"m{number}", tool_calls=[call], usage_metadata=usage)
    script.writes(at, [("d", [said])], task="t1")
    script.writes(at, [("d", [ToolMessage("done", tool_call_id=f"c{number}", id=f"r{number}")])], task="t2")  # fmt: skip


def talk(script: Script, turns: int, parent: str | None = None) -> str:
    """A conversation; its last checkpoint."""
    parent = parent or script.put()
    for _ in range(turns):
        say(script, parent, script._serial)
        parent = script.put(parent)
    return parent


def decoded(snapshot: StoreSnapshot, name: str, threads: tuple[str, ...] = THREADS) -> Rows:
    """A table's rows, each thread read by itself, which takes nothing that is kept."""
    return [
        row
        for thread_id in threads
        for row in snapshot.scan(name, thread_id=thread_id).read_all().to_pylist()
    ]


def ordered(rows: Rows) -> Rows:
    """Rows in an order of their own."""
    return sorted(rows, key=repr)


def assert_exact(place: Place, threads: tuple[str, ...] = THREADS) -> int:
    """Compare each way to the kept tables with decoding; how many rows are kept."""
    kept = 0
    with analytics.open(place.uri) as snapshot, snapshot.duckdb() as connection:
        for name in KEPT:
            expected = ordered(decoded(snapshot, name, threads))
            assert ordered(snapshot.scan(name).read_all().to_pylist()) == expected
            found = connection.sql(f"SELECT * FROM {name}").to_arrow_table().to_pylist()
            assert ordered(found) == expected
            some = snapshot.scan(name, columns=["message_id", "thread_id"]).read_all().to_pylist()
            assert ordered(some) == ordered(
                [{"message_id": r["message_id"], "thread_id": r["thread_id"]} for r in expected]
            )
            for partition in snapshot.partitions:
                kept += len(partition.kept.current(name))
        for partition in snapshot.partitions:
            assert partition.hidden == visibility(partition.sources).hidden
    return kept


@pytest.fixture
def place() -> Iterator[Place]:
    """A store whose replaced files go at the next job."""
    with memory_place(short_grace_s=0, long_grace_s=0) as found:
        yield found


def waiting(place: Place) -> int:
    """How many threads wait for their rows, by the status."""
    with place.store() as store:
        [part] = read_status(store).partitions
    assert part.kept == KEPT
    return part.stale


def stored(place: Place) -> dict[str, bytes]:
    """The files of kept tables."""
    with place.store() as store:
        return {key: store.objects.get(key).data for key in place.keys("tables/")}


# -- any history -----------------------------------------------------------------------------


@dataclass
class History:
    """Random calls of agents on a few threads."""

    chance: random.Random
    saver: LogStoreSaver
    scripts: dict[str, Script] = field(default_factory=dict)
    made: dict[str, list[str]] = field(default_factory=dict)
    serial: int = 0

    def event(self) -> None:
        """One of them."""
        thread_id = self.chance.choice(THREADS)
        kind = self.chance.choices(
            ["talk", "fork", "late", "remove", "again", "delete", "prune", "runs"],
            [8, 2, 2, 1, 1, 1, 1, 1],
        )[0]
        checkpoints = self.made.setdefault(thread_id, [])
        if kind in ("talk", "fork") or not checkpoints:
            self._talk(thread_id, checkpoints, fork=kind == "fork")
        elif kind == "late":
            say(self.scripts[thread_id], self.chance.choice(checkpoints), self._next())
        elif kind == "remove":
            self._remove(thread_id, checkpoints)
        elif kind == "again":
            self.scripts[thread_id].again(self.chance.choice(checkpoints))
        elif kind == "delete":
            self.saver.delete_thread(thread_id)
            del self.scripts[thread_id], self.made[thread_id]
        elif kind == "prune":
            self.saver.prune([thread_id])
            self._look()
        else:
            self.saver.delete_for_runs([f"run-{self.chance.randrange(3)}"])
            self._look()

    def _look(self) -> None:
        """Forget the checkpoints that are hidden: who forks from these may find them dropped."""
        for thread_id in self.made:
            shown = self.saver.list(thread(thread_id))
            ids = [found.config["configurable"]["checkpoint_id"] for found in shown]
            self.made[thread_id] = sorted(ids)

    def _next(self) -> int:
        self.serial += 1
        return self.serial

    def _script(self, thread_id: str) -> Script:
        if thread_id not in self.scripts:
            self.scripts[thread_id] = Script([self.saver], thread_id, _serial=100 * self._next())
        return self.scripts[thread_id]

    def _talk(self, thread_id: str, checkpoints: list[str], *, fork: bool) -> None:
        script = self._script(thread_id)
        parent = None
        if checkpoints:
            parent = self.chance.choice(checkpoints) if fork else checkpoints[-1]
        for _ in range(self.chance.randrange(1, 4)):
            parent = script.put(parent, run_id=f"run-{self.chance.randrange(3)}")
            checkpoints.append(parent)
            say(script, parent, self._next())

    def _remove(self, thread_id: str, checkpoints: list[str]) -> None:
        script = self.scripts[thread_id]
        gone = RemoveMessage(id=f"m{self.chance.randrange(1, self.serial + 1)}")
        script.writes(checkpoints[-1], [("d", [gone])], task="t3")
        checkpoints.append(script.put(checkpoints[-1]))


@pytest.mark.parametrize("seed", range(8))
def test_after_any_history_kept_tables_say_what_decoding_says(
    seed: int, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(kept_merge, "FAN_OUT", chance.choice([2, 3, 8]))
    monkeypatch.setattr(kept_rows, "LONG_THREAD", chance.choice([0, 12, 512]))
    monkeypatch.setattr(kept_rows, "_THREADS_AT_ONCE", chance.choice([1, 2, 4096]))
    keeps: list[tuple[str, ...]] = [KEPT, KEPT, KEPT, ("messages",), ()]
    kept = 0
    with place.fresh() as saver:
        history = History(chance, saver)
        for _ in range(8):
            for _ in range(chance.randrange(1, 4)):
                history.event()
            saver.flush()
            grace = chance.choice([0.0, 86_400.0])
            place.compact(channels=CHANNELS, keep=chance.choice(keeps), hidden_grace_s=grace)
            kept += assert_exact(place)
            if chance.random() < 0.3:
                history.event()
                saver.flush()
                assert_exact(place)
        place.compact(channels=CHANNELS, keep=KEPT)
    assert kept + assert_exact(place)


# -- single rules ------------------------------------------------------------------------------


def test_after_a_job_that_keeps_them_nothing_is_decoded(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.fresh() as saver:
        for name in THREADS:
            talk(Script([saver], name), 4)
    place.compact(keep=KEPT)
    with analytics.open(place.uri) as snapshot:
        expected = decoded(snapshot, "messages")

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a thread was decoded")

    monkeypatch.setattr("logstore.analytics.snapshot.rows_of", refuse)
    with analytics.open(place.uri) as snapshot:
        assert ordered(snapshot.scan("messages").read_all().to_pylist()) == ordered(expected)
        [[count]] = snapshot.duckdb().sql("SELECT count(*) FROM messages").fetchall()
        assert count == len(expected) == 40
        with pytest.raises(AssertionError, match="decoded"):
            snapshot.scan("messages", reading=Reading(history=True)).read_all()


def test_tables_of_a_store_that_was_compacted_before_are_made_by_the_first_job_that_keeps_them(
    place: Place,
) -> None:
    with place.fresh() as saver:
        for name in THREADS:
            talk(Script([saver], name), 2)
    place.compact()
    assert stored(place) == {}
    place.compact(keep=KEPT)
    assert assert_exact(place) == 2 * len(THREADS)
    before = stored(place)
    place.compact(keep=KEPT)
    assert stored(place) == before


def test_a_job_that_does_not_keep_them_marks_what_it_touches_as_stale(place: Place) -> None:
    with place.fresh() as saver:
        scripts = {name: Script([saver], name) for name in THREADS}
        heads = {name: talk(script, 2) for name, script in scripts.items()}
        place.compact(keep=KEPT)
        talk(scripts["b"], 2, heads["b"])
        saver.flush()
    place.compact()
    assert assert_exact(place) == 2 * (len(THREADS) - 1)
    assert waiting(place) == 1
    place.compact(keep=KEPT)
    assert assert_exact(place) == 2 * len(THREADS)
    assert waiting(place) == 0


def test_the_rows_of_a_long_thread_are_made_anew_when_it_has_grown_by_an_eighth(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_rows, "LONG_THREAD", 10)
    kept = []
    with place.fresh() as saver:
        script = Script([saver], "a")
        parent = talk(script, 20)
        for _ in range(8):
            place.compact(keep=KEPT)
            kept.append(assert_exact(place) // 2)
            parent = talk(script, 1, parent)
            saver.flush()
    assert kept == [1, 0, 0, 1, 0, 0, 1, 0]


@pytest.mark.parametrize("keep", [KEPT, ()], ids=["kept", "stale"])
def test_the_rows_of_a_deleted_thread_are_gone_with_the_commit_that_merges_the_delete(
    place: Place, keep: tuple[str, ...]
) -> None:
    with place.fresh() as saver:
        for name in ("a", "b"):
            talk(Script([saver], name), 3)
        place.compact(keep=KEPT)
        saver.delete_thread("b")
    place.compact(keep=keep)
    assert assert_exact(place) >= 2
    assert_without(place, "b")


def test_the_rows_of_dropped_checkpoints_are_gone_with_the_commit_that_drops_them(
    place: Place,
) -> None:
    with place.fresh() as saver:
        for name in ("a", "b"):
            talk(Script([saver], name), 3)
        place.compact(channels=CHANNELS, keep=KEPT)
        saver.prune(["b"])
    how: dict[str, Any] = {"channels": CHANNELS, "keep": KEPT, "hidden_grace_s": 0.0}
    assert place.compact(**how).total("rows_dropped")
    assert assert_exact(place) == 2
    assert_without(place, "b")
    place.compact(**how)
    assert assert_exact(place) == 4


def assert_without(place: Place, thread_id: str) -> None:
    """No file that the manifest names holds a row of a thread."""
    with place.store() as store:
        manifest, _ = store.reader.partition_manifest(0)
        assert manifest.kept.files
        for batch in manifest.kept.batches:
            for name in KEPT:
                for file in batch.files.get(name, ()):
                    for table in store.runs.columns(file, ["thread_id"]):
                        assert thread_id not in table["thread_id"].to_pylist()


def test_the_files_of_a_level_are_merged_when_there_are_eight(place: Place) -> None:
    levels = []
    with place.fresh() as saver:
        script = Script([saver], "a")
        parent = talk(script, 1)
        for _ in range(10):
            place.compact(keep=KEPT)
            with place.store() as store:
                manifest, _ = store.reader.partition_manifest(0)
                levels.append([batch.level for batch in manifest.kept.batches])
            parent = talk(script, 1, parent)
            saver.flush()
    assert levels[7] == [0] * 8
    assert levels[8] == [0]  # the new batch tells of the only thread: nothing else is left
    assert_exact(place)


def test_files_that_nothing_names_are_deleted_after_their_grace(place: Place) -> None:
    with place.fresh() as saver:
        script = Script([saver], "a")
        parent = talk(script, 1)
        place.compact(keep=KEPT)
        with place.store() as store:
            store.objects.put_if_absent("tables/partition=0000/messages-0123456789abcdef.parquet", b"x")  # fmt: skip
        talk(script, 1, parent)
    for _ in range(2):
        place.compact(keep=KEPT)
    assert "tables/partition=0000/messages-0123456789abcdef.parquet" not in stored(place)
    with place.store() as store:
        manifest, _ = store.reader.partition_manifest(0)
        assert stored(place).keys() == manifest.kept.files.keys() | {
            key for key in manifest.retired if key.startswith("tables/")
        }


@pytest.mark.parametrize("damage", ["lost", "damaged"])
def test_kept_tables_that_cannot_be_read_do_not_stop_a_job(place: Place, damage: str) -> None:
    with place.fresh() as saver:
        script = Script([saver], "a")
        parent = talk(script, 1)
        place.compact(keep=KEPT)
        with place.store() as store:
            [key] = [key for key in stored(place) if "/threads-" in key]
            body = store.objects.get(key)
            store.objects.delete([key])
            if damage == "damaged":
                store.objects.put_if_absent(key, body.data[:-20] + bytes(20))
        talk(script, 1, parent)
    assert place.compact(keep=KEPT).total("segments_merged")
    place.compact(keep=KEPT)
    assert assert_exact(place, ("a",)) == 2


def test_a_thread_that_cannot_be_decoded_is_left_to_readers(place: Place) -> None:
    with place.fresh() as saver:
        talk(Script([saver], "a"), 2)
        lost = Script([saver], "b")
        lost._known["1f0never"] = lost._known[lost.put()]
        talk(lost, 1, lost.put("1f0never"))
    place.compact(keep=KEPT)
    with analytics.open(place.uri) as snapshot:
        [partition] = snapshot.partitions
        assert partition.kept.current("messages").to_pylist() == ["a"]
        with pytest.raises(MissingDataError, match="1f0never"):
            snapshot.scan("messages").read_all()


@pytest.mark.parametrize("fails", [False, True])
def test_rows_of_a_long_thread_wait_on_disk_until_all_are_made(
    place: Place, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    def told(names: Any, number: int, read: Any, *more: Any) -> Iterator[Any]:
        for count, row in enumerate(rows_of(names, number, read, *more)):
            if fails and (read.view.thread_id, count) == ("b", 15):
                raise FormatError("not to be decoded")
            yield row

    monkeypatch.setattr(kept_rows, "rows_of", told)
    monkeypatch.setattr(kept_thread, "_SPILLED_BYTES", 1_500)
    with place.fresh() as saver:
        for name in ("a", "b", "c"):
            talk(Script([saver], name), 6)
    place.compact(keep=KEPT)
    assert assert_exact(place, ("a", "b", "c")) == (4 if fails else 6)


def test_a_snapshot_is_not_changed_by_what_later_jobs_keep() -> None:
    with memory_place() as place:
        with place.fresh() as saver:
            scripts = {name: Script([saver], name) for name in ("a", "b")}
            heads = {name: talk(script, 2) for name, script in scripts.items()}
            place.compact(keep=KEPT)
            with analytics.open(place.uri) as snapshot:
                talk(scripts["a"], 2, heads["a"])
                saver.delete_thread("b")
                saver.flush()
                place.compact(keep=KEPT)
                assert len(snapshot.scan("messages").read_all()) == 8
        assert assert_exact(place, ("a", "b")) > 0


def test_a_rebuild_gives_them_up_and_the_next_job_makes_them_anew(place: Place) -> None:
    with place.fresh() as saver:
        for name in THREADS:
            talk(Script([saver], name), 2)
    place.compact(keep=KEPT)
    with place.store() as store:
        RebuildJob(store, ChannelTable(()), default_serde()).run()
    assert assert_exact(place) == 0
    place.compact(keep=KEPT)
    assert assert_exact(place) == 2 * len(THREADS)


def verified(place: Place) -> list[tuple[str, str | None, str | None]]:
    """What `compactor verify` finds."""
    with place.store() as store:
        found = verify(store, ChannelTable(()), default_serde()).findings
    return [(one.problem, one.key, one.thread_id) for one in found]


def test_verify_compares_them_with_what_the_values_give(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.fresh() as saver:
        for name in ("a", "b"):
            talk(Script([saver], name), 3)

    def rows_with_a_fault(names: Any, number: int, read: Any, *more: Any) -> Any:
        for name, row in rows_of(names, number, read, *more):
            wrong = read.view.thread_id == "b" and name == "messages"
            yield name, {**row, "role": "nobody"} if wrong else row

    with monkeypatch.context() as patch:
        patch.setattr(kept_rows, "rows_of", rows_with_a_fault)
        place.compact(keep=KEPT)
    assert verified(place) == [(Problem.WRONG_ROWS, None, "b")]
    with place.fresh() as saver:
        saver.delete_thread("b")
    place.compact(keep=KEPT)
    assert verified(place) == []
    with place.store() as store:
        manifest, _ = store.reader.partition_manifest(0)
        [key] = [key for key in manifest.kept.files if "tool_calls" in key]
        store.objects.delete([key])
    assert verified(place) == [(Problem.MISSING_OBJECT, key, None)]


def test_an_erasure_is_proved_of_them_too(place: Place) -> None:
    with place.fresh() as saver:
        for name in ("a", "b"):
            talk(Script([saver], name), 3)
        place.compact(keep=KEPT)
        saver.delete_thread("b")
    with place.store() as store:
        left = prove_erasure(store, "b").left
        assert sum(one.startswith("tables/") and one.endswith(" rows") for one in left) == 2
        purge_partition(store, 0, lambda text: None)
        proof = prove_erasure(store, "b")
        assert (proof.left, proof.tables > 0) == ((), True)
    assert assert_exact(place, ("a", "b")) == 2


def test_the_command_keeps_what_its_option_or_its_configuration_names(tmp_path: Path) -> None:
    place = Place(f"file://{tmp_path}/store").create(partitions=1)
    with place.fresh() as saver:
        talk(Script([saver], "a"), 2)
    config = tmp_path / "compactor.toml"
    config.write_text('[analytics]\nkeep = ["messages"]\n')
    for how, tables in (
        (["--config", f"{config}"], {"threads", "messages"}),
        (["--keep", "messages, tool_calls"], {"threads", "messages", "tool_calls"}),
    ):
        done = CliRunner().invoke(app, ["run", place.uri, *how])
        assert done.exit_code == 0, done.output
        with place.store() as store:
            manifest, _ = store.reader.partition_manifest(0)
            assert manifest.kept.batches[0].files.keys() == tables
        assert assert_exact(place, ("a",)) == len(tables) - 1
    refused = CliRunner().invoke(app, ["run", place.uri, "--keep", "writes"])
    assert refused.exit_code == 2
    assert "no table 'writes' to keep" in refused.output


def test_a_job_that_loses_leaves_the_tables_of_the_one_that_won(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.fresh() as saver:
        script = Script([saver], "a")
        parent = talk(script, 2)
        place.compact(keep=KEPT)
        talk(script, 2, parent)
    first = iter([True])

    def commit_late(*arguments: Any) -> int:
        if next(first, False):
            place.compact()
        return commit(*arguments)

    monkeypatch.setattr("compactor.job.commit", commit_late)
    [report] = place.compact(keep=KEPT).partitions
    assert report.outcome == Outcome.LOST
    assert assert_exact(place, ("a",)) == 0
    place.compact(keep=KEPT)
    assert assert_exact(place, ("a",)) == 2
