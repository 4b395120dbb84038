"""The command `compactor`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from compactor.config import Operation, load_operation
from compactor.job import Job
from compactor.rebuild import RebuildJob
from compactor.rendering import show_reasons, show_verification, status_line
from compactor.report import Report
from compactor.service import serve
from compactor.status import StoreStatus, read_status
from compactor.verify import verify
from logstore.cli.common import (
    EXIT_PROBLEM,
    Commands,
    console,
    human_bytes,
    print_json,
    run_app,
    table,
)
from logstore.cli.options import Json, Uri, existing_store
from logstore.errors import InvalidOptionError
from logstore.store import LogStore

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="""Merge a store's segments into runs, and make snapshots of delta channels.

    Safe at any time, and from several machines at once: two jobs waste work, and no more.

    Exit codes: 0 done, 1 the store has a problem, 2 the command line or configuration is wrong,
    130 interrupted.
    """,
)

Graph = Annotated[
    str | None,
    typer.Option(metavar="MODULE:ATTR", help="A compiled graph; its delta channels are folded."),
]
Config = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A TOML file with [channels.<name>] tables.")
]
Serde = Annotated[
    str | None, typer.Option(metavar="MODULE:ATTR", help="The saver's serde, if not LangGraph's.")
]
Frequency = Annotated[
    int | None,
    typer.Option(
        "--snapshot-frequency", metavar="K", min=1, help="K for all channels, not their own."
    ),
]
Partition = Annotated[
    list[int] | None,
    typer.Option("--partition", metavar="N", help="Only this partition; may be repeated."),
]


@app.command()
def run(
    uri: Uri,
    graph: Graph = None,
    config: Config = None,
    serde: Serde = None,
    frequency: Frequency = None,
    partition: Partition = None,
    json: Json = False,
) -> None:
    """Run one job: merge, fold, publish, commit, delete what has passed its grace.

    Without --graph or --config segments are merged all the same, and no snapshots are made.

    Examples:

      compactor run file:///var/lib/agents --graph my_app.agent:graph

      compactor run "s3://bucket/agents?region=eu-central-1" --config compactor.toml --json
    """
    operation = _operation(graph, config, serde, frequency)
    with existing_store(uri) as store:
        report = _job(store, operation, partition)
    if json:
        print_json(report.to_dict())
    else:
        _show_report(report)


@app.command("serve")
def serve_(
    uri: Uri,
    graph: Graph = None,
    config: Config = None,
    serde: Serde = None,
    frequency: Frequency = None,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="The pause between two jobs.")
    ] = 30.0,
) -> None:
    """Run a job every so often, until SIGTERM or Ctrl-C; a job under way is finished first.

    Example:

      compactor serve s3://bucket/agents --graph my_app.agent:graph --interval 30
    """
    operation = _operation(graph, config, serde, frequency)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with existing_store(uri) as store:
        serve(lambda: _job(store, operation, None), interval, _log_report)


@app.command()
def status(uri: Uri, json: Json = False) -> None:
    """Show what compaction has done and what waits for it.

    Example:

      compactor status file:///var/lib/agents
    """
    with existing_store(uri) as store:
        found = read_status(store)
    if json:
        print_json(found.to_dict())
    else:
        _show_status(found)


@app.command("verify")
def verify_(
    uri: Uri,
    threads: Annotated[
        list[str] | None,
        typer.Argument(metavar="[THREAD]...", help="Only these threads.", show_default=False),
    ] = None,
    graph: Graph = None,
    config: Config = None,
    serde: Serde = None,
    frequency: Frequency = None,
    json: Json = False,
) -> None:
    """Prove from what is stored that all of it is right; change nothing.

    Every value decodes and has its checksum; every snapshot equals LangGraph's own walk; heads
    tell the same as histories; every object that is named exists, and no other is left over; the
    reducers keep their laws. Without --graph or --config the snapshots' values are not proved.

    Exit codes: 0 nothing is wrong, 1 something is, 2 the command line is wrong.

    Examples:

      compactor verify file:///var/lib/agents --graph my_app.agent:graph

      compactor verify file:///var/lib/agents customer-42 --json
    """
    operation = _operation(graph, config, serde, frequency)
    with existing_store(uri) as store, status_line() as progress:
        found = verify(store, operation.table, operation.serde, threads or (), progress)
    if json:
        print_json(found.to_dict())
    else:
        show_verification(found)
    if found.findings:
        raise typer.Exit(EXIT_PROBLEM)


@app.command("rebuild")
def rebuild_(
    uri: Uri,
    threads: Annotated[
        list[str] | None,
        typer.Argument(metavar="[THREAD]...", help="Only these threads.", show_default=False),
    ] = None,
    graph: Graph = None,
    config: Config = None,
    serde: Serde = None,
    frequency: Frequency = None,
    json: Json = False,
) -> None:
    """Make every derived object anew, from segments and runs alone.

    Snapshot manifests, snapshots, snapshot objects, and a partition manifest that is lost, from
    the runs that there are: then no other job may be running. Otherwise readers, writers and
    jobs go on meanwhile. Snapshots of channels that neither --graph nor --config names stay.

    Examples:

      compactor rebuild file:///var/lib/agents --graph my_app.agent:graph

      compactor rebuild file:///var/lib/agents customer-42 --config compactor.toml
    """
    operation = _operation(graph, config, serde, frequency)
    with existing_store(uri) as store, status_line() as progress:
        job = RebuildJob(store, operation.table, operation.serde, threads or ())
        progress("rebuilding")
        report = job.run({store.partition(t) for t in threads} if threads else None)
    if json:
        print_json(report.to_dict())
    else:
        _show_report(report, "rebuilt")


def _operation(
    graph: str | None, config: Path | None, serde: str | None, frequency: int | None
) -> Operation:
    if frequency is not None and graph is None and config is None:
        raise InvalidOptionError(
            "--snapshot-frequency needs --graph or --config, which name the channels to fold"
        )
    return load_operation(graph=graph, config=config, serde=serde, frequency=frequency)


def _job(store: LogStore, operation: Operation, partitions: list[int] | None) -> Report:
    return Job(store, operation.table, operation.serde).run(partitions)


def _show_report(report: Report, verb: str = "compacted") -> None:
    counters = ("segments", "runs merged", "rows", "written", "snapshots", "voided", "deleted")
    rows = table("partition", "outcome", *counters, right=("partition", *counters))
    for part in report.partitions:
        rows.add_row(
            f"{part.partition}",
            part.outcome,
            f"{part.segments_merged}",
            f"{part.runs_merged}",
            f"{part.rows_written}",
            human_bytes(part.bytes_written),
            f"{part.snapshots}",
            f"{part.voided}",
            f"{part.segments_deleted + part.runs_deleted + part.objects_deleted}",
        )
    console.print(f"{verb} {report.uri} in {report.seconds:.1f} s", markup=False)
    console.print(rows)
    show_reasons("no snapshots of", report.unfolded)
    show_reasons("another reducer in", report.changed)
    show_reasons("not readable, left as it is:", report.unreadable)


def _log_report(report: Report) -> None:
    logging.info(
        "merged %d segments, made %d snapshots, wrote %s, deleted %d segments",
        report.total("segments_merged"),
        report.total("snapshots"),
        human_bytes(report.total("bytes_written")),
        report.total("segments_deleted"),
    )
    for name, reason in {**report.unfolded, **report.changed, **report.unreadable}.items():
        logging.warning("%s: %s", name, reason)


def _show_status(found: StoreStatus) -> None:
    numbers = ("generation", "tail", "runs", "rows", "bytes", "to delete", "written in all")
    rows = table(
        "partition",
        "last commit",
        "oldest in tail",
        "levels",
        *numbers,
        right=("partition", *numbers),
    )
    for part in found.partitions:
        rows.add_row(
            f"{part.partition}",
            part.last_commit or "never",
            part.oldest_tail or "-",
            " ".join(f"{level}:{count}" for level, count in part.levels.items()) or "-",
            f"{part.generation}",
            f"{part.tail_segments}",
            f"{sum(part.levels.values())}",
            f"{part.rows}",
            human_bytes(part.run_bytes),
            f"{part.waiting}",
            human_bytes(part.totals.get("bytes_written", 0)),
        )
    console.print(f"compaction of {found.uri}", markup=False)
    console.print(rows)
    for part in found.partitions:
        show_reasons("no snapshots of", part.unfolded)
        show_reasons("another reducer in", part.changed)


def main() -> None:
    """The entry point: errors become one line and an exit code."""
    run_app(app)
