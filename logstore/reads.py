"""The saver's reading calls: checkpoints, lists, and the histories of delta channels."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, TypeVar

from cachetools import LRUCache
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
)

from logstore.calls import StoreCalls
from logstore.encode import Target
from logstore.index import StoreIndex
from logstore.reader import ThreadRead, until_stable
from logstore.tail import StartAgain
from logstore.tuples import TupleBuilder
from logstore.view import NeedsHistory

T = TypeVar("T")
_LISTED_THREADS = 32
"""How many threads' records a `list` over all threads keeps in memory."""


class CheckpointReads(StoreCalls):
    """Reads from the head if it suffices, else from the whole history."""

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
