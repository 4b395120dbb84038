"""What a conversation takes in each mode and at each cadence, on this store and on others.

One JSON line a case on stdout, and a table on stderr: bytes and objects before and after
compaction, bytes written in all, and beside them what the known formulas predict for savers that
store whole values: with U updates of mean size m, full mode U(U+1)/2 m, and at K about U^2/2K m,
and the U writes. The bounds hold for the conversations of real words.

    python -m tests.benchmarks.storage_bench --turns 50,500 --conversations recorded.jsonl
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from compactor import compact
from logstore.channels import delta_messages, messages_channel
from logstore.config import ChannelMode
from logstore.demo.conversations import DEFAULT_INPUT, Conversation, read_conversations
from logstore.demo.graph import Recording, build_graph
from logstore.guard import with_mode
from logstore.modes import unfreeze_for_tests
from tests.benchmarks.channel_bench import (
    Saver,
    emit,
    numbers,
    opened,
    print_table,
    store_uri,
)

COLUMNS = (
    "workload",
    "saver",
    "mode",
    "turns",
    "before_bytes",
    "after_bytes",
    "written_bytes",
    "before_objects",
    "after_objects",
    "predicted_bytes",
)
MESSAGE_CHARACTERS = 400
PURE_DELTA = 1000
MAX_OF_PURE_DELTA = 1.3
MIN_OF_MEMORY = 100
GROWTH_OF_TURNS = 1.5
"""Ten times the turns may take fifteen times the bytes."""
OPERATOR_FREQUENCY = 10
"""At which the compactor makes snapshots of graphs that keep the channel as deltas."""


@dataclass(frozen=True)
class Case:
    """A column of the table: conversations in one mode."""

    mode: ChannelMode
    k: int | None
    workload: str
    """The name of the recording, or `words`."""
    turns: int
    """How often a user speaks, in all conversations together."""
    conversations: Sequence[Conversation]

    @property
    def name(self) -> str:
        """The mode, with its cadence."""
        return "full" if self.k is None else f"K={self.k}"


class Words:
    """Conversations of real words, the same in every case."""

    def __init__(self) -> None:
        self._words = [
            word
            for conversation in read_conversations(DEFAULT_INPUT)
            for message in conversation.messages
            for word in str(message.content).split()
        ]

    def conversation(self, turns: int) -> Conversation:
        """So many turns of two messages."""
        messages: list[BaseMessage] = []
        for number in range(2 * turns):
            kind = AIMessage if number % 2 else HumanMessage
            messages.append(kind(self._text(number), id=f"message-{number:06d}"))
        return Conversation("bench", (), tuple(messages), 1)

    def _text(self, number: int) -> str:
        rng = random.Random(number)
        words: list[str] = []
        while sum(map(len, words)) + len(words) < MESSAGE_CHARACTERS:
            words.append(rng.choice(self._words))
        return " ".join(words)[:MESSAGE_CHARACTERS]


def turns_of(conversation: Conversation) -> int:
    """How often a user speaks."""
    return sum(isinstance(message, HumanMessage) for message in conversation.messages)


def talk(case: Case, saver: Saver) -> None:
    """Hold the case's conversations, one after the other."""
    unfreeze_for_tests()
    channel = messages_channel(case.mode, case.k)
    graph = build_graph(with_mode(saver, case.mode), channel=channel)
    for conversation in case.conversations:
        recording = Recording(conversation.messages)
        config: Any = {
            "configurable": {"thread_id": conversation.thread_id},
            "recursion_limit": 2 * len(conversation.messages) + 10,
        }
        position = 0
        while position < len(conversation.messages):
            inputs = {"messages": recording.inputs(position)}
            position = len(graph.invoke(inputs, config, context=recording)["messages"])


# -- counting -----------------------------------------------------------------------------


def memory_bytes(saver: InMemorySaver) -> tuple[int, int]:
    """The serde's bytes that an in-memory saver holds, and how many values they are."""
    sizes = [len(value[1]) for value in saver.blobs.values()]
    for namespaces in saver.storage.values():
        for checkpoints in namespaces.values():
            for checkpoint, metadata, _ in checkpoints.values():
                sizes += [len(checkpoint[1]), len(metadata[1])]
    for writes in saver.writes.values():
        sizes += [len(write[2][1]) for write in writes.values()]
    return sum(sizes), len(sizes)


def folder_bytes(folder: Path) -> tuple[int, int]:
    """The bytes of all files below a folder, and their number."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return sum(sizes), len(sizes)


def predicted_bytes(case: Case, saver: InMemorySaver) -> int:
    """What the known formulas give for the channel's values and writes."""
    return round(sum(_predicted(case, c.messages, saver) for c in case.conversations))


def _predicted(case: Case, messages: Sequence[BaseMessage], saver: InMemorySaver) -> float:
    updates = len(messages)
    mean = sum(len(saver.serde.dumps_typed([m])[1]) for m in messages) / updates
    values = updates * (updates + 1) / 2 if case.k is None else updates**2 / (2 * case.k)
    return (values + updates) * mean


