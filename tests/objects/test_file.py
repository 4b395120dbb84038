"""The file store under crashes, several processes, forks and a meddling administrator."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConditionFailedError,
    ObjectNotFoundError,
    ObjectStoreError,
    OutcomeUnknownError,
    UnavailableError,
    UsageError,
)
from logstore.objects.file import FileObjectStore

COUNT = """
import sys
from logstore.errors import ConditionFailedError
from logstore.objects.file import FileObjectStore

store, me, times = FileObjectStore(sys.argv[1]), sys.argv[2], int(sys.argv[3])
done = 0
while done < times:
    found = store.get("counter")
    value = int(found.data.split()[0])
    try:
        store.compare_and_swap("counter", f"{value + 1} {me} {done}".encode(), found.etag)
    except ConditionFailedError:
        continue
    done += 1
"""
PUT = """
import sys
from logstore.objects.file import FileObjectStore

store, number = FileObjectStore(sys.argv[1]), 0
etag = store.put_if_absent("swapped", b"%08d" % 0 + b"x" * 2_000_000).etag
print("ready", flush=True)
while True:
    number += 1
    body = b"%08d" % number + b"x" * 2_000_000
    store.put_if_absent(f"put/{number}", body)
    etag = store.compare_and_swap("swapped", body, etag).etag
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def store(root: Path) -> FileObjectStore:
    return FileObjectStore(root)


def keys(store: FileObjectStore, prefix: str = "") -> set[str]:
    return {entry.key for page in store.list(prefix) for entry in page.objects}


def python(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def test_processes_that_count_by_compare_and_swap_lose_nothing(
    store: FileObjectStore, root: Path
) -> None:
    store.put_if_absent("counter", b"0 start")
    workers = [python(COUNT, root, me, 100) for me in ("one", "two")]
    for worker in workers:
        with worker:
            assert worker.wait(60) == 0
    assert store.get("counter").data.startswith(b"200 ")


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.011, 0.023, 0.041])
def test_a_killed_writer_leaves_whole_objects_only(
    store: FileObjectStore, root: Path, delay: float
) -> None:
    with python(PUT, root) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(delay)
        writer.send_signal(signal.SIGKILL)
    for key in keys(store):
        data = store.get(key).data
        assert (len(data), set(data[8:])) == (2_000_008, {ord("x")})
        if key.startswith("put/"):
            assert int(data[:8]) == int(key.removeprefix("put/"))
    found = store.get("swapped")
    store.compare_and_swap("swapped", b"the lock is free", found.etag)


def test_leftovers_are_swept_a_day_later(root: Path, store: FileObjectStore) -> None:
    spool = root / ".tmp"
    spool.mkdir()
    for name in ("old", "young"):
        (spool / name).write_bytes(b"1")
    day_ago = time.time() - 86_500
    os.utime(spool / "old", (day_ago, day_ago))
    FileObjectStore(root)
    assert [path.name for path in spool.iterdir()] == ["young"]


def test_writing_leaves_nothing_in_the_spool(root: Path, store: FileObjectStore) -> None:
    stored = store.put_if_absent("key", b"1")
    store.compare_and_swap("key", b"2", stored.etag)
    for lost in ("key", "key"):
        with pytest.raises(ConditionFailedError):
            store.put_if_absent(lost, b"3")
        with pytest.raises(ConditionFailedError):
            store.compare_and_swap(lost, b"3", stored.etag)
    assert list((root / ".tmp").iterdir()) == []


def test_the_time_of_modification_is_that_of_arrival(store: FileObjectStore) -> None:
    before = time.time()
    store.put_if_absent("key", b"1")
    assert before - 0.05 <= store.get("key").modified <= time.time()


def test_private_folders_hold_no_objects(root: Path, store: FileObjectStore) -> None:
    stored = store.put_if_absent("a/key", b"1")
    store.compare_and_swap("a/key", b"2", stored.etag)
    assert (root / ".tmp").is_dir()
    assert (root / ".locks").is_dir()
    (root / ".tmp" / "half").write_bytes(b"1")
    assert keys(store) == {"a/key"}
    for prefix in (".", ".tmp", ".tmp/", ".tmp/h", ".locks/"):
        assert keys(store, prefix) == set()
    for key in (".tmp/half", ".tmp", ".locks/00"):
        with pytest.raises(UsageError, match="reserved"):
            store.get(key)
        with pytest.raises(UsageError, match="reserved"):
            store.put_if_absent(key, b"1")
    store.put_if_absent("a/.tmp/fine", b"1")
    assert store.get("a/.tmp/fine").data == b"1"


def test_reading_writes_nothing(root: Path) -> None:
    store = FileObjectStore(root)
    with pytest.raises(ObjectNotFoundError):
        store.get("key")
    assert keys(store) == set()
    assert list(root.iterdir()) == []


