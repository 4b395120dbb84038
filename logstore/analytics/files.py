"""Where engines that read Parquet themselves find a snapshot's runs and kept tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pyarrow.fs as pafs

from logstore.analytics.spool import in_spool
from logstore.errors import UsageError
from logstore.manifest import RunEntry
from logstore.objects.base import ObjectStore

if TYPE_CHECKING:
    from logstore.analytics.filesystem import RunFileSystem


class RunFiles:
    """Where engines find the runs: on the disk where a store is a directory, else through it."""

    def __init__(self, objects: ObjectStore, runs: dict[str, RunEntry], spool: Path) -> None:
        """Serve these runs, by key; what is spooled lies in `spool`."""
        self._spool = spool
        self._runs = dict(runs)
        self._root = ""
        self.filesystem: RunFileSystem | None = None
        """To be registered with an engine; None if the runs are plain files."""
        if objects.scheme == "file":
            self._root = f"{Path(unquote(urlsplit(objects.uri).path))}/"
        else:
            self.filesystem = _filesystem(objects, self._runs)

    def serve(self, more: Iterable[RunEntry]) -> None:
        """Serve these too."""
        self._runs.update((file.key, file) for file in more)

    @property
    def arrow(self) -> pafs.FileSystem:
        """The file system for Arrow."""
        if self.filesystem is None:
            return pafs.LocalFileSystem()
        return pafs.PyFileSystem(pafs.FSSpecHandler(self.filesystem))

    def path(self, key: str) -> str:
        """A run's path in it."""
        if self.filesystem is None and in_spool(key):
            return str(self._spool / key)
        return f"{self._root}{key}"

    def url(self, key: str) -> str:
        """A run's path for an engine with which the file system was registered."""
        if self.filesystem is None:
            return self.path(key)
        return f"{self.filesystem.protocol}://{key}"


def _filesystem(objects: ObjectStore, runs: dict[str, RunEntry]) -> RunFileSystem:
    try:
        from logstore.analytics.filesystem import RunFileSystem
    except ImportError as error:
        raise UsageError(
            f"tables of a {objects.scheme}:// store need fsspec: "
            'pip install "langgraph-checkpoint-logstore[analytics]"'
        ) from error
    return RunFileSystem(objects, runs)
