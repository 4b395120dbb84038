"""What a conversation takes in each mode and at each cadence, on this store and on others.

One JSON line a case on stdout, and a table on stderr: bytes and objects before and after
compaction, bytes written in all, and beside them what the known formulas predict for savers that
store whole values: with U updates of mean size m, full mode U(U+1)/2 m, and at K about U^2/2K m,
and the U writes.

    python -m tests.benchmarks.storage_bench --turns 50,500 --conversations recorded.jsonl
"""

# No `from __future__ import annotations`: LangGraph evaluates the annotations of states,
# which name things that only the function around them knows.

import argparse
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph

from compactor import compact
from logstore.channels import delta_messages, messages_channel
from logstore.config import ChannelMode
from logstore.demo.conversations import DEFAULT_INPUT, read_conversations
from logstore.demo.ingest import Ingest
from logstore.guard import with_mode
from logstore.modes import unfreeze_for_tests
from tests.benchmarks.channel_bench import (
    CONFIG,
    Saver,
    emit,
    numbers,
    opened,
    print_table,
    store_uri,
)

COLUMNS = (
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
MAX_GROWTH = 15
OPERATOR_FREQUENCY = 10
"""At which the compactor makes snapshots of graphs that keep the channel as deltas."""


@dataclass(frozen=True)
class Case:
    """A column of the table at a number of turns."""

    mode: ChannelMode
    k: int | None
    turns: int

    @property
    def name(self) -> str:
        """The mode, with its cadence."""
        return "full" if self.k is None else f"K={self.k}"


class Words:
    """Messages of real words, the same in every case."""

    def __init__(self) -> None:
        self._words = [
            word
            for conversation in read_conversations(DEFAULT_INPUT)
            for message in conversation.messages
            for word in str(message.content).split()
        ]

    def text(self, number: int) -> str:
        """The text of a message."""
        rng = random.Random(number)
        words: list[str] = []
        while sum(map(len, words)) + len(words) < MESSAGE_CHARACTERS:
            words.append(rng.choice(self._words))
        return " ".join(words)[:MESSAGE_CHARACTERS]


def build_graph(case: Case, saver: Saver, words: Words) -> Any:
    """A graph that answers each message with one."""
    unfreeze_for_tests()
    channel = messages_channel(case.mode, case.k)

    class State(TypedDict):
        messages: Annotated[list[AnyMessage], channel]

    def answer(state: State) -> dict[str, Any]:
        number = len(state["messages"])
        return {"messages": [AIMessage(words.text(number), id=f"message-{number:06d}")]}

    builder = StateGraph(State)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=with_mode(saver, case.mode))


def talk(case: Case, saver: Saver, words: Words) -> None:
    """Say all turns."""
    graph = build_graph(case, saver, words)
    for turn in range(case.turns):
        message = HumanMessage(words.text(2 * turn), id=f"message-{2 * turn:06d}")
        graph.invoke({"messages": [message]}, CONFIG)


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


def predicted_bytes(case: Case, message_bytes: float) -> int:
    """What the known formulas give for the channel's values and writes."""
    updates = 2 * case.turns
    writes = updates * message_bytes
    if case.k is None:
        return round(updates * (updates + 1) / 2 * message_bytes + writes)
    return round(updates**2 / (2 * case.k) * message_bytes + writes)


# -- cases --------------------------------------------------------------------------------


def run_case(case: Case, words: Words) -> Iterator[dict[str, Any]]:
    """One conversation on all savers."""
    memory = InMemorySaver()
    talk(case, memory, words)
    message_bytes = len(memory.serde.dumps_typed([HumanMessage(words.text(0), id="m" * 14)])[1])
    predicted = predicted_bytes(case, message_bytes)
    yield _row(case, "memory", memory_bytes(memory), predicted)
    with tempfile.TemporaryDirectory() as folder, opened("sqlite", Path(folder)) as sqlite:
        talk(case, sqlite, words)
        yield _row(case, "sqlite", folder_bytes(Path(folder)), predicted)
    with tempfile.TemporaryDirectory() as folder:
        with opened("logstore", Path(folder)) as saver:
            talk(case, saver, words)
        channels = {"messages": delta_messages(case.k or OPERATOR_FREQUENCY)}
        yield _row(case, "logstore", *_compacted(Path(folder), channels), predicted)


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


def _row(case: Case, saver: str, before: tuple[int, int], *more: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "benchmark": "storage",
        "saver": saver,
        "mode": case.name,
        "turns": case.turns,
        "before_bytes": before[0],
        "after_bytes": before[0],
        "written_bytes": None,
        "before_objects": before[1],
        "after_objects": before[1],
    }
    for part in more:
        row |= part if isinstance(part, dict) else {"predicted_bytes": part}
    return row


def run_conversations(path: Path) -> dict[str, Any]:
    """Recorded conversations, before and after compaction."""
    with tempfile.TemporaryDirectory() as folder:
        with opened("logstore", Path(folder)) as saver:
            report = Ingest(path, saver).run()
        before, after = _compacted(Path(folder), {})
        return {
            "benchmark": "storage",
            "saver": "logstore",
            "mode": path.stem,
            "turns": report.messages,
            "before_bytes": before[0],
            "before_objects": before[1],
            "predicted_bytes": None,
            **after,
        }


# -- the whole ----------------------------------------------------------------------------


def verdicts(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each bound that the store is held to, beside what was measured."""
    size = {(r["saver"], r["mode"], r["turns"]): r["after_bytes"] for r in rows}
    turns = sorted({r["turns"] for r in rows})
    most, least = turns[-1], turns[0]
    for mode in dict.fromkeys(r["mode"] for r in rows):
        mine = size[("logstore", mode, most)]
        pure = size.get(("logstore", f"K={PURE_DELTA}", most))
        if pure is not None:
            yield _verdict(f"{mode}: of pure deltas", mine / pure, MAX_OF_PURE_DELTA)
        if least < most:
            growth = mine / size[("logstore", mode, least)] / (most / least)
            yield _verdict(f"{mode}: growth, of the turns'", growth, MAX_GROWTH / 10)
    if ("memory", "full", most) in size:
        share = size[("memory", "full", most)] / size[("logstore", "full", most)]
        yield {
            "benchmark": "storage_bound",
            "what": "full: times less than InMemorySaver",
            "measured": round(share, 3),
            "bound": MIN_OF_MEMORY,
            "holds": share >= MIN_OF_MEMORY,
        }


def _verdict(what: str, measured: float, bound: float) -> dict[str, Any]:
    return {
        "benchmark": "storage_bound",
        "what": what,
        "measured": round(measured, 3),
        "bound": bound,
        "holds": measured <= bound,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run all cases; the exit code does not depend on the bounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=numbers, default=[50, 100, 200, 500])
    parser.add_argument("--snapshot-frequencies", type=numbers, default=[1, 5, 10, 50, 1000])
    parser.add_argument("--conversations", type=Path, help="recorded conversations as JSON lines")
    args = parser.parse_args(argv)
    words = Words()
    rows: list[dict[str, Any]] = []
    for k in (None, *args.snapshot_frequencies):
        for turns in args.turns:
            case = Case("full" if k is None else "delta", k, turns)
            for row in run_case(case, words):
                rows.append(row)
                emit(row)
    bounds = list(verdicts(rows))
    for bound in bounds:
        emit(bound)
    if args.conversations is not None:
        rows.append(run_conversations(args.conversations))
        emit(rows[-1])
    print_table(rows, COLUMNS)
    print_table(bounds, ("what", "measured", "bound", "holds"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
