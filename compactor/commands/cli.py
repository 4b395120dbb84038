"""The command `compactor`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from compactor.cleaning.purge import purge as run_purge
from compactor.cleaning.retention import HourlyRetention, Retired, apply_retention, to_dicts
from compactor.commands.config import Operation
from compactor.commands.dryrun import DryRunStore
from compactor.commands.iceberg import publish
from compactor.commands.options import (
    Config,
    Frequency,
    Graph,
    Keep,
    Memory,
    Partitions,
    Serde,
    SnapshotRetention,
    StoreUri,
    Threads,
    operation_of,
    parse_partitions,
    uri_of,
)
from compactor.commands.rendering import (
    log_report,
    show_plan,
    show_report,
    show_retired,
    show_status,
    show_verification,
    status_line,
)
from compactor.commands.status import read_status
from compactor.rebuild import RebuildJob
from compactor.report import Report
from compactor.service import serve
from compactor.verifying.verify import verify
from logstore.cli.common import (
    EXIT_PROBLEM,
    Commands,
    print_json,
    run_app,
)
from logstore.cli.options import Json, Uri, existing_store
from logstore.errors import InvalidOptionError, LogStoreError
from logstore.memory import limit_heap
from logstore.store import LogStore

logger = logging.getLogger(__name__)
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


@app.command()
def run(
    uri: StoreUri = None,
    graph: Graph = None,
    config: Config = None,
    serde: Serde = None,
    frequency: Frequency = None,
    retention: SnapshotRetention = None,
    partitions: Partitions = None,
    max_runtime: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Begin no further batch of segments after that; the next job goes on.",
        ),
    ] = None,
    purge: Annotated[
        bool,
        typer.Option(
            "--purge", help="Wait for the store's short grace, and delete what was replaced."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the job would do, and write nothing.")
    ] = False,
    memory: Memory = None,
    keep: Keep = None,
    json: Json = False,
) -> None:
    """Run one job: merge, fold, publish, commit, delete what has passed its grace.

    If the configuration has a [retention] table, what it does not keep is deleted first.

    Without --graph or --config segments are merged all the same, and no snapshots are made.

    With --purge nothing is left afterwards of threads that were deleted before. Analytics that
    read files of a snapshot taken before the purge have to take a new one.

    Examples:

      compactor run file:///var/lib/agents --graph my_app.agent:graph

      compactor run "s3://bucket/agents?region=eu-central-1" --config compactor.toml --json

      compactor run --config config.yaml
    """
    operation = operation_of(graph, config, serde, frequency, retention, memory, keep)
    if dry_run and purge:
        raise InvalidOptionError("--dry-run writes nothing, so there is nothing to purge")
    with (
        existing_store(uri_of(uri, config), operation.memory.store_options()) as store,
        status_line() as tell,
    ):
        chosen = parse_partitions(partitions)
        tell("looking for what retention does not keep")
        retired: list[Retired] = []
        failed: LogStoreError | None = None
        try:
            retired = apply_retention(store, operation.retention, chosen, dry_run=dry_run)
        except LogStoreError as error:
            failed = error  # compaction goes on, and the command fails at the end
        if purge:
            _run_purge(store, operation, chosen, tell, json)
            if failed is not None:
                raise failed
            return
        tell("compacting")
        if dry_run:
            _run_dry(store, operation, chosen, max_runtime, retired, json)
        else:
            job = operation.job(store, max_runtime_s=max_runtime)
            report = job.run(chosen)
            if json:
                print_json({**report.to_dict(), "retired": to_dicts(retired)})
            else:
                show_retired(retired, dry_run=False)
                show_report(report)
    if failed is not None:
        raise failed


def _run_dry(
    store: LogStore,
    operation: Operation,
    partitions: list[int] | None,
    max_runtime: float | None,
    retired: Sequence[Retired],
    json: bool,
) -> None:
    with TemporaryDirectory(prefix="compactor-") as folder:
        plan = DryRunStore(store.objects, Path(folder))
        job = operation.job(
            LogStore(plan, operation.memory.store_options()), max_runtime_s=max_runtime
        )
        report = job.run(partitions)
        if json:
            print_json({**report.to_dict(), "retired": to_dicts(retired), **plan.to_dict()})
            return
        show_retired(retired, dry_run=True)
        show_report(report, "a job would compact")
        show_plan(plan)


def _run_purge(
    store: LogStore,
    operation: Operation,
    partitions: list[int] | None,
    tell: Callable[[str], None],
    json: bool,
) -> None:
    settings = store.settings()
    grace_s = settings.short_grace_s if settings else 0.0
    job = operation.job(store, purge=True)
    first, last = run_purge(job, grace_s, partitions, tell)
    if json:
        print_json({**first.to_dict(), "purge": last.to_dict()})
        return
    show_report(first)
    show_report(last, "purged")


@app.command("serve")
def serve_(
    uri: StoreUri = None,
    graph: Graph = None,
    config: Config = None,
    serde: Serde = None,
    frequency: Frequency = None,
    retention: SnapshotRetention = None,
    partitions: Partitions = None,
    memory: Memory = None,
    keep: Keep = None,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="The pause between two jobs.")
    ] = 30.0,
) -> None:
    """Run a job every so often, until SIGTERM or Ctrl-C; a job under way is finished first.

    Example:

      compactor serve s3://bucket/agents --graph my_app.agent:graph --interval 30
    """
    operation = operation_of(graph, config, serde, frequency, retention, memory, keep)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    with existing_store(uri_of(uri, config), operation.memory.store_options()) as store:
        chosen = parse_partitions(partitions)
        job = operation.job(store)
        hourly = HourlyRetention(store, operation.retention)

        def run_job() -> Report:
            try:
                hourly.apply_if_due(chosen)
            except LogStoreError as error:
                logger.error("retention: %s; compaction goes on", error)
            return job.run(chosen)

        serve(run_job, interval, log_report)


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
        show_status(found)


@app.command("verify")
def verify_(
    uri: Uri,
    threads: Threads = None,
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
    operation = operation_of(graph, config, serde, frequency)
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
    threads: Threads = None,
    graph: Graph = None,
    config: Config = None,
    serde: Serde = None,
    frequency: Frequency = None,
    retention: SnapshotRetention = None,
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
    operation = operation_of(graph, config, serde, frequency, retention)
    with existing_store(uri) as store, status_line() as progress:
        job = RebuildJob(store, operation.table, operation.serde, threads or ())
        progress("rebuilding")
        report = job.run({store.partition(t) for t in threads} if threads else None)
    if json:
        print_json(report.to_dict())
    else:
        show_report(report, "rebuilt")


app.command()(publish)


def main() -> None:
    """The entry point: errors become one line and an exit code."""
    limit_heap()
    run_app(app)
