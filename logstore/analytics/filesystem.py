"""A store's runs as files for engines that read Parquet themselves."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.fs as pafs
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from logstore.manifest import RunEntry
from logstore.objects.base import ObjectStore

PROTOCOL = "logstore"


class RunFileSystem(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """The pinned runs of a store, read through the store's own client and credentials."""

    protocol = PROTOCOL
    cachable = False

    def __init__(self, objects: ObjectStore, runs: dict[str, RunEntry]) -> None:
        """Serve these runs, by key, and nothing else."""
        super().__init__()
        self.objects = objects
        self._runs = runs

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """What is known of a run.

        Raises:
            FileNotFoundError: it was not pinned.
        """
        key = self._strip_protocol(path)
        if key not in self._runs:
            raise FileNotFoundError(f"{key} is no run of this snapshot")
        return {"name": key, "size": self._runs[key].size, "type": "file"}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """The runs below a path."""
        prefix = self._strip_protocol(path)
        found = [self.info(key) for key in self._runs if key.startswith(prefix)]
        return found if detail else [entry["name"] for entry in found]

    def modified(self, path: str) -> datetime:
        """When a run changed: since it was made never, so the same for all."""
        return datetime.fromtimestamp(0, UTC)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> RunFile:
        return RunFile(self, self._strip_protocol(path), mode, cache_type="none")


class RunFile(AbstractBufferedFile):  # type: ignore[misc] # fsspec has no types
    """A run whose reads are ranged GETs."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.objects.get_range(self.path, start, end - start)
        return data


class RunFiles:
    """Where engines find the runs: on the disk where a store is a directory, else through it."""

    def __init__(self, objects: ObjectStore, runs: dict[str, RunEntry]) -> None:
        """Serve these runs, by key."""
        self._local = objects.scheme == "file"
        root = Path(unquote(urlsplit(objects.uri).path)) if self._local else None
        self._root = f"{root}/" if root else ""
        self.filesystem = None if self._local else RunFileSystem(objects, runs)
        """To be registered with an engine; None if the runs are plain files."""

    @property
    def arrow(self) -> pafs.FileSystem:
        """The file system for Arrow."""
        if self.filesystem is None:
            return pafs.LocalFileSystem()
        return pafs.PyFileSystem(pafs.FSSpecHandler(self.filesystem))

    def path(self, key: str) -> str:
        """A run's path in it."""
        return f"{self._root}{key}"

    def url(self, key: str) -> str:
        """A run's path for an engine with which the file system was registered."""
        return self.path(key) if self._local else f"{PROTOCOL}://{key}"
