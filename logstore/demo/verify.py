"""Reads every thread back and compares it: `python -m logstore.demo.verify URI FILE`.

The demo runs this as a process of its own, which shares nothing with the one that wrote but
the store. It prints one JSON document; the exit code is 1 if anything differs.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import DeltaChannelHistory

from logstore.cli.common import exit_code, print_json, show_error
from logstore.demo.conversations import Conversation, read_conversations
from logstore.demo.graph import build_graph
from logstore.demo.messages import to_recorded
from logstore.errors import LogStoreError
from logstore.objects import open_object_store
from logstore.saver import LogStoreSaver
from logstore.store import LogStore
from logstore.testing.counting import CountingStore


@dataclass(slots=True)
class Findings:
    """What reading everything back showed."""

    threads: int = 0
    messages: int = 0
    """Messages that were compared and found equal."""
    differences: list[str] = field(default_factory=list)
    deepest_replay: int = 0
    """The most writes that a read of a thread's head replays."""
    requests: Counter[str] = field(default_factory=Counter)
    """Requests by method, for all threads together."""


class WatchedSaver(LogStoreSaver):
    """A saver that counts its requests, and how many writes it gives a graph to replay."""

    def __init__(self, uri: str) -> None:
        """Use the store at a URI, without compaction in the background."""
        self.requests = CountingStore(open_object_store(uri))
        self._depths: list[int] = []
        super().__init__(LogStore(self.requests))

    @property
    def deepest_replay(self) -> int:
        """The most writes that one read of a delta channel had to replay."""
        return max(self._depths, default=0)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What delta channels' values are rebuilt from. See `LogStoreSaver`."""
        found = super().get_delta_channel_history(config=config, channels=channels)
        self._depths.extend(len(history["writes"]) for history in found.values())
        return found


def verify(uri: str, path: Path) -> Findings:
    """Read the threads of a file's conversations with a new saver, and compare them.

    Raises:
        LogStoreError: the store or the file cannot be read.
    """
    found = Findings()
    with WatchedSaver(uri) as saver:
        graph = build_graph(saver)
        for conversation in read_conversations(path):
            config: RunnableConfig = {"configurable": {"thread_id": conversation.thread_id}}
            state = graph.get_state(config).values.get("messages", [])
            found.threads += 1
            found.messages += _equal(conversation, state, found.differences)
        found.requests = saver.requests.counts
        found.deepest_replay = saver.deepest_replay
    return found


def _equal(conversation: Conversation, state: list[BaseMessage], differences: list[str]) -> int:
    """Compare message by message; how many are equal."""
    expected, name = conversation.messages, conversation.thread_id
    if len(state) != len(expected):
        differences.append(f"{name}: {len(expected)} messages recorded, {len(state)} read back")
    equal = 0
    pairs = zip(conversation.recorded, expected, state, strict=False)
    for position, (recorded, message, stored) in enumerate(pairs):
        if stored == message and to_recorded(stored) == recorded:
            equal += 1
        else:
            differences.append(f"{name}: message {position} differs")
    return equal


def _to_dict(found: Findings) -> dict[str, Any]:
    return {**asdict(found), "requests": dict(found.requests)}


def main(arguments: list[str]) -> int:
    """Compare, print, and say whether all is equal."""
    if len(arguments) != 2:
        show_error("usage: python -m logstore.demo.verify URI FILE")
        return 2
    uri, path = arguments
    try:
        found = verify(uri, Path(path))
    except LogStoreError as error:
        show_error(error)
        return exit_code(error)
    print_json(_to_dict(found))
    return 1 if found.differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
