"""Which threads a store has, from the index columns of its runs and from its tails."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from logstore.index import StoreIndex
from logstore.reader import ThreadRead
from logstore.records import Kind
from logstore.store import LogStore
from logstore.tail import Listing

_COLUMNS = ["thread_id", "checkpoint_id", "kind"]
_BATCH = 16


class Catalog:
    """The threads of a store, as one look at all of its partitions finds them."""

    def __init__(self, store: LogStore) -> None:
        """Look.

        Raises:
            LogStoreError: an object cannot be read.
        """
        self._store = store
        self._newest: dict[str, str] = {}
        self._deleted: set[str] = set()
        self._listings: dict[int, Listing] = {}
        settings = store.settings()
        index = StoreIndex(store)
        for number in range(settings.partitions if settings else 0):
            self._listings[number], tables = index.tables(number, _COLUMNS)
            for table in tables:
                self._take_in(table)

    def count(self) -> int:
        """How many threads have a checkpoint that was not deleted.

        Raises:
            LogStoreError: an object cannot be read.
        """
        doubtful = [t for t in self._deleted if t in self._newest]
        kept = sum(bool(self._read(t).view.namespaces()) for t in doubtful)
        return len(self._newest) - len(doubtful) + kept

    def reads(self) -> Iterator[ThreadRead]:
        """A complete read of each of them, the one with the newest checkpoint first.

        Raises:
            LogStoreError: an object cannot be read.
        """
        order = sorted(self._newest.items(), key=lambda item: (item[1], item[0]), reverse=True)
        names = iter([thread_id for thread_id, _ in order])
        while batch := list(islice(names, _BATCH)):
            for read in self._store.executor.map(self._read, batch):
                if read.view.namespaces():
                    yield read

    def _read(self, thread_id: str) -> ThreadRead:
        partition = self._store.partition(thread_id)
        return self._store.reader.history(
            thread_id, partition, self._listings[partition], with_holes=True
        )

    def _take_in(self, table: pa.Table) -> None:
        checkpoints = table.filter(pc.equal(table["kind"], Kind.CHECKPOINT.value))
        newest = checkpoints.group_by("thread_id").aggregate([("checkpoint_id", "max")])
        for row in newest.to_pylist():
            name, checkpoint_id = row["thread_id"], row["checkpoint_id_max"]
            self._newest[name] = max(self._newest.get(name, ""), checkpoint_id)
        tombstones = table.filter(pc.equal(table["kind"], Kind.TOMBSTONE.value))
        self._deleted.update(tombstones["thread_id"].to_pylist())
