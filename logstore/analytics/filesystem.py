"""A store's runs as files for engines that read Parquet themselves."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from logstore.manifest import RunEntry
from logstore.objects.base import ObjectStore


class RunFileSystem(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """The pinned runs of a store, read through the store's own client and credentials."""

    protocol = "logstore"
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
