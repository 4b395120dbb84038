"""`logstore ingest`: recorded conversations through a real graph into a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from logstore.cli.common import CommandError, console, notes, print_json, show_error
from logstore.cli.options import Json, Uri, refuse_memory
from logstore.saver import LogStoreSaver

if TYPE_CHECKING:
    from logstore.demo.ingest import Ingest, IngestReport

Input = Annotated[
    Path,
    typer.Argument(
        metavar="FILE.jsonl",
        show_default=False,
        help='One conversation a line: {"thread_id": …, "messages": [OpenAI chat messages]}.',
    ),
]
Threads = Annotated[
    int, typer.Option(min=1, max=256, metavar="N", help="How many conversations run at a time.")
]
Frequency = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="K",
        help="After how many updates LangGraph writes a snapshot in line. With a large K it "
        "leaves them to the compactor.",
    ),
]


def ingest(
    uri: Uri, file: Input, threads: Threads = 8, frequency: Frequency = 1000, json: Json = False
) -> None:
    """Run recorded conversations through a LangGraph graph, as checkpoints of real runs.

    Each conversation becomes a thread of an agent whose messages are a DeltaChannel: every
    turn is a run, every message of the assistant and every batch of tool results a superstep.
    Repeating it adds what is missing and changes nothing else. A line that is no conversation
    is named, the others are run all the same, and the exit code is then 1.

    Needs LangGraph: pip install "langgraph-checkpoint-logstore[langgraph]".

    Examples:

        logstore ingest file:///tmp/agents conversations.jsonl

        logstore ingest s3://bucket/agents conversations.jsonl --threads 32 --json
    """
    report = run_ingest(uri, file, threads, frequency)
    if json:
        print_json({"uri": uri, "file": str(file), **report.to_dict()})
    else:
        console.print(
            f"{report.threads} threads ({report.already} of them were there), {report.messages} "
            f"messages, {report.supersteps} supersteps in {report.seconds:.1f} s"
        )
    if report.problems:
        for problem in report.problems:
            show_error(problem.error)
        raise CommandError(
            f"{len(report.problems)} lines of {file} are not in the store, or not whole; mend them "
            "and repeat the command"
        )


def run_ingest(uri: str, file: Path, threads: int, frequency: int) -> IngestReport:
    """Ingest a file into the store at a URI, with a progress bar on stderr.

    Raises:
        CommandError: LangGraph is not installed.
        RecordingError: the file cannot be read at all.
    """
    refuse_memory(uri)
    with LogStoreSaver.from_conn_string(uri, compaction="off") as saver:
        saver.store.create()
        return ingest_with_progress(saver, file, threads, frequency)


def ingest_with_progress(
    saver: LogStoreSaver, file: Path, threads: int, frequency: int
) -> IngestReport:
    """Ingest a file through a saver, with a progress bar on stderr.

    Raises:
        CommandError: LangGraph is not installed.
        RecordingError: the file cannot be read at all.
    """
    engine = _engine()
    with _bar() as progress:
        size = file.stat().st_size if file.is_file() else None
        task = progress.add_task("ingesting", total=size, messages=0)
        return engine(
            file,
            saver,
            snapshot_frequency=frequency,
            on_progress=lambda done, added: progress.update(task, completed=done, messages=added),
        ).run(threads)


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[messages]} messages"),
        TimeElapsedColumn(),
        console=notes,
        transient=True,
        disable=not notes.is_terminal,
    )


def _engine() -> type[Ingest]:
    try:
        from logstore.demo.ingest import Ingest
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "logstore":
            raise
        raise CommandError(
            f"ingest runs a LangGraph graph, and {error.name} is not installed: "
            'pip install "langgraph-checkpoint-logstore[langgraph]"'
        ) from error
    return Ingest
