"""`logstore erase`: the thread is gone, its bytes are gone, and the command proves it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from logstore.cli import app
from logstore.erase import prove_erasure
from tests.helpers import Place, Script, thread

RUN = CliRunner()
SECRET = "the secret of this thread, which nobody may find again " * 3


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A store on disk whose grace is short."""
    return Place(f"file://{tmp_path}/store").create(
        partitions=1, short_grace_s=0.2, long_grace_s=3600.0
    )


def filled(place: Place, *names: str) -> None:
    """Threads that hold the secret, in runs, in a snapshot manifest, and in the tail."""
    with place.fresh() as saver:
        for name in names:
            script = Script([saver], name)
            at = script.put()
            for number in range(6):
                script.write(at, f"{name} {SECRET} {number}")
                large = f"{name} {SECRET}" * 2_000
                at = script.put(at, updates=("d", "x"), values={"x": large + str(number)})
                if number == 3:
                    place.compact()


def bytes_of(place: Place) -> bytes:
    """All that is stored, decompressed where it is compressed."""
    import pyarrow.parquet as pq

    from logstore.manifest import SnapshotManifest

    found: list[bytes] = []
    root = Path(place.uri.removeprefix("file://"))
    for path in root.rglob("*"):
        if not path.is_file():
            continue
        body = path.read_bytes()
        found.append(body)
        if path.suffix == ".parquet":
            found.append(repr(pq.read_table(path).to_pylist()).encode())
        elif path.name == "manifest" and "snapshots" in path.parts:
            found.append(repr(SnapshotManifest.decode(str(path), body)).encode())
    return b"".join(found)


def erase(place: Place, thread_id: str, *options: str) -> Any:
    return RUN.invoke(app, ["erase", place.uri, thread_id, *options])


def test_after_erase_now_no_object_holds_a_byte_of_the_thread(place: Place) -> None:
    filled(place, "gone", "gone-not")
    assert bytes_of(place).count(f"gone {SECRET}".encode()) > 1
    done = erase(place, "gone", "--now")
    assert done.exit_code == 0, done.output
    assert "nothing is left of it but the statement that it was deleted" in done.output
    assert f"gone {SECRET}".encode() not in bytes_of(place)
    with place.fresh() as saver:
        assert saver.get_tuple(thread("gone")) is None
        found = saver.get_tuple(thread("gone-not"))
        assert found is not None
        assert found.checkpoint["channel_values"]["x"].startswith("gone-not")


def test_the_proof_in_json_counts_what_was_looked_at(place: Place) -> None:
    filled(place, "gone")
    proof = json.loads(erase(place, "gone", "--now", "--json").output)
    assert proof["left"] == []
    assert proof["tombstones"] >= 1
    assert proof["runs"] >= 1
    assert proof["objects"] == 1


def test_without_now_the_thread_is_gone_and_its_bytes_wait(place: Place) -> None:
    filled(place, "gone")
    done = erase(place, "gone")
    assert done.exit_code == 0, done.output
    assert "next compaction" in done.output
    with place.fresh() as saver:
        assert saver.get_tuple(thread("gone")) is None
    with place.store() as store:
        assert prove_erasure(store, "gone").left
    assert erase(place, "gone", "--now").exit_code == 0


def test_what_is_written_since_is_left_and_reported(place: Place) -> None:
    filled(place, "gone")
    assert erase(place, "gone", "--now").exit_code == 0
    with place.fresh() as saver:
        Script([saver], "gone").chain(2)
    with place.store() as store:
        [left] = {line.partition(":")[2] for line in prove_erasure(store, "gone").left[-1:]}
        assert "records" in left


def test_a_thread_that_never_was_is_an_error(place: Place) -> None:
    filled(place, "here")
    done = erase(place, "her", "--now")
    assert done.exit_code == 1
    assert "nothing is stored under that id" in done.output
    with place.fresh() as saver:
        assert saver.get_tuple(thread("here")) is not None


def test_a_crash_half_way_is_finished_by_the_next_call(place: Place) -> None:
    filled(place, "gone")
    assert erase(place, "gone").exit_code == 0
    place.compact()
    assert erase(place, "gone", "--now").exit_code == 0
    assert f"gone {SECRET}".encode() not in bytes_of(place)
