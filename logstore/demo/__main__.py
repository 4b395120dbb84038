"""The main job, end to end: `python -m logstore.demo [--input FILE.jsonl] [--store URI]`.

Agents run through a compiled LangGraph graph into a store, the command `compactor` compacts
it, and a fresh process reads every thread back and compares it message by message.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from logstore.cli.common import (
    CommandError,
    Commands,
    console,
    human_bytes,
    notes,
    run_app,
    table,
)
from logstore.cli.ingest import ingest_with_progress
from logstore.cli.inventory import measure
from logstore.cli.options import refuse_memory
from logstore.demo.conversations import DEFAULT_INPUT, read_conversations
from logstore.demo.counts import SQL, count_records
from logstore.demo.graph import COMPACTED_FREQUENCY, INLINE_FREQUENCY
from logstore.demo.ingest import DEFAULT_WORKERS, IngestReport
from logstore.demo.verify import WatchedSaver
from logstore.objects import open_object_store

GRAPH = "logstore.demo.graph:graph"
_MARK = "DEMO_STORE"

app = typer.Typer(
    cls=Commands, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)


@dataclass(frozen=True, slots=True)
class Written:
    """The first step's outcome."""

    report: IngestReport
    requests: int
    deepest_replay: int


@app.command()
def demo(
    input: Annotated[
        Path, typer.Option(metavar="FILE.jsonl", help="Recorded conversations, one a line.")
    ] = DEFAULT_INPUT,
    store: Annotated[
        str | None,
        typer.Option(metavar="URI", show_default=False, help="A store; else ./demo-store, anew."),
    ] = None,
) -> None:
    """Run the main job and report on it; the exit code is 1 if anything came back different."""
    begun = time.monotonic()
    if store is not None:
        refuse_memory(store)
    uri = store or fresh_directory(Path("demo-store"))
    notes.print(f"1. agents run into {uri}", markup=False)
    written = _write(uri, input)
    notes.print(f"2. compactor run {uri} --graph {GRAPH}", markup=False)
    with notes.status("compacting"):
        compacted = _run_json("compactor", "run", uri, "--graph", GRAPH, "--json")
    notes.print("3. a fresh process reads every thread back", markup=False)
    with notes.status("reading back"):
        read = _run_json("logstore.demo.verify", uri, str(input), allowed=(0, 1))
    records = count_records(uri)
    if store is None and records.get("checkpoint") != written.report.supersteps:
        read["differences"].append(
            f"{written.report.supersteps} supersteps were run, and the store shows "
            f"{records.get('checkpoint')} checkpoints"
        )
    _report(uri, written, compacted, read, records)
    console.print(
        f"{len(read['differences'])} differences, {time.monotonic() - begun:.1f} s in all"
    )
    if read["differences"]:
        raise CommandError("; ".join(read["differences"][:5]))


def fresh_directory(folder: Path) -> str:
    """An empty directory for the demo; an earlier demo's is removed, nobody else's.

    Returns:
        Its URI.

    Raises:
        CommandError: it holds what no demo made.
    """
    mark = folder / _MARK
    if mark.is_file():
        shutil.rmtree(folder)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise CommandError(
            f"{folder} exists and no demo made it; move it away, or name a store: --store URI"
        )
    folder.mkdir(exist_ok=True)
    mark.write_text("Made by python -m logstore.demo, which removes it when it runs again.\n")
    return folder.resolve().as_uri()


def _write(uri: str, path: Path) -> Written:
    read_conversations(path)  # a line that is none is told before anything is written
    with WatchedSaver(uri) as saver:
        saver.store.create()
        saver.requests.reset()
        report = ingest_with_progress(saver, path, DEFAULT_WORKERS, INLINE_FREQUENCY)
        if report.problems:
            raise CommandError("; ".join(problem.error for problem in report.problems))
        saver.flush()
        return Written(report, saver.requests.counts.total(), saver.deepest_replay)


def _run_json(module: str, *arguments: str, allowed: tuple[int, ...] = (0,)) -> Any:
    """Run a module in a process of its own, and read the JSON that it prints."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in allowed or not done.stdout:
        text = done.stderr.strip() or "it said nothing"
        raise CommandError(f"{' '.join(command)} ended with exit code {done.returncode}: {text}")
    return json.loads(done.stdout)


def _report(uri: str, written: Written, compacted: Any, read: Any, records: dict[str, int]) -> None:
    objects = open_object_store(uri)
    kinds = measure(objects)
    objects.close()
    report, parts = written.report, compacted["partitions"]
    rows = table("", "")
    rows.show_header = False
    for name, text in (
        ("threads", f"{read['threads']}, their {read['messages']} messages all compared"),
        ("supersteps", f"{report.supersteps} in {report.seconds:.1f} s"),
        ("segments merged", f"{sum(part['segments_merged'] for part in parts)}"),
        (
            "runs",
            f"{kinds['runs'].objects}, with {sum(part['rows_written'] for part in parts)} rows",
        ),
        ("snapshots made", f"{sum(part['snapshots'] for part in parts)}"),
        ("bytes", ", ".join(f"{k} {human_bytes(size.bytes)}" for k, size in kinds.items())),
        (
            "requests",
            f"{written.requests} to write, {sum(read['requests'].values())} to read every thread",
        ),
        (
            "deepest replay",
            f"{read['deepest_replay']} writes (K = {COMPACTED_FREQUENCY}); "
            f"{written.deepest_replay} before compaction",
        ),
        ("DuckDB", ", ".join(f"{count} {kind}" for kind, count in records.items())),
        ("", SQL),
    ):
        rows.add_row(f"[bold]{name}[/bold]", text)
    console.print(rows)


if __name__ == "__main__":
    run_app(app)
