"""Compaction in the background of the saver's process.

The compactor is a package of its own, which imports this one. It is found through the
entry point group `logstore.background`, so that nothing here imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Protocol

from langgraph.checkpoint.serde.base import SerializerProtocol

from logstore.errors import InvalidOptionError
from logstore.store import LogStore

GROUP = "logstore.background"


class Background(Protocol):
    """A compactor that runs beside the saver."""

    def stop(self) -> None:
        """End it, after the job that it is at."""


def start_background(
    store: LogStore,
    *,
    graph: Any,
    channels: Mapping[str, Any] | None,
    serde: SerializerProtocol | None,
) -> Background:
    """Start the installed compactor on a store.

    Raises:
        InvalidOptionError: no compactor is installed.
    """
    for entry_point in entry_points(group=GROUP):
        start: Callable[..., Background] = entry_point.load()
        return start(store, graph=graph, channels=channels, serde=serde)
    raise InvalidOptionError(
        "compaction='background' needs the compactor, which comes with "
        "langgraph-checkpoint-logstore; install the package properly, or pass compaction='off'"
    )
