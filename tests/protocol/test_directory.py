"""Immutable objects in a local directory: found again, never trusted blindly, bounded."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logstore import LogStoreSaver
from logstore.directory import DirectoryCache, prepare_directory
from logstore.errors import CorruptObjectError, InvalidOptionError
from logstore.objects.base import ListPage, ObjectData, ObjectStore
from logstore.objects.file import FileObjectStore
from logstore.store import LONG_GRACE_S, SHORT_GRACE_S
from logstore.testing.wrappers import CountingStore, WrappedStore
from tests.protocol.world import (
    World,
    conversation,
    model_of,
    play,
    told,
    written,
)

IMMUTABLE = ("log/", "runs/", "snapshots/", "values/")
MESSAGE = 20_000
"""Characters of a message: its snapshot is an object of its own."""


@pytest.fixture
def grown() -> Iterator[World]:
    """Segments, a run and a snapshot object, and the usual graces."""
    world = World(short_grace_s=SHORT_GRACE_S, long_grace_s=LONG_GRACE_S)
    written(world, conversation(8, size=MESSAGE))
    world.compact()
    written(world, conversation(2, begin=8, size=MESSAGE))
    yield world
    world.close()


class _Hiding(WrappedStore):
    """Shows one object in no listing."""

    def __init__(self, inner: ObjectStore, hidden: str) -> None:
        super().__init__(inner)
        self._hidden = hidden

    def list(self, prefix: str) -> Iterator[ListPage]:
        """List objects by prefix. See `ObjectStore.list`."""
        for page in super().list(prefix):
            kept = tuple(found for found in page.objects if found.key != self._hidden)
            yield replace(page, objects=kept)


class _Damaging(WrappedStore):
    """Answers with the objects below a prefix spoiled."""

    def __init__(self, inner: ObjectStore, prefix: str) -> None:
        super().__init__(inner)
        self._prefix = prefix

    def _spoiled(self, key: str, data: bytes) -> bytes:
        return data[:-9] + bytes(9) if key.startswith(self._prefix) else data

    def get(self, key: str) -> ObjectData:
        """Read a whole object. See `ObjectStore.get`."""
        found = super().get(key)
        return replace(found, data=self._spoiled(key, found.data))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read a range. See `ObjectStore.get_range`."""
        return self._spoiled(key, super().get_range(key, start, length))


EXPECTED = told(model_of(*conversation(10, size=MESSAGE)))


def fetched(counted: CountingStore) -> list[str]:
    """The keys of immutable objects that were fetched."""
    return [
        request.key
        for request in counted.requests
        if request.method.startswith("get")
        and request.key.startswith(IMMUTABLE)
        and not request.key.endswith("/manifest")
    ]


def a_new_process(world: World, folder: Path, **options: Any) -> tuple[CountingStore, Any]:
    """A saver that has nothing but the directory."""
    counted = CountingStore(world.objects)
    return counted, world.saver(objects=counted, cache_dir=folder, **options)


def entries(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in entries(folder))


# -- what it saves ---------------------------------------------------------------------


def test_a_process_that_starts_again_fetches_nothing_that_cannot_change(
    grown: World, tmp_path: Path
) -> None:
    counted, first = a_new_process(grown, tmp_path)
    assert told(first) == EXPECTED
    kinds = {key.split("/")[0] for key in fetched(counted)}
    assert kinds == {"log", "runs", "snapshots"}
    counted, second = a_new_process(grown, tmp_path)
    assert told(second) == EXPECTED
    assert fetched(counted) == []


def test_without_the_option_no_file_is_written(grown: World, tmp_path: Path) -> None:
    assert told(grown.saver()) == EXPECTED
    assert entries(tmp_path) == []


def test_stores_that_share_a_directory_share_no_objects(tmp_path: Path) -> None:
    prepare_directory(tmp_path, 1000)
    one = DirectoryCache(tmp_path, 1000, "s3://one/a")
    other = DirectoryCache(tmp_path, 1000, "s3://two/a")
    one.put("log/x", b"one")
    assert other.get("log/x") is None
    other.put("log/x", b"other")
    assert (one.get("log/x"), other.get("log/x")) == (b"one", b"other")


# -- what it must never give -------------------------------------------------------------


def swapped(path: Path, another: Path) -> None:
    path.write_bytes(another.read_bytes())


