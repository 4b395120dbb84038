"""Running recorded conversations through the graph, many threads at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph

from logstore.demo.conversations import Conversation, Line, RecordingError, read_lines
from logstore.demo.graph import INLINE_FREQUENCY, Recording, build_graph

DEFAULT_WORKERS = 8
_STEPS_A_MESSAGE = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """A conversation that is not in the store, or not whole."""

    line: int
    """Its line in the file, from 1."""
    thread_id: str | None
    """None if the line could not be read."""
    error: str


@dataclass(slots=True)
class IngestReport:
    """What an ingest did."""

    threads: int = 0
    """Conversations that are now in the store."""
    already: int = 0
    """Of these, the ones that had been there before, whole."""
    messages: int = 0
    """Messages of all of these conversations."""
    supersteps: int = 0
    """Supersteps that were run, each of which saved a checkpoint."""
    seconds: float = 0.0
    problems: list[Problem] = field(default_factory=list)
    """Lines that were left out, by line."""

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return asdict(self)


class Ingest:
    """One ingest of one file.

    It may be repeated: what is whole in the store is passed over, and what is there in part
    is gone on with.
    """

    def __init__(
        self,
        path: Path,
        saver: BaseCheckpointSaver[Any],
        *,
        snapshot_frequency: int = INLINE_FREQUENCY,
        on_progress: Callable[[int, int], None] = lambda size, messages: None,
    ) -> None:
        """Prepare to run the conversations of a file.

        Args:
            path: a file with one conversation a line.
            saver: where the checkpoints go.
            snapshot_frequency: after how many updates LangGraph writes a snapshot in line.
            on_progress: is told, from any thread, how many bytes of the file are done with
                and how many messages were added.
        """
        self._path = path
        self._saver = saver
        self._graph = build_graph(saver, snapshot_frequency=snapshot_frequency)
        self._on_progress = on_progress
        self._done = self._added = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._report = IngestReport()

    def run(self, workers: int = DEFAULT_WORKERS) -> IngestReport:
        """Run all conversations, so many at a time, and tell what became of them.

        Raises:
            RecordingError: the file cannot be read at all.
        """
        begun = time.monotonic()
        lines = read_lines(self._path)
        with ThreadPoolExecutor(workers, "ingest") as pool:
            try:
                for future in [pool.submit(self._work, lines) for _ in range(workers)]:
                    future.result()
            except BaseException:
                self._stop.set()
                raise
        self._report.problems.sort(key=lambda problem: problem.line)
        self._report.seconds = time.monotonic() - begun
        return self._report

    def _work(self, lines: Iterator[Line]) -> None:
        while (line := self._next(lines)) is not None:
            if line.error is not None:
                self._fail(Problem(line.number, None, str(line.error)))
            elif line.conversation is not None:
                self._replay(line.conversation)
            self._count(line.size, 0)

    def _next(self, lines: Iterator[Line]) -> Line | None:
        with self._lock:
            return None if self._stop.is_set() else next(lines, None)

    def _count(self, size: int, messages: int) -> None:
        with self._lock:
            self._done += size
            self._added += messages
            self._on_progress(self._done, self._added)

    def _fail(self, problem: Problem) -> None:
        with self._lock:
            self._report.problems.append(problem)

    def _replay(self, conversation: Conversation) -> None:
        try:
            replay = _Replay(self._graph, conversation, lambda count: self._count(0, count))
            known, first_step = replay.run(self._stop)
            head = self._saver.get_tuple(replay.config)
        except Exception as error:  # whatever it is, the other conversations go on
            text = f"{self._path}:{conversation.line}: thread {conversation.thread_id!r}: {error}"
            self._fail(Problem(conversation.line, conversation.thread_id, text))
            return
        with self._lock:
            self._report.threads += 1
            self._report.already += known == len(conversation.messages)
            self._report.messages += len(conversation.messages)
            self._report.supersteps += _step_of(head and head.metadata) - first_step


class _Replay:
    """One conversation's way through the graph, a turn at a time."""

    def __init__(
        self,
        graph: CompiledStateGraph[Any, Recording, Any, Any],
        conversation: Conversation,
        on_message: Callable[[int], None],
    ) -> None:
        self._graph = graph
        self._messages = list(conversation.messages)
        self._recording = Recording(self._messages)
        self._on_message = on_message
        self.config: RunnableConfig = {
            "configurable": {"thread_id": conversation.thread_id},
            "recursion_limit": _STEPS_A_MESSAGE * len(self._messages) + 10,
        }

    def run(self, stop: threading.Event) -> tuple[int, int]:
        """Add what the thread lacks.

        Returns:
            How many messages it had before, and its last step then.
        """
        state = self._graph.get_state(self.config)
        messages = self._check(state.values.get("messages", []))
        known = position = len(messages)
        unfinished = bool(state.next)
        while position < len(self._messages):
            if stop.is_set():
                raise RecordingError("interrupted; the same command goes on where it ended")
            # A run that a crash cut off is gone on with; any other begins with what came in.
            inputs = None if unfinished else {"messages": self._recording.inputs(position)}
            after = self._graph.invoke(inputs, self.config, context=self._recording)
            messages = self._check(after["messages"])
            self._on_message(len(messages) - position)
            position, unfinished = len(messages), False
        return known, _step_of(state.metadata)

    def _check(self, messages: Sequence[BaseMessage]) -> Sequence[BaseMessage]:
        if list(messages) != self._messages[: len(messages)]:
            raise RecordingError(
                "the store has a thread of that id with other messages; "
                "give the conversation another thread_id, or use another store"
            )
        return messages


def _step_of(metadata: Any) -> int:
    """The step that a checkpoint's metadata names; -2, before all of them, if there is none."""
    return -2 if metadata is None else int(metadata["step"])
