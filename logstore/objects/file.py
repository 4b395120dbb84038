"""Objects as files of one directory, safe under crashes, threads, processes and forks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from urllib.parse import quote

from logstore.errors import (
    ConditionFailedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    UnavailableError,
    UsageError,
)
from logstore.objects.base import ListPage, ObjectData, ObjectInfo, ObjectStore, Stored
from logstore.objects.checks import check_body, check_key, check_prefix, check_range
from logstore.objects.file_io import (
    LOCKS,
    PRIVATE,
    Spool,
    make_folders,
    open_root,
    os_errors,
    remove_empty_folders,
    require_root,
    sync_folder,
)
from logstore.objects.file_locks import KeyLocks

_PAGE = 1000
_LINK_TRIES = 100
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class FileObjectStore(ObjectStore):
    """A directory of a local file system, or of a network one with hard links and locks.

    An object becomes visible by a hard link or a rename of a file that is already whole
    and on the disk, so a crash at any moment leaves the object as it was. Its time of
    modification is set just before that: it is the time of arrival.

    The ETag is a hash of the content. It names a version only as long as no two versions
    of one key have equal bytes, which the layers above guarantee.

    Args:
        root: the directory, absolute; it is created if it does not exist.

    Raises:
        InvalidURIError: `root` or a parent of it is not a directory.
        AccessDeniedError: `root` cannot be created or read.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root)
        self.uri = f"file://{quote(str(self._root))}"
        open_root(self._root)
        self._locks = KeyLocks(self._root, self._root / LOCKS)
        self._spool = Spool(self._root)
        self._spool.sweep()

    def get(self, key: str) -> ObjectData:
        """Read a whole object. See `ObjectStore.get`."""
        path = self._path(key)
        with self._reading(key), open(path, "rb") as file:
            modified = os.fstat(file.fileno()).st_mtime
            data = file.read()
        return ObjectData(key, data, _etag(data), modified, time.time())

    def get_if_changed(self, key: str, etag: str) -> ObjectData | None:
        """Read a whole object unless unchanged. See `ObjectStore.get_if_changed`."""
        found = self.get(key)
        return None if found.etag == etag else found

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read a part of an object. See `ObjectStore.get_range`."""
        check_range(key, start, length)
        path = self._path(key)
        with self._reading(key), open(path, "rb") as file:
            file.seek(start)
            return file.read(length)

    def put_if_absent(self, key: str, data: bytes) -> Stored:
        """Create an object. See `ObjectStore.put_if_absent`."""
        path = self._path(key)
        with self._writing(key), self._spool.written(check_body(key, data)) as fresh:
            self._link(fresh, path, key)
        return self._stored(path, key, data)

    def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> Stored:
        """Replace one version of an object. See `ObjectStore.compare_and_swap`."""
        if expected is None:
            return self.put_if_absent(key, data)
        path = self._path(key)
        with (
            self._writing(key),
            self._spool.written(check_body(key, data)) as fresh,
            self._locks.held(key),
        ):
            self._require_version(path, key, expected)
            os.utime(fresh)
            os.replace(fresh, path)
        return self._stored(path, key, data)

    def list(self, prefix: str) -> Iterator[ListPage]:
        """List objects by prefix. See `ObjectStore.list`."""
        check_prefix(prefix)
        page = []
        for found in self._walk(prefix):
            page.append(found)
            if len(page) == _PAGE:
                yield ListPage(tuple(page), time.time())
                page = []
        # Folders that vanish are no error, but without the root nothing is known.
        require_root(self._root)
        yield ListPage(tuple(page), time.time())

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. See `ObjectStore.delete`."""
        for key in keys:
            path = self._path(key)
            # Under the lock, or a compare-and-swap in progress could bring it back.
            with self._writing(key), self._locks.held(key), suppress(*_ABSENT):
                path.unlink()
            remove_empty_folders(self._root, path.parent)

    def _path(self, key: str) -> Path:
        if check_key(key).partition("/")[0] in PRIVATE:
            raise UsageError(
                f"object key {key!r} is reserved: expected none below {sorted(PRIVATE)}"
            )
        return self._root / key

    def _writing(self, key: str) -> AbstractContextManager[None]:
        return os_errors(f"writing {self.uri}/{key}", self._root)

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        with os_errors(f"reading {self.uri}/{key}", self._root):
            try:
                yield
            except _ABSENT as error:
                require_root(self._root)
                raise ObjectNotFoundError(
                    f"{self.uri}: no object {key!r}; it was expected to exist"
                ) from error

    def _link(self, fresh: Path, path: Path, key: str) -> None:
        for _ in range(_LINK_TRIES):
            try:
                os.utime(fresh)
                os.link(fresh, path)
                return
            except FileExistsError as error:
                raise ConditionFailedError(
                    f"{self.uri}: {key!r} exists already; expected to create it: read it "
                    "and decide anew"
                ) from error
            except FileNotFoundError:
                # Deleting a folder's last object removes the folder, at any moment.
                make_folders(self._root, path.parent)
        raise UnavailableError(
            f"{self.uri}: the folder of {key!r} vanished {_LINK_TRIES} times while the object "
            "was being created; try again"
        )

    def _require_version(self, path: Path, key: str, expected: str) -> None:
        try:
            found = _etag(path.read_bytes())
        except _ABSENT:
            found = None
        if found != expected:
            require_root(self._root)
            raise ConditionFailedError(
                f"{self.uri}: {key!r} is at version {found}, expected {expected}; "
                "read it again and decide anew"
            )

    def _stored(self, path: Path, key: str, data: bytes) -> Stored:
        subject = f"making {self.uri}/{key} durable"
        # A folder that is gone held only this object, which somebody has deleted since.
        with os_errors(subject, self._root, OutcomeUnknownError), suppress(FileNotFoundError):
            sync_folder(path.parent)
        return Stored(_etag(data), time.time())

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        base = prefix.rpartition("/")[0]
        pending = [f"{base}/" if base else ""]
        while pending:
            folder = pending.pop()
            with os_errors(f"listing {self.uri}/{folder}", self._root):
                folders, objects = _scan(self._root, folder)
            pending += [key for key in folders if key.startswith(prefix)]
            yield from (found for found in objects if found.key.startswith(prefix))


def _scan(root: Path, folder: str) -> tuple[list[str], list[ObjectInfo]]:
    folders: list[str] = []
    objects: list[ObjectInfo] = []
    if folder.partition("/")[0] in PRIVATE:
        return folders, objects
    with suppress(*_ABSENT), os.scandir(root / folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(f"{folder}{entry.name}/")
                continue
            with suppress(FileNotFoundError):
                status = entry.stat()
                objects.append(ObjectInfo(folder + entry.name, status.st_size, status.st_mtime))
    return folders, objects


def _etag(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()