# -- cases --------------------------------------------------------------------------------


def run_case(case: Case) -> Iterator[dict[str, Any]]:
    """The same conversations on all savers."""
    memory = InMemorySaver()
    talk(case, memory)
    predicted = predicted_bytes(case, memory)
    yield _row(case, "memory", memory_bytes(memory), predicted)
    with tempfile.TemporaryDirectory() as folder, opened("sqlite", Path(folder)) as sqlite:
        talk(case, sqlite)
        yield _row(case, "sqlite", folder_bytes(Path(folder)), predicted)
    with tempfile.TemporaryDirectory() as folder:
        with opened("logstore", Path(folder)) as saver:
            talk(case, saver)
        channels = {"messages": delta_messages(case.k or OPERATOR_FREQUENCY)}
        before, after = _compacted(Path(folder), channels)
        yield {**_row(case, "logstore", before, predicted), **after}


def _compacted(folder: Path, channels: dict[str, Any]) -> tuple[tuple[int, int], dict[str, int]]:
    """What is stored before a compaction, and what after it and its graces."""
    before = folder_bytes(folder)
    report = compact(store_uri(folder), channels=channels)
    waiting = [*(folder / "store" / "log").rglob("*.parquet")]
    for path in waiting:  # what the next job deletes once the grace has passed
        path.unlink()
    after = folder_bytes(folder)
    return before, {
        "after_bytes": after[0],
        "after_objects": after[1],
        "written_bytes": before[0] + report.total("bytes_written"),
    }


def _row(case: Case, saver: str, stored: tuple[int, int], predicted: int) -> dict[str, Any]:
    return {
        "benchmark": "storage",
        "saver": saver,
        "workload": case.workload,
        "mode": case.name,
        "turns": case.turns,
        "before_bytes": stored[0],
        "after_bytes": stored[0],
        "written_bytes": None,
        "before_objects": stored[1],
        "after_objects": stored[1],
        "predicted_bytes": predicted,
    }


# -- the whole ----------------------------------------------------------------------------


def verdicts(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each bound that the store is held to, beside what was measured."""
    size = {(r["saver"], r["mode"], r["turns"]): r["after_bytes"] for r in rows}
    turns = sorted({r["turns"] for r in rows})
    most, least = turns[-1], turns[0]
    others = size[("memory", "full", most)]
    for mode in dict.fromkeys(r["mode"] for r in rows):
        mine = size[("logstore", mode, most)]
        pure = size.get(("logstore", f"K={PURE_DELTA}", most))
        if pure is not None:
            yield _at_most(f"{mode}: times the pure deltas", mine / pure, MAX_OF_PURE_DELTA)
        yield _at_least(f"{mode}: times less than InMemorySaver's full mode", others / mine)
        if least < most:
            growth = mine / size[("logstore", mode, least)]
            bound = GROWTH_OF_TURNS * most / least
            yield _at_most(f"{mode}: growth from {least} to {most} turns", growth, bound)


def _at_most(what: str, measured: float, bound: float) -> dict[str, Any]:
    return _verdict(what, measured, bound, measured - bound)


def _at_least(what: str, measured: float) -> dict[str, Any]:
    return _verdict(what, measured, MIN_OF_MEMORY, MIN_OF_MEMORY - measured)


def _verdict(what: str, measured: float, bound: float, missed: float) -> dict[str, Any]:
    return {
        "benchmark": "storage_bound",
        "what": what,
        "measured": round(measured, 3),
        "bound": bound,
        "holds": missed <= 0,
        "missed_by": None if missed <= 0 else f"{missed / bound:.0%}",
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run all cases; the exit code does not depend on the bounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=numbers, default=[50, 100, 200, 500])
    parser.add_argument("--snapshot-frequencies", type=numbers, default=[1, 5, 10, 50, 1000])
    parser.add_argument("--conversations", type=Path, help="recorded conversations as JSON lines")
    args = parser.parse_args(argv)
    words = Words()
    workloads = [("words", [words.conversation(turns)]) for turns in args.turns]
    if args.conversations is not None:
        workloads.append((args.conversations.stem, read_conversations(args.conversations)))
    rows: list[dict[str, Any]] = []
    for workload, conversations in workloads:
        turns = sum(map(turns_of, conversations))
        for k in (None, *args.snapshot_frequencies):
            mode: ChannelMode = "full" if k is None else "delta"
            for row in run_case(Case(mode, k, workload, turns, conversations)):
                rows.append(row)
                emit(row)
    bounds = list(verdicts([row for row in rows if row["workload"] == "words"]))
    for bound in bounds:
        emit(bound)
    print_table(rows, COLUMNS)
    print_table(bounds, ("what", "measured", "bound", "holds", "missed_by"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
