"""Immutable objects kept in a local directory, so that a process that starts again has them.

An entry is a file: its checksum, then an object's bytes or a range of them. It is written
under another name and renamed, so that any number of processes may share the directory and
end at any time. It is read only if its checksum holds for the very name it was kept under; a
damaged one is dropped. Losing an entry, or all of them, costs a request and nothing else.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, TypeVar

from logstore.errors import CorruptObjectError, InvalidOptionError
from logstore.objects.base import ObjectStore

logger = logging.getLogger(__name__)
T = TypeVar("T")
_MAGIC = b"LSC1"
_DIGEST_BYTES = 16
_FOLDER = "logstore-objects"
_UNFINISHED = ".new"
_OURS = re.compile(r"[0-9a-f]{40}[-.0-9a-z]*")
"""The names that this module gives. Other files, whoever put them there, are left alone."""
_ABANDONED_AFTER_S = 3600.0
_LOW_WATER = 0.9
"""How full the directory is after old entries were removed."""
_LOOK_AGAIN = 1 / 16
"""After writing this part of the budget a process looks what the others have written."""


def prepare_directory(root: str | Path, budget: int) -> None:
    """Make sure that a directory can be used as a cache.

    Raises:
        InvalidOptionError: it cannot be created or written, or the budget is no size.
    """
    if budget < 1:
        raise InvalidOptionError(f"cache_dir_bytes is a number of bytes, not {budget}")
    folder = Path(root, _FOLDER)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = folder / secrets.token_hex(20)
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise InvalidOptionError(
            f"cache_dir {str(root)!r} cannot be used ({error}); name a directory that this "
            "process may write, or leave the option out"
        ) from error


class _Entry(NamedTuple):
    used: float
    """When it was last read or written: seconds since the epoch."""
    size: int
    path: str


class DirectoryCache:
    """Files under a budget of bytes, the least recently used removed first.

    Each process counts what it writes itself and looks at the whole directory now and then, so
    several together may exceed the budget by a sixteenth each for a while.
    """

    def __init__(self, root: str | Path, budget: int, store: str) -> None:
        """Use a directory that `prepare_directory` has approved.

        Args:
            root: the directory, which may serve several stores and processes.
            budget: how many bytes all its entries have at most.
            store: the identity of the store whose objects these are.
        """
        self._root = Path(root, _FOLDER)
        self._budget = budget
        self._store = store
        self._lock = threading.Lock()
        self._used: int | None = None
        """Bytes in the directory, as far as is known; None before the first look."""
        self._unseen = 0
        """Bytes written since the last look."""
        self._warned = False

    def get(self, key: str, part: str = "") -> bytes | None:
        """What is kept of an object, or None."""
        path = self._path(key, part)
        try:
            with open(path, "rb") as file:
                found = file.read()
        except OSError:
            return None
        data = found[len(_MAGIC) + _DIGEST_BYTES :]
        if found[: len(_MAGIC) + _DIGEST_BYTES] != self._header(path, data):
            logger.warning("the cached file %s is damaged and was dropped", path)
            _remove(path)
            return None
        with suppress(OSError):
            os.utime(path)
        return data

    def put(self, key: str, data: bytes, part: str = "") -> None:
        """Keep an object, or a part of it. That it cannot be kept is no error."""
        path = self._path(key, part)
        size = len(_MAGIC) + _DIGEST_BYTES + len(data)
        if size > self._budget:
            return
        unfinished = f"{path}.{secrets.token_hex(8)}{_UNFINISHED}"
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with open(unfinished, "xb") as file:
                file.write(self._header(path, data))
                file.write(data)
            os.replace(unfinished, path)
        except OSError as error:
            _remove(unfinished)
            if not self._warned:
                self._warned = True
                logger.warning("cannot write to the cache directory %s: %s", self._root, error)
            return
        self._account(size)

    def forget(self, key: str) -> None:
        """Drop all that is kept of an object."""
        path = self._path(key, "")
        for found in path.parent.glob(f"{path.name}*"):
            _remove(found)

    def _path(self, key: str, part: str) -> Path:
        name = blake2b(f"{self._store}\0{key}".encode(), digest_size=20).hexdigest()
        return self._root / name[:2] / f"{name}{part}"

    @staticmethod
    def _header(path: Path, data: bytes) -> bytes:
        digest = blake2b(data, digest_size=_DIGEST_BYTES, key=path.name.encode()[:64])
        return _MAGIC + digest.digest()

    # -- the budget --------------------------------------------------------------

    def _account(self, size: int) -> None:
        with self._lock:
            self._unseen += size
            if self._used is not None:
                self._used += size
                if self._used <= self._budget and self._unseen < self._budget * _LOOK_AGAIN:
                    return
            self._used = self._make_room()
            self._unseen = 0

    def _make_room(self) -> int:
        """Remove the oldest entries if there are too many; the bytes that are left."""
        entries = sorted(self._entries())
        used = sum(entry.size for entry in entries)
        if used <= self._budget:
            return used
        for entry in entries:
            if used <= self._budget * _LOW_WATER:
                break
            _remove(entry.path)
            used -= entry.size
        return used

    def _entries(self) -> Iterator[_Entry]:
        """What is in the directory, but for what a process that ended left unfinished."""
        now = time.time()
        for folder, _, names in os.walk(self._root):
            for name in filter(_OURS.fullmatch, names):
                path = os.path.join(folder, name)
                with suppress(OSError):  # another process removed it
                    status = os.stat(path)
                    unfinished = name.endswith(_UNFINISHED)
                    if unfinished and now - status.st_mtime > _ABANDONED_AFTER_S:
                        _remove(path)
                    else:
                        yield _Entry(status.st_mtime, status.st_size, path)


def _remove(path: str | Path) -> None:
    with suppress(OSError):
        os.unlink(path)


class ImmutableObjects:
    """Reads objects that never change: from the directory if they are there.

    Whether an object exists it cannot tell.
    """

    def __init__(self, objects: ObjectStore, directory: DirectoryCache | None = None) -> None:
        """Read from `objects` what is not in `directory`."""
        self._objects = objects
        self._directory = directory

    def read(self, key: str, decode: Callable[[bytes], T]) -> T:
        """Read and decode a whole object.

        Raises:
            ObjectNotFoundError: it is gone.
            CorruptObjectError: what `decode` raises; nothing is kept then.
        """
        data = self._directory.get(key) if self._directory else None
        if data is not None:
            with suppress(CorruptObjectError):
                return decode(data)
        data = self._objects.get(key).data
        value = decode(data)
        if self._directory:
            self._directory.put(key, data)
        return value

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read a range of an object.

        Raises:
            ObjectNotFoundError: it is gone.
        """
        if self._directory is None:
            return self._objects.get_range(key, start, length)
        part = f"-{start}-{length}"
        data = self._directory.get(key, part)
        if data is None:
            data = self._objects.get_range(key, start, length)
            self._directory.put(key, data, part)
        return data

    def forget(self, key: str) -> None:
        """Keep nothing of an object whose ranges turned out to be unreadable."""
        if self._directory is not None:
            self._directory.forget(key)
