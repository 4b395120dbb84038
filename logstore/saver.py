"""The LangGraph checkpoint saver: LangGraph's interface on top of the store."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from cachetools import LRUCache
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from logstore.background import Background, start_background
from logstore.config import DEFAULT_HISTORY_ENTRIES, Config, load_config
from logstore.durability import Durability, SpecialWrites
from logstore.encode import CheckpointCoder, Encoded, Target
from logstore.errors import InvalidOptionError
from logstore.fence import Fence
from logstore.index import StoreIndex
from logstore.maintenance import Maintenance
from logstore.reader import ThreadRead, until_stable
from logstore.store import CACHE_DIR_BYTES, CHECKPOINT_HOLD_S, LogStore, StoreOptions
from logstore.tail import StartAgain
from logstore.tuples import TupleBuilder
from logstore.view import NeedsHistory

logger = logging.getLogger(__name__)
T = TypeVar("T")
_LISTED_THREADS = 32
"""How many threads' records a `list` over all threads keeps in memory."""


class LogStoreSaver(BaseCheckpointSaver[str]):
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
        encoded = self._encode_put(config, checkpoint, metadata, new_versions)
        fence = self._fence if metadata.get("source") != "fork" else None
        place, parent = encoded.target.child_place(checkpoint["id"]), encoded.target.checkpoint_id
        if fence is not None:
            fence.before(place, parent)
        waited = fence is not None or self._waits_for_put()
        self._settle(self._write(encoded, waited=waited))
        if fence is not None:
            fence.after(place, parent)
        self._learn(encoded)
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
        encoded = self._encode_put(config, checkpoint, metadata, new_versions)
        await self._make_ready()
        await self._asettle(self._write(encoded, waited=self._waits_for_put()))
        self._learn(encoded)
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
            encoded = self._encode_writes(config, writes, task_id, task_path)
            waited = self._waits_for_writes(encoded.target, writes)
            self._settle(self._write(encoded, waited=waited))
            self._learn(encoded)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Like `put_writes`, without blocking the loop and without a thread of its own."""
        if writes:
            encoded = self._encode_writes(config, writes, task_id, task_path)
            waited = self._waits_for_writes(encoded.target, writes)
            await self._make_ready()
            await self._asettle(self._write(encoded, waited=waited))
            self._learn(encoded)

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

    def _encode_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> Encoded:
        target = Target.of(config)
        self._maintenance.deleted.check(target.place)
        return self._coder.write_records(target, config, writes, task_id, task_path)

    @property
    def _coder(self) -> CheckpointCoder:
        return CheckpointCoder(self.serde, self.store.stamp, self.store.bases)

    def _waits_for_put(self) -> bool:
        return self.durability is not Durability.BUFFERED

    def _waits_for_writes(self, target: Target, writes: Sequence[tuple[str, Any]]) -> bool:
        if self.durability is Durability.CHECKPOINT:
            return self._special.must_wait(target.place, (channel for channel, _ in writes))
        return self.durability is Durability.STRICT

    def _write(self, encoded: Encoded, *, waited: bool) -> Future[None] | None:
        """Hand records to the store; the future is None if nobody needs to wait."""
        done = self.store.write(encoded.target.thread_id, encoded.records, waited=waited)
        return done if waited or self.store.must_wait() else None

    def _learn(self, encoded: Encoded) -> None:
        """Let later values be patched against what a call has stored.

        It is durable, or acknowledged: then if it cannot be stored, nothing of its thread is
        stored after it.
        """
        if encoded.place is None:
            return
        if encoded.known is not None:
            self.store.bases.learn(encoded.place, encoded.known)
        self.store.bases.learn_writes(encoded.place, encoded.writes)

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

    # -- maintaining -------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Delete all of a thread that this call can see, durably; re-creating it works.

        The bytes go with the next compaction and its grace.
        """
        thread_id = Target.check_thread_id(thread_id)
        self._special.forget(thread_id)
        self._maintenance.delete_thread(thread_id)

    async def adelete_thread(self, thread_id: str) -> None:
        """Like `delete_thread`, without blocking the loop."""
        await self._call(lambda: self.delete_thread(thread_id))

    def prune(
        self, thread_ids: Sequence[str], *, strategy: str = "keep_latest", newest: int = 1
    ) -> None:
        """Delete threads, or hide all but the newest checkpoints of each namespace.

        It is safe for delta channels: what a kept checkpoint is rebuilt from stays until a
        snapshot of the compactor stands for it. A kept checkpoint whose parent is hidden shows
        no parent. What is saved meanwhile is neither seen nor hidden.

        Args:
            thread_ids: the threads.
            strategy: `keep_latest` or `delete`.
            newest: how many checkpoints of a namespace `keep_latest` keeps.

        Raises:
            InvalidOptionError: there is no such strategy, or `thread_ids` is one string.
        """
        if isinstance(thread_ids, str):
            raise InvalidOptionError(
                f"thread_ids is a sequence of thread ids, not one string; pass [{thread_ids!r}]"
            )
        if newest < 1:
            raise InvalidOptionError(f"newest is at least 1, not {newest}")
        names = [Target.check_thread_id(thread_id) for thread_id in thread_ids]
        self._maintenance.prune(names, strategy, newest)

    async def aprune(
        self, thread_ids: Sequence[str], *, strategy: str = "keep_latest", newest: int = 1
    ) -> None:
        """Like `prune`, without blocking the loop."""
        await self._call(lambda: self.prune(thread_ids, strategy=strategy, newest=newest))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Hide the checkpoints of runs, in all threads, and the runs' writes at other ones.

        Checkpoints that came after them keep their values, and show no parent if it is hidden.
        Looking for the runs reads an index column of the whole store.
        """
        if isinstance(run_ids, str):
            raise InvalidOptionError(
                f"run_ids is a sequence of run ids, not one string; pass [{run_ids!r}]"
            )
        self._maintenance.delete_for_runs([str(run_id) for run_id in run_ids])

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Like `delete_for_runs`, without blocking the loop."""
        await self._call(lambda: self.delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, whole; the two are independent afterwards.

        Values are copied as they are stored. A thread of many segments appears in the copy
        oldest part first; if the call fails half-way, delete the copy and repeat.

        Raises:
            ThreadExistsError: the target has checkpoints.
        """
        self._maintenance.copy_thread(
            Target.check_thread_id(source_thread_id), Target.check_thread_id(target_thread_id)
        )

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Like `copy_thread`, without blocking the loop."""
        await self._call(lambda: self.copy_thread(source_thread_id, target_thread_id))

    # -- reading -----------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Read a checkpoint: the one that the config names, or the thread's latest.

        Raises:
            ReadError: not all of it can be reached.
            CorruptObjectError: a stored object is damaged.
        """
        target = Target.of(config)

        def build(builder: TupleBuilder) -> CheckpointTuple | None:
            record = builder.find(target.checkpoint_ns, target.checkpoint_id)
            return None if record is None else builder.tuple(record)

        return self._read(target.thread_id, build)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Like `get_tuple`, without blocking the loop."""
        return await self._call(lambda: self.get_tuple(config))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What delta channels' values at a checkpoint are rebuilt from.

        Raises:
            MissingDataError: an ancestor that the answer needs cannot be found.
            ParentCycleError: the parents run in a circle.
        """
        if not channels:
            return {}
        target = Target.of(config)

        def build(builder: TupleBuilder) -> Mapping[str, DeltaChannelHistory]:
            return builder.history(target.checkpoint_ns, target.checkpoint_id, channels)

        return self._read(target.thread_id, build)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Like `get_delta_channel_history`, without blocking the loop."""
        return await self._call(
            lambda: self.get_delta_channel_history(config=config, channels=channels)
        )

    def _read(self, thread_id: str, build: Callable[[TupleBuilder], T]) -> T:
        """Answer from the head if it suffices, else from the whole history."""

        def attempt() -> T:
            head = self.store.read_head(thread_id)
            try:
                return build(self._builder(head))
            except NeedsHistory:
                return build(self._builder(self.store.read_history(thread_id, after=head)))

        return self._until_stable(thread_id, attempt)

    def _until_stable(self, thread_id: str, attempt: Callable[[], T]) -> T:
        """Repeat a read that met the objects of an outdated manifest, without what it knew."""

        def forgetting() -> T:
            try:
                return attempt()
            except StartAgain:
                self.store.forget(thread_id)
                raise

        return until_stable(forgetting)

    def _builder(self, read: ThreadRead) -> TupleBuilder:
        store = self.store
        decoder = store.reader.decoder(read, store.patched)
        return TupleBuilder(read, self.serde, decoder, store.bases.learn, store.histories)

    def _whole(self, thread_id: str) -> ThreadRead:
        return self.store.read_history(thread_id, after=self.store.read_head(thread_id))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Read checkpoints, newest id first, over all namespaces unless one is named.

        Args:
            config: a thread, and in it perhaps a namespace or checkpoint; None for all threads.
            filter: what the metadata must equal, by key; applied before `limit`.
            before: only checkpoints whose id is smaller than this config's.
            limit: at most this many.

        Raises:
            ReadError: not all of it can be reached.
            CorruptObjectError: a stored object is damaged.
        """
        left = float("inf") if limit is None else limit
        before_id = get_checkpoint_id(before) if before else None
        reads: LRUCache[str, ThreadRead] = LRUCache(_LISTED_THREADS)
        for thread_id, ns, checkpoint_id in self._listed(config, reads):
            if left <= 0:
                return
            if before_id and checkpoint_id >= before_id:
                continue
            found = self._list_one(reads, thread_id, ns, checkpoint_id, filter)
            if found is not None:
                left -= 1
                yield found

    def _listed(
        self, config: RunnableConfig | None, reads: MutableMapping[str, ThreadRead]
    ) -> Sequence[tuple[str, str, str]]:
        """Candidates, newest first: thread, namespace, checkpoint id."""
        if config is None:
            found = set(StoreIndex(self.store).checkpoints())
        else:
            target = Target.of(config)
            read = reads[target.thread_id] = self._whole(target.thread_id)
            wanted = config["configurable"].get("checkpoint_ns")
            found = {
                (target.thread_id, ns, checkpoint_id)
                for ns in read.view.namespaces()
                if wanted is None or ns == wanted
                for checkpoint_id in read.view.checkpoint_ids(ns)
                if target.checkpoint_id in (None, checkpoint_id)
            }
        return sorted(found, key=lambda c: (c[2], c[0], c[1]), reverse=True)

    def _list_one(
        self,
        reads: MutableMapping[str, ThreadRead],
        thread_id: str,
        ns: str,
        checkpoint_id: str,
        filter: Mapping[str, Any] | None,
    ) -> CheckpointTuple | None:
        def attempt() -> CheckpointTuple | None:
            # A repeated attempt must not meet the read that turned out to be outdated.
            read = reads.pop(thread_id, None) or self._whole(thread_id)
            builder = self._builder(read)
            record = builder.find(ns, checkpoint_id)
            if record is None or not builder.metadata_matches(record, filter):
                answer = None
            else:
                answer = builder.tuple(record)
            reads[thread_id] = read
            return answer

        return self._until_stable(thread_id, attempt)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Like `list`, without blocking the loop."""
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (item := await self._call(lambda: next(found, None))) is not None:
            yield item

    async def _call(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.store.executor, function)

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
