"""Locks by key that hold between the threads of all processes on one directory."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from logstore.errors import UnavailableError
from logstore.objects.file_io import make_folders

# Keys share a fixed number of locks, so that lock files do not pile up with the keys.
_STRIPES = 64
_PATIENCE = 30.0
_POLL = 0.002

# A file lock alone would do for threads on a local file system, but a network one may
# turn it into a lock that belongs to the whole process.
_THREAD_LOCKS = [threading.Lock() for _ in range(_STRIPES)]


def _acquire_all() -> None:
    for lock in _THREAD_LOCKS:
        lock.acquire()


def _release_all() -> None:
    for lock in _THREAD_LOCKS:
        lock.release()


# No thread may hold a lock while the process forks: the child would inherit it locked,
# and with it a descriptor that keeps the file locked when the parent dies.
os.register_at_fork(before=_acquire_all, after_in_parent=_release_all, after_in_child=_release_all)


class KeyLocks:
    """Mutual exclusion by key.

    Args:
        root: the store's directory.
        folder: where the lock files are, below it.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._folder = folder

    @contextmanager
    def held(self, key: str) -> Iterator[None]:
        """Hold the key's lock.

        Raises:
            UnavailableError: another process has held it for too long; it may be stopped.
            OSError: the lock file cannot be opened.
        """
        stripe = blake2b(key.encode(), digest_size=1).digest()[0] % _STRIPES
        path = self._folder / f"{stripe:02x}"
        with _THREAD_LOCKS[stripe]:
            descriptor = self._open(path)
            try:
                _lock(descriptor, path)
                yield
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)

    def _open(self, path: Path) -> int:
        flags = os.O_RDWR | os.O_CREAT
        try:
            return os.open(path, flags, 0o666)
        except FileNotFoundError:
            make_folders(self._root, self._folder)
            return os.open(path, flags, 0o666)


def _lock(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"{path} has been locked by another process for {_PATIENCE:.0f} s; it was "
                    "expected to be released in milliseconds: look for a stopped process"
                ) from error
        time.sleep(_POLL)
