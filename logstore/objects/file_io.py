"""What the file store asks of the file system, and what its errors mean."""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from logstore.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    InvalidURIError,
    ObjectStoreError,
    UnavailableError,
)

SPOOL = ".tmp"
LOCKS = ".locks"
PRIVATE = frozenset({SPOOL, LOCKS})
"""Folders below the root that hold no objects."""

_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_MISPLACED = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP})
_LEFTOVER_AGE = 86_400.0


@contextmanager
def os_errors(
    subject: str, root: Path, otherwise: type[ObjectStoreError] = UnavailableError
) -> Iterator[None]:
    """Turn the operating system's errors into logstore's.

    Args:
        subject: what was being done, for the message.
        root: the store's directory.
        otherwise: the class of an error that may pass, such as a full disk.

    Raises:
        ObjectStoreError: of the class that fits, with the system's text.
    """
    try:
        yield
    except OSError as error:
        text = f"{subject}: {error.strerror or error}"
        if error.errno in _FORBIDDEN:
            raise AccessDeniedError(
                f"{text}; expected to be allowed to read and write below {root}: "
                "check owner, mode and mount"
            ) from error
        if error.errno in _MISPLACED:
            raise ObjectStoreError(
                f"{text}; expected a folder where a key has '/', and a file where it ends: "
                "no key may also be the folder of another"
            ) from error
        if error.errno == errno.ENOENT:
            require_root(root)
        raise otherwise(f"{text}; check the disk and try again") from error


def require_root(root: Path) -> None:
    """Check that a missing file is not a sign of a missing store.

    Raises:
        BucketNotFoundError: the store's directory is gone.
    """
    if not root.is_dir():
        raise BucketNotFoundError(
            f"directory {root} is gone; it was expected to hold the store: mount or restore it"
        )


def open_root(root: Path) -> None:
    """Create the store's directory where it is missing, and check that it can be read.

    Raises:
        InvalidURIError: the path, or a parent of it, is not a directory.
        AccessDeniedError: it may not be created or read.
    """
    try:
        with os_errors(f"opening {root}", root):
            root.mkdir(parents=True, exist_ok=True)
            os.scandir(root).close()
    except ObjectStoreError as error:
        if isinstance(error.__cause__, FileExistsError | NotADirectoryError):
            raise InvalidURIError(
                f"{root} cannot hold a store: expected a directory, found a file on the way: "
                "name another path"
            ) from error
        raise


def make_folders(root: Path, folder: Path) -> None:
    """Create a folder below the root, durably, with the folders it lies in.

    Raises:
        OSError: it cannot be created; `FileNotFoundError` also if the root is gone.
    """
    if folder == root:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(root))
    try:
        os.mkdir(folder)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_folders(root, folder.parent)
        make_folders(root, folder)
        return
    sync_folder(folder.parent)


def remove_empty_folders(root: Path, folder: Path) -> None:
    """Remove a folder below the root, and those it lies in, as far as they are empty."""
    with suppress(OSError):
        while folder != root:
            os.rmdir(folder)
            folder = folder.parent


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable.

    Raises:
        OSError: the folder cannot be opened or synced.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Spool:
    """The hidden folder where objects are written before anybody may see them.

    Args:
        root: the store's directory.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folder = root / SPOOL

    @contextmanager
    def written(self, data: bytes) -> Iterator[Path]:
        """Write a file that is whole and on the disk, and remove it in the end.

        Yields:
            Its path, in the same file system as the objects.

        Raises:
            OSError: it cannot be written.
        """
        path = self._folder / f"{os.getpid()}-{secrets.token_hex(8)}"
        try:
            with self._create(path) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield path
        finally:
            with suppress(OSError):
                path.unlink()

    def sweep(self) -> None:
        """Remove what crashed writers left here more than a day ago."""
        oldest = time.time() - _LEFTOVER_AGE
        with suppress(OSError):
            for path in self._folder.iterdir():
                with suppress(OSError):
                    if path.stat().st_mtime < oldest:
                        path.unlink()

    def _create(self, path: Path) -> BinaryIO:
        try:
            return open(path, "xb")
        except FileNotFoundError:
            make_folders(self._root, self._folder)
            return open(path, "xb")