DAMAGE: dict[str, Callable[[Path, Path], object]] = {
    "a byte flipped": lambda path, _: path.write_bytes(path.read_bytes()[:-1] + b"?"),
    "cut off": lambda path, _: path.write_bytes(path.read_bytes()[:-7]),
    "empty": lambda path, _: path.write_bytes(b""),
    "another entry": swapped,
    "something else": lambda path, _: path.write_bytes(b"x" * 400),
    "a folder": lambda path, _: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_dropped_and_fetched_anew(
    grown: World, tmp_path: Path, damage: str
) -> None:
    _, first = a_new_process(grown, tmp_path)
    told(first)
    whole = {path: path.read_bytes() for path in entries(tmp_path)}
    paths = sorted(whole)
    for path, another in zip(paths, [*paths[1:], paths[0]], strict=True):
        DAMAGE[damage](path, another)
    counted, second = a_new_process(grown, tmp_path)
    assert told(second) == EXPECTED
    assert fetched(counted)
    if damage != "a folder":
        assert {path: path.read_bytes() for path in entries(tmp_path)} == whole


def test_whether_a_segment_is_still_there_the_store_is_asked_and_no_directory(
    grown: World, tmp_path: Path
) -> None:
    _, first = a_new_process(grown, tmp_path)
    told(first)
    hidden = min(grown.segments() - grown.snapshot_manifest().merged.keys())
    counted = CountingStore(_Hiding(grown.objects, hidden))
    reader = grown.saver(objects=counted, cache_dir=tmp_path)
    assert told(reader) == EXPECTED, "another segment names it"
    assert set(fetched(counted)) == {hidden}


@pytest.mark.parametrize("prefix", ["log/", "runs/", "snapshots/partition=0000/t.p.talk/n"])
def test_an_object_that_turns_out_damaged_is_not_kept(
    grown: World, tmp_path: Path, prefix: str
) -> None:
    world = World(objects=_Damaging(grown.objects, prefix))
    reader = world.saver(cache_dir=tmp_path)
    with pytest.raises(CorruptObjectError):
        told(reader)
    _, again = a_new_process(grown, tmp_path)
    assert told(again) == EXPECTED
    world.close()


# -- its bounds --------------------------------------------------------------------------


def test_the_directory_stays_within_its_budget_and_the_oldest_go(tmp_path: Path) -> None:
    prepare_directory(tmp_path, 10_000)
    cache = DirectoryCache(tmp_path, 10_000, "store")
    for number in range(60):
        cache.put(f"log/{number}", bytes([number]) * 480)
        for path in entries(tmp_path):  # file systems keep times by the tick
            status = path.stat()
            os.utime(path, (status.st_atime, status.st_mtime - 1))
        assert cache.get("log/0") == bytes(480), "it is used all the time"
        assert size_of(tmp_path) <= 10_000
    assert cache.get("log/59") == bytes([59]) * 480
    assert cache.get("log/1") is None


def test_what_is_larger_than_the_budget_is_not_kept(tmp_path: Path) -> None:
    prepare_directory(tmp_path, 100)
    cache = DirectoryCache(tmp_path, 100, "store")
    cache.put("log/1", bytes(200))
    assert entries(tmp_path) == []


def test_what_others_wrote_counts_too(tmp_path: Path) -> None:
    prepare_directory(tmp_path, 10_000)
    caches = [DirectoryCache(tmp_path, 10_000, "store") for _ in range(4)]
    for number in range(100):
        caches[number % 4].put(f"log/{number}", bytes(300))
    assert size_of(tmp_path) <= 10_000 * (1 + len(caches) / 16)


def test_what_a_killed_process_left_is_removed_and_never_read(tmp_path: Path) -> None:
    prepare_directory(tmp_path, 2000)
    cache = DirectoryCache(tmp_path, 2000, "store")
    cache.put("log/1", b"whole")
    (path,) = entries(tmp_path)
    left = path.with_name(f"{path.name}.0123456789abcdef.new")
    path.rename(left)
    assert cache.get("log/1") is None
    past = time.time() - 7200
    os.utime(left, (past, past))
    for number in range(9):
        cache.put(f"log/{number}", bytes(200))
    assert not left.exists()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "thesis.txt"
    mine.write_text("x" * 5000)
    prepare_directory(tmp_path, 1000)
    inside = tmp_path / "logstore-objects" / "README"
    inside.write_text("y" * 5000)
    cache = DirectoryCache(tmp_path, 1000, "store")
    for number in range(20):
        cache.put(f"log/{number}", bytes(200))
    assert mine.exists()
    assert inside.exists()
    assert cache.get("log/19") is not None


def test_a_directory_that_fails_costs_requests_and_nothing_else(
    grown: World, tmp_path: Path
) -> None:
    folder = tmp_path / "cache"
    reader = grown.saver(cache_dir=folder)
    (folder / "logstore-objects").rmdir()
    (folder / "logstore-objects").write_text("in the way")
    assert told(reader) == EXPECTED


@pytest.mark.parametrize("options", [{"cache_dir": "{}/file"}, {"cache_dir_bytes": 0}])
def test_what_can_be_no_directory_is_refused_at_opening(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    (tmp_path / "file").write_text("")
    given: dict[str, Any] = {"cache_dir": "{}/cache", **options}
    given["cache_dir"] = given["cache_dir"].format(tmp_path)
    with pytest.raises(InvalidOptionError, match="cache_dir"):
        LogStoreSaver.from_conn_string("memory://x", **given)


# -- several processes -------------------------------------------------------------------

_READ = """
import sys
from logstore import LogStoreSaver
uri, folder = sys.argv[1:]
for _ in range(3):
    options = {"compaction": "off", "cache_dir": folder, "cache_dir_bytes": 60_000}
    with LogStoreSaver.from_conn_string(uri, **options) as saver:
        found = list(saver.list({"configurable": {"thread_id": "talk"}}))
        histories = [
            saver.get_delta_channel_history(config=one.config, channels=["messages"])["messages"]
            for one in found
        ]
        seeds = [len(one["seed"].value) if "seed" in one else 0 for one in histories]
print(len(found), sum(seeds) + sum(len(one["writes"]) for one in histories))
"""


def test_processes_that_share_a_directory_too_small_for_them_read_right(tmp_path: Path) -> None:
    world = World(objects=FileObjectStore(tmp_path / "store"))
    written(world, conversation(8, size=MESSAGE))
    world.compact()
    with world.saver() as saver:
        play(conversation(2, begin=8, size=MESSAGE), saver)
    command = [sys.executable, "-c", _READ, world.objects.uri, str(tmp_path / "cache")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    readers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    for reader in readers:
        told_of, _ = reader.communicate(timeout=60)
        assert told_of.split() == ["11", str(sum(2 * step for step in range(11)))]
    assert not [path for path in entries(tmp_path / "cache") if path.name.endswith(".new")]
    world.close()
