"""Verifying a store: what is stored is proved from itself, and nothing is changed.

For each partition: whether every object that is named exists, and every object is named or
young; for each thread: whether every value decodes and has its checksum, every snapshot is
LangGraph's own walk, the head tells the same as the history, and the reducers keep their laws.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from functools import partial

from langgraph.checkpoint.serde.base import SerializerProtocol

from compactor.cleaning.sweep import named_by_runs
from compactor.folding.channels import ChannelTable
from compactor.verifying.findings import Checked, Verification
from compactor.verifying.kept import check_kept
from compactor.verifying.objects import PartitionObjects, check_objects, foreign_objects
from compactor.verifying.thread import check_thread
from logstore.errors import ObjectNotFoundError
from logstore.keys import snapshot_manifest_key, snapshot_prefix, value_prefix
from logstore.objects.base import ObjectInfo
from logstore.reader import until_stable
from logstore.store import LogStore, Settings

Progress = Callable[[str], None]


def verify(
    store: LogStore,
    table: ChannelTable,
    serde: SerializerProtocol,
    threads: Collection[str] = (),
    progress: Progress | None = None,
) -> Verification:
    """Verify a store, or some of its threads.

    Args:
        store: an open store.
        table: the channels whose reducers are known; of others little is proved.
        serde: the saver's serde.
        threads: only these; then other objects than theirs are not looked at.
        progress: is told what is being looked at.

    Raises:
        ObjectNotFoundError: there is no store.
    """
    begun = time.monotonic()
    settings = store.settings()
    if settings is None:
        raise ObjectNotFoundError(f"there is no store at {store.uri}; check the URI")
    verifier = _Verifier(store, table, serde, settings, progress or (lambda text: None))
    parts = verifier.threads(threads) if threads else verifier.everything()
    checked = sum(parts, Checked())
    return Verification(store.uri, checked, time.monotonic() - begun)


class _Verifier:
    def __init__(
        self,
        store: LogStore,
        table: ChannelTable,
        serde: SerializerProtocol,
        settings: Settings,
        progress: Progress,
    ) -> None:
        self._store = store
        self._table = table
        self._serde = serde
        self._settings = settings
        self._progress = progress
        self._named: dict[int, Set[str]] = {}

    def everything(self) -> Iterable[Checked]:
        yield foreign_objects(self._store, self._settings)
        for partition in range(self._settings.partitions):
            yield from self._partition(partition)

    def _partition(self, partition: int) -> Iterable[Checked]:
        found = until_stable(partial(check_objects, self._store, self._settings, partition))
        yield found.checked()
        yield until_stable(partial(check_kept, self._store, partition))
        for number, thread_id in enumerate(sorted(found.threads), 1):
            self._progress(
                f"partition {partition} of {self._settings.partitions}, thread {number} of "
                f"{len(found.threads)}"
            )
            if found.readable(thread_id):
                key = snapshot_manifest_key(partition, thread_id)
                yield self._thread(thread_id, found.folders.get(key, ()), found.date)
            else:
                yield _unread(thread_id, found)

    def threads(self, wanted: Iterable[str]) -> Iterable[Checked]:
        for thread_id in wanted:
            self._progress(f"thread {thread_id}")
            partition = self._store.partition(thread_id)
            manifest = snapshot_manifest_key(partition, thread_id)
            beside: list[ObjectInfo] = []
            date = 0.0
            for prefix in (value_prefix, snapshot_prefix):
                for page in self._store.objects.list(prefix(partition, thread_id)):
                    beside += [i for i in page.objects if i.key != manifest]
                    date = page.date
            yield self._thread(thread_id, beside, date)

    def _thread(self, thread_id: str, beside: Sequence[ObjectInfo], date: float) -> Checked:
        before = date - self._settings.long_grace_s
        named = partial(self._named_by_runs, self._store.partition(thread_id))
        return until_stable(
            lambda: check_thread(
                self._store, self._table, self._serde, thread_id, beside, before, named
            )
        )

    def _named_by_runs(self, partition: int) -> Set[str]:
        if partition not in self._named:
            manifest, _ = self._store.reader.partition_manifest(partition)
            self._named[partition] = named_by_runs(self._store, manifest)
        return self._named[partition]


def _unread(thread_id: str, found: PartitionObjects) -> Checked:
    reason = f"an object of partition {found.partition} that may hold it cannot be read"
    return Checked(threads=1, unproved={f"thread {thread_id}": reason})
