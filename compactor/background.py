"""Compaction in the background of the saver's own process, found through an entry point."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from compactor.folding.channels import ChannelTable, default_serde, table_of
from compactor.job import Job
from logstore.errors import LogStoreError
from logstore.store import LogStore

logger = logging.getLogger(__name__)
INTERVAL_S = 10.0


class BackgroundCompactor:
    """Runs a job every few seconds while the store is in use."""

    def __init__(
        self,
        store: LogStore,
        table: ChannelTable,
        serde: SerializerProtocol,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """Start; the thread ends with `stop`, with the process, or with the store.

        Args:
            store: an open store; it is only held weakly.
            table: the channels that may be folded.
            serde: the saver's serde.
            interval_s: the pause between two jobs.
        """
        self._store = weakref.ref(store)
        self._table = table
        self._serde = serde
        self._interval_s = interval_s
        self._pid = os.getpid()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="logstore-compactor", daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        while not self._wake.wait(self._interval_s):
            store = self._store()
            if store is None:
                return
            try:
                self._run_once(store)
            except LogStoreError as error:
                # The log is safe without compaction; the next job tries again.
                logger.warning("background compaction of %s failed: %s", store.uri, error)
            except Exception:
                logger.exception("background compaction of %s failed", store.uri)
            del store

    def _run_once(self, store: LogStore) -> None:
        if store.settings() is None:
            return
        report = Job(store, self._table, self._serde).run()
        for channel, reason in report.unfolded.items():
            logger.debug("no snapshots of %s: %s", channel, reason)

    def stop(self) -> None:
        """End the thread after the job that it is at."""
        self._wake.set()
        if os.getpid() == self._pid and threading.current_thread() is not self._thread:
            self._thread.join()


def start(
    store: LogStore,
    *,
    graph: Any = None,
    channels: Mapping[str, Any] | None = None,
    serde: SerializerProtocol | None = None,
) -> BackgroundCompactor:
    """Compact `store` in the background; the entry point `logstore.background`.

    Args:
        store: an open store.
        graph: a compiled graph, whose delta channels are folded.
        channels: or single `DeltaChannel`s by name, of the root graph.
        serde: the saver's serde; LangGraph's own by default.

    Raises:
        InvalidOptionError: something is no delta channel or no graph.
    """
    table = table_of(graph=graph, channels=channels)
    return BackgroundCompactor(store, table, serde or default_serde(graph))
