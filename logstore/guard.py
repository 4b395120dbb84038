"""A saver that marks what a delta-mode process writes, and guards a full-mode process from it.

A full-mode graph that opened a delta thread would find no messages and go on without them. So
a delta-mode process marks each checkpoint's metadata, and a full-mode process refuses a marked
one before it reads or writes state. The other way round nothing is lost: `DeltaChannel` starts
from a whole list as it would from a snapshot.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, cast

from cachetools import LRUCache
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from logstore.config import ChannelMode
from logstore.errors import CheckpointModeMismatchError
from logstore.forks import fork_safe_lock
from logstore.modes import MODE_KEY, freeze, is_delta

_KNOWN_CHECKPOINTS = 4096


def with_mode(saver: BaseCheckpointSaver[Any], mode: ChannelMode | None = None) -> ModeSaver:
    """A saver that marks and guards checkpoints by the process's mode, which it freezes.

    Example:
        ```python
        saver = with_mode(LogStoreSaver.from_conn_string(uri), "delta")
        graph = builder.compile(checkpointer=saver)
        ```

    Args:
        saver: any checkpoint saver.
        mode: what the application's configuration says; None takes what is frozen, or `full`.

    Raises:
        CheckpointModeReconfigurationError: another mode is frozen.
        InvalidOptionError: there is no such mode.
    """
    return ModeSaver(saver, freeze(mode).mode)


class ModeSaver(BaseCheckpointSaver[Any]):
    """A thin wrapper of a saver: in delta mode it marks what is put, in full mode it guards.

    Every method that reads or writes state in full mode first makes sure that the addressed
    checkpoint is none of delta mode. What else the saver has (`delete_thread`, `flush`, …) is
    passed on.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any], mode: ChannelMode) -> None:
        """Wrap a saver; most callers want `with_mode`."""
        self.mode = mode
        self._lock = fork_safe_lock()
        self._full: LRUCache[_Address, bool] = LRUCache(_KNOWN_CHECKPOINTS)
        self._wrap(saver)

    def _wrap(self, saver: BaseCheckpointSaver[Any]) -> None:
        self.saver = saver
        for name in _PASSED_ON:
            setattr(self, name, getattr(saver, name))

    def __copy__(self) -> Self:
        """A wrapper of a copy of the saver, which may get another serde."""
        clone = object.__new__(type(self))
        clone.__dict__.update(self.__dict__)
        clone._wrap(copy.copy(self.saver))
        return clone

    def __getattr__(self, name: str) -> Any:
        if name == "saver":  # not there yet, while a copy is made
            raise AttributeError(name)
        return getattr(self.saver, name)

    @property
    def serde(self) -> SerializerProtocol:
        """The wrapped saver's serde."""
        return self.saver.serde

    @serde.setter
    def serde(self, serde: SerializerProtocol) -> None:
        self.saver.serde = serde

    @property
    def config_specs(self) -> list[Any]:
        """The wrapped saver's."""
        return self.saver.config_specs

    # -- the guard ---------------------------------------------------------------

    def _check(self, config: RunnableConfig, found: CheckpointTuple | None) -> None:
        """Refuse a checkpoint of delta mode; remember one that is not."""
        if self.mode == "delta":
            return
        if found is not None and is_delta(found):
            raise CheckpointModeMismatchError(
                "Thread requires delta mode; materialize and convert its checkpoints before using "
                "full mode."
            )
        address = _address(config if found is None else found.config)
        if found is not None or address.checkpoint_id is None:
            self._remember(address)

    def _remember(self, address: _Address) -> None:
        with self._lock:
            self._full[address] = True

    def _admitted(self, config: RunnableConfig) -> bool:
        """Whether a call on a checkpoint needs no look at it."""
        if self.mode == "delta":
            return True
        address = _address(config)
        with self._lock:
            if address.checkpoint_id is None:
                # That there is no thread holds for the put that follows, and no longer.
                return self._full.pop(address, False)
            return address in self._full

    def _marked(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata
    ) -> tuple[RunnableConfig, CheckpointMetadata]:
        """The config and metadata of a put, with the process's mark and nobody else's."""
        fields = {key: value for key, value in metadata.items() if key != MODE_KEY}
        if self.mode == "delta":
            fields[MODE_KEY] = "delta"
        else:
            self._remember(_address(config)._replace(checkpoint_id=checkpoint["id"]))
        return _without_mark(config), cast(CheckpointMetadata, fields)

    # -- reading -----------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As the wrapped saver's.

        Raises:
            CheckpointModeMismatchError: in full mode, the checkpoint is one of delta mode.
        """
        found = self.saver.get_tuple(config)
        self._check(config, found)
        return found

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Like `get_tuple`."""
        found = await self.saver.aget_tuple(config)
        self._check(config, found)
        return found

    def list(self, config: RunnableConfig | None, **how: Any) -> Iterator[CheckpointTuple]:
        """As the wrapped saver's, up to a checkpoint that full mode must not read.

        Raises:
            CheckpointModeMismatchError: in full mode, the next checkpoint is one of delta mode.
        """
        for found in self.saver.list(config, **how):
            self._check(found.config, found)
            yield found

    async def alist(
        self, config: RunnableConfig | None, **how: Any
    ) -> AsyncIterator[CheckpointTuple]:
        """Like `list`."""
        async for found in self.saver.alist(config, **how):
            self._check(found.config, found)
            yield found

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """As the wrapped saver's.

        Raises:
            CheckpointModeMismatchError: in full mode, the checkpoint is one of delta mode.
        """
        if not self._admitted(config):
            self.get_tuple(config)
        return self.saver.get_delta_channel_history(config=config, channels=channels)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Like `get_delta_channel_history`."""
        if not self._admitted(config):
            await self.aget_tuple(config)
        return await self.saver.aget_delta_channel_history(config=config, channels=channels)

    # -- writing -----------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As the wrapped saver's, with the process's mark.

        Raises:
            CheckpointModeMismatchError: in full mode, the parent is a checkpoint of delta mode.
        """
        if not self._admitted(config):
            self.get_tuple(config)
        config, metadata = self._marked(config, checkpoint, metadata)
        return self.saver.put(config, checkpoint, metadata, new_versions)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Like `put`."""
        if not self._admitted(config):
            await self.aget_tuple(config)
        config, metadata = self._marked(config, checkpoint, metadata)
        return await self.saver.aput(config, checkpoint, metadata, new_versions)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """As the wrapped saver's.

        Raises:
            CheckpointModeMismatchError: in full mode, the checkpoint is one of delta mode.
        """
        if not self._admitted(config):
            self.get_tuple(config)
        self.saver.put_writes(config, writes, task_id, task_path)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Like `put_writes`."""
        if not self._admitted(config):
            await self.aget_tuple(config)
        await self.saver.aput_writes(config, writes, task_id, task_path)


_PASSED_ON = (
    "get_next_version",
    "delete_thread",
    "adelete_thread",
    "delete_for_runs",
    "adelete_for_runs",
    "copy_thread",
    "acopy_thread",
    "prune",
    "aprune",
)
"""Methods that handle no state: they move or delete it whole."""


class _Address(NamedTuple):
    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str | None


def _address(config: RunnableConfig) -> _Address:
    configurable = config.get("configurable") or {}
    return _Address(
        str(configurable.get("thread_id")),
        str(configurable.get("checkpoint_ns") or ""),
        configurable.get("checkpoint_id") or None,
    )


def _without_mark(config: RunnableConfig) -> RunnableConfig:
    """A config that cannot bring a mark of its own into a checkpoint's metadata."""
    clean = config.copy()
    for part in ("metadata", "configurable"):
        given = config.get(part)
        if isinstance(given, dict) and MODE_KEY in given:
            clean[part] = {k: v for k, v in given.items() if k != MODE_KEY}
    return clean