def test_folders_that_vanish_between_calls_are_made_again(
    root: Path, store: FileObjectStore
) -> None:
    stored = store.put_if_absent("a/b/key", b"1")
    store.compare_and_swap("a/b/key", b"2", stored.etag)
    for folder in ("a", ".tmp", ".locks"):
        shutil.rmtree(root / folder)
    with pytest.raises(ObjectNotFoundError):
        store.get("a/b/key")
    with pytest.raises(ConditionFailedError):
        store.compare_and_swap("a/b/key", b"3", stored.etag)
    store.delete(["a/b/key"])
    assert keys(store, "a/") == set()
    again = store.put_if_absent("a/b/key", b"1")
    store.compare_and_swap("a/b/key", b"2", again.etag)
    assert store.get("a/b/key").data == b"2"


def test_a_root_that_vanished_is_not_an_empty_store(root: Path, store: FileObjectStore) -> None:
    etag = store.put_if_absent("a/key", b"1").etag
    shutil.rmtree(root)
    requests: list[Callable[[], object]] = [
        lambda: store.get("a/key"),
        lambda: store.get_range("a/key", 0, 1),
        lambda: store.get_if_changed("a/key", etag),
        lambda: store.put_if_absent("a/key", b"1"),
        lambda: store.compare_and_swap("a/key", b"2", etag),
        lambda: store.delete(["a/key"]),
        lambda: list(store.list("a/")),
    ]
    for request in requests:
        with pytest.raises(BucketNotFoundError, match="mount or restore"):
            request()
    assert not root.exists()


def test_deleting_the_last_object_removes_its_folders(root: Path, store: FileObjectStore) -> None:
    store.put_if_absent("a/b/c/1", b"1")
    store.put_if_absent("a/2", b"1")
    store.delete(["a/b/c/1"])
    assert not (root / "a" / "b").exists()
    store.delete(["a/2"])
    assert root.is_dir()
    assert not (root / "a").exists()


def test_writers_and_deleters_of_one_folder_do_not_trip_each_other(
    store: FileObjectStore,
) -> None:
    failures: list[Exception] = []

    def churn(me: int) -> None:
        try:
            for number in range(100):
                key = f"a/b/{me}-{number}"
                store.put_if_absent(key, b"1")
                assert store.get(key).data == b"1"
                list(store.list("a/"))
                store.delete([key])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=churn, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert keys(store) == set()


def test_a_key_cannot_be_the_folder_of_another(store: FileObjectStore) -> None:
    store.put_if_absent("a", b"1")
    with pytest.raises(ObjectStoreError, match="folder of another") as caught:
        store.put_if_absent("a/b", b"1")
    assert type(caught.value) is ObjectStoreError


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_amid_swaps_can_go_on(store: FileObjectStore) -> None:
    stop = threading.Event()

    def swap(key: str) -> None:
        etag, number = store.put_if_absent(key, b"0").etag, 0
        while not stop.is_set():
            number += 1
            etag = store.compare_and_swap(key, b"%d" % number, etag).etag

    swappers = [threading.Thread(target=swap, args=(f"swapped/{n}",)) for n in range(3)]
    for swapper in swappers:
        swapper.start()
    try:
        for number in range(10):
            child = os.fork()
            if not child:
                etag = store.put_if_absent(f"child/{number}", b"1").etag
                for key in [f"child/{number}"] * 3:
                    etag = store.compare_and_swap(key, etag.encode(), etag).etag
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        for swapper in swappers:
            swapper.join()
    assert len(keys(store, "child/")) == 10


def test_a_stopped_holder_of_a_lock_is_named(
    store: FileObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etag = store.put_if_absent("key", b"1").etag
    store.compare_and_swap("key", b"2", etag)
    (lock,) = (root / ".locks").iterdir()
    code = (
        "import fcntl, sys, time\n"
        "file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True); time.sleep(60)\n"
    )
    monkeypatch.setattr("logstore.objects.file_locks._PATIENCE", 0.05)
    with python(code, lock) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(UnavailableError, match="locked by another process"):
            store.compare_and_swap("key", b"3", etag)
        holder.kill()


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOSPC, UnavailableError),
        (errno.EDQUOT, UnavailableError),
        (errno.EIO, UnavailableError),
        (errno.EMFILE, UnavailableError),
        (errno.EACCES, AccessDeniedError),
        (errno.EROFS, AccessDeniedError),
    ],
)
def test_the_systems_errors_are_told_with_its_text(
    store: FileObjectStore, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(error, match=os.strerror(number)):
            store.put_if_absent("key", b"1")
    assert keys(store) == set()


def test_an_object_that_may_not_be_durable_is_an_unknown_outcome(
    store: FileObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("logstore.objects.file.sync_folder", fail)
    with pytest.raises(OutcomeUnknownError, match="durable"):
        store.put_if_absent("key", b"1")


def test_a_file_that_cannot_be_written_whole_is_unavailable(
    store: FileObjectStore, root: Path
) -> None:
    code = (
        "import resource, signal, sys\n"
        "from logstore.errors import UnavailableError\n"
        "from logstore.objects.file import FileObjectStore\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    FileObjectStore(sys.argv[1]).put_if_absent('key', b'x' * 5000)\n"
        "except UnavailableError as error:\n"
        "    sys.exit(0 if 'File too large' in str(error) else str(error))\n"
        "sys.exit('it was written')\n"
    )
    with python(code, root) as writer:
        assert writer.wait(30) == 0
    assert keys(store) == set()
    assert list((root / ".tmp").iterdir()) == []
