"""The LangGraph checkpoint saver: LangGraph's interface on top of the store.

Here are its creation, its life, and writing; reading is in `logstore.reads`, and what handles
whole threads in `logstore.upkeep`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from logstore.background import Background, start_background
from logstore.config import DEFAULT_HISTORY_ENTRIES, Config, load_config
from logstore.durability import Durability, SpecialWrites
from logstore.encode import CheckpointCoder, DumpedWrite, Encoded, Target
from logstore.errors import InvalidOptionError
from logstore.fence import Fence
from logstore.lanes import Entry
from logstore.maintenance import Maintenance
from logstore.reads import CheckpointReads
from logstore.store import CACHE_DIR_BYTES, CHECKPOINT_HOLD_S, LogStore, StoreOptions
from logstore.upkeep import ThreadUpkeep


class LogStoreSaver(CheckpointReads, ThreadUpkeep):
    """A checkpoint saver whose only storage is an object store.

    One object serves sync and async callers, from any thread and any event loop. It works
    as it is, and as a sync or async context manager that flushes and closes at the end.

    Example:
        ```python
        from logstore import LogStoreSaver

        with LogStoreSaver.from_conn_string("s3://bucket/agents") as saver:
            graph = builder.compile(checkpointer=saver)
            graph.invoke(inputs, {"configurable": {"thread_id": "42"}})
        ```
    """

    def __init__(
        self,
        store: LogStore,
        *,
        serde: SerializerProtocol | None = None,
        durability: Durability | Literal["strict", "checkpoint", "buffered"] = "strict",
        background: Background | None = None,
        fence: bool = False,
    ) -> None:
        """Use an open store; most callers want `from_conn_string`.

        Args:
            store: the store; it is closed with the saver.
            serde: how values become bytes; LangGraph's own by default.
            durability: when a call returns. `strict`: its records are durable.
                `checkpoint`: `put` returns durable, with all earlier records of its thread;
                task writes return at once. `buffered`: at once; `flush` is the barrier.
            background: compaction in this process, stopped with the saver.
            fence: whether a put is refused whose parent has another child already, so that two
                workers on one thread notice. Forks that are meant (`source` is `fork`) may be
                put anywhere. It costs two reads a put.
        """
        super().__init__(serde=serde)
        self.store = store
        self.durability = Durability.parse(durability)
        self._background = background
        self._special = SpecialWrites()
        self._maintenance = Maintenance(store)
        self._fence = Fence(store) if fence else None

    @classmethod
    def from_conn_string(
        cls,
        uri: str,
        *,
        serde: SerializerProtocol | None = None,
        durability: Durability | Literal["strict", "checkpoint", "buffered"] = "strict",
        compaction: Literal["background", "off"] | None = None,
        graph: Any = None,
        channels: Mapping[str, Any] | None = None,
        partitions: int | None = None,
        linger_s: float = 0.0,
        fence: bool = False,
        history_entries: int = DEFAULT_HISTORY_ENTRIES,
        cache_dir: str | Path | None = None,
        cache_dir_bytes: int = CACHE_DIR_BYTES,
        **backend: Any,
    ) -> LogStoreSaver:
        """A saver for the store at a URI, which is created by the first write.

        Args:
            uri: `file:///dir`, `s3://bucket/prefix?endpoint_url=…&region=…` or
                `memory://name`.
            serde: how values become bytes; LangGraph's own by default.
            durability: when a call returns, see the class.
            compaction: `background` runs the compactor in this process, the default for
                `file://`; `off` leaves it to a process of its own.
            graph: a compiled graph whose delta channels the background compactor may fold.
            channels: or single delta channels, by name.
            partitions: the partition count to create the store with, or to demand of it.
            linger_s: the least seconds between two PUTs of a partition: fewer and larger
                segments for a longer wait.
            fence: whether two workers on one thread notice each other, see the class.
            history_entries: how many delta histories and threads are kept in memory; 0 for none.
            cache_dir: a local directory in which objects that never change are kept for the
                next process; several stores and processes may share it.
            cache_dir_bytes: how large it gets.
            backend: for S3 `client` (a boto3 client), `botocore_config`, `endpoint_url` or
                `region`.

        Raises:
            InvalidURIError: the URI is of no known form.
            InvalidOptionError: an option has a value that is not allowed.
        """
        mode = Durability.parse(durability)
        options = StoreOptions(
            partitions=partitions,
            hold_s=CHECKPOINT_HOLD_S if mode is Durability.CHECKPOINT else 0.0,
            linger_s=linger_s,
            history_entries=history_entries,
            cache_dir=cache_dir,
            cache_dir_bytes=cache_dir_bytes,
        )
        store = LogStore.open(uri, options, **backend)
        if compaction not in (None, "background", "off"):
            raise InvalidOptionError(f"compaction is 'background' or 'off', not {compaction!r}")
        background = None
        if (
            compaction or ("background" if store.objects.scheme == "file" else "off")
        ) == "background":
            background = start_background(store, graph=graph, channels=channels, serde=serde)
        return cls(store, serde=serde, durability=mode, background=background, fence=fence)

    @classmethod
    def from_config(cls, config: Config | str | Path, **options: Any) -> LogStoreSaver:
        """A saver for the store that the application's configuration names.

        Its section `database` says where (`logstore_uri`) and how many histories are kept
        (`checkpoint_cache.max_entries`). Mode and cadence are the graph's: see
        `logstore.guard.with_mode` and `logstore.channels.messages_channel`.

        Args:
            config: the path of a `config.yaml`, or what `load_config` made of it.
            options: of `from_conn_string`; they win over the configuration.

        Raises:
            InvalidOptionError: the configuration cannot be read, is meant for another backend,
                or does not say where the store is.
            InvalidURIError: the URI is of no known form.
        """
        database = (config if isinstance(config, Config) else load_config(config)).database
        uri = database.require_uri()
        return cls.from_conn_string(
            uri, **{"history_entries": database.checkpoint_cache.max_entries, **options}
        )

    @property
    def uri(self) -> str:
        """Where the store is, without credentials."""
        return self.store.uri

    # -- lifetime ----------------------------------------------------------------

    def flush(self) -> None:
        """Wait until all that was acknowledged is durable.

        Raises:
            ThreadPoisonedError: something acknowledged could not be stored.
        """
        self.store.flush()

    async def aflush(self) -> None:
        """Like `flush`, without blocking the loop."""
        await self._call(self.flush)

    def close(self) -> None:
        """Flush, stop the background compactor, let go of the store."""
        if self._background is not None:
            self._background.stop()
        self.store.close()

    async def aclose(self) -> None:
        """Like `close`, without blocking the loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __copy__(self) -> Self:
        """A saver on the same store that may get another serde."""
        clone = object.__new__(type(self))
        clone.__dict__.update(self.__dict__)
        return clone

    # -- writing -----------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; what it returns addresses it.

        Raises:
            InvalidNameError: a name in it cannot be stored.
            DeletedCheckpointError: this process has deleted the checkpoint that it names.
            HeadMovedError: there is a fence, and another worker went on from the same parent.
            CommitUnknownError: the store did not say whether it was stored.
            ThreadPoisonedError: an acknowledged write of the thread was lost.
        """
        target = Target.of(config)
        fence = self._fence if metadata.get("source") != "fork" else None
        place, parent = target.child_place(checkpoint["id"]), target.checkpoint_id
        with self.store.bases.learning(place):
            encoded = self._encode_put(config, checkpoint, metadata, new_versions)
            if fence is not None:
                fence.before(place, parent)
            waited = fence is not None or self._waits_for_put()
            stored = self._write(encoded, waited=waited)
        self._settle(stored)
        if fence is not None:
            fence.after(place, parent)
        return encoded.target.child(checkpoint["id"])

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Like `put`, without blocking the loop; only a fence needs a thread of its own."""
        if self._fence is not None:
            return await self._call(lambda: self.put(config, checkpoint, metadata, new_versions))
        with self.store.bases.learning(Target.of(config).child_place(checkpoint["id"])):
            encoded = self._encode_put(config, checkpoint, metadata, new_versions)
            await self._make_ready()
            stored = self._write(encoded, waited=self._waits_for_put())
        await self._asettle(stored)
        return encoded.target.child(checkpoint["id"])

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task wrote at a checkpoint.

        Raises:
            InvalidNameError: a name in it cannot be stored.
            DeletedCheckpointError: this process has deleted the checkpoint that it names.
            CommitUnknownError: the store did not say whether it was stored.
            ThreadPoisonedError: an acknowledged write of the thread was lost.
        """
        if writes:
            target, dumped = self._dump_writes(config, writes)
            self.store.bases.wait_for(target.place)
            encoded = self._coder.write_records(target, config, dumped, task_id, task_path)
            waited = self._waits_for_writes(target, writes)
            self._settle(self._write(encoded, waited=waited))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Like `put_writes`, without blocking the loop and without a thread of its own."""
        if writes:
            target, dumped = self._dump_writes(config, writes)
            bases = self.store.bases
            if bases.is_learning(target.place):
                await self._call(lambda: bases.wait_for(target.place))
            await self._make_ready()
            encoded = self._coder.write_records(target, config, dumped, task_id, task_path)
            waited = self._waits_for_writes(target, writes)
            await self._asettle(self._write(encoded, waited=waited))

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read a checkpoint: the one that the config names, or the thread's latest.

        Raises:
            ReadError: not all of it can be reached.
            CorruptObjectError: a stored object is damaged.
        """
        deleted = self._maintenance.deleted
        deletes = deleted.deletes
        found = super().get_tuple(config)
        if found is not None and deletes:
            deleted.revive(Target.of(found.config).place, deletes)
        return found

    def _encode_put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> Encoded:
        target = Target.of(config)
        self._maintenance.deleted.check(target.place)
        encoded = self._coder.put_records(target, config, checkpoint, metadata, new_versions)
        self._maintenance.deleted.revive(target.child_place(checkpoint["id"]))
        return encoded

    def _dump_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]]
    ) -> tuple[Target, list[DumpedWrite]]:
        target = Target.of(config)
        self._maintenance.deleted.check(target.place)
        return target, self._coder.dump(writes)

    @property
    def _coder(self) -> CheckpointCoder:
        store = self.store
        return CheckpointCoder(self.serde, store.stamp, store.bases, store.seen_s)

    def _waits_for_put(self) -> bool:
        return self.durability is not Durability.BUFFERED

    def _waits_for_writes(self, target: Target, writes: Sequence[tuple[str, Any]]) -> bool:
        if self.durability is Durability.CHECKPOINT:
            return self._special.must_wait(target.place, (channel for channel, _ in writes))
        return self.durability is Durability.STRICT

    def _write(self, encoded: Encoded, *, waited: bool) -> Future[None] | None:
        """Hand records to the store, and let later values be patched against them.

        Returns:
            Done when they are durable; None if nobody needs to wait.
        """
        self.store.submit(
            Entry(
                encoded.target.thread_id,
                encoded.records,
                waited,
                done=encoded.stored,
                needs=encoded.needs,
            )
        )
        if encoded.known is not None:
            self.store.bases.learn(encoded.place, encoded.known)
        self.store.bases.learn_writes(encoded.place, encoded.writes)
        return encoded.stored if waited or self.store.must_wait() else None

    @staticmethod
    def _settle(done: Future[None] | None) -> None:
        if done is not None:
            done.result()

    @staticmethod
    async def _asettle(done: Future[None] | None) -> None:
        if done is not None:
            await asyncio.shield(asyncio.wrap_future(done))

    async def _make_ready(self) -> None:
        if not self.store.ready:
            await self._call(self.store.create)

    # -- versions ----------------------------------------------------------------

    def get_next_version(self, current: str | int | float | None, channel: None) -> str:
        """The next version of a channel; random digits keep two forks' versions apart."""
        if current is None:
            number = 0
        elif isinstance(current, str):
            number = int(current.split(".")[0])
        else:
            number = int(current)
        return f"{number + 1:032}.{secrets.randbelow(10**16):016}"
