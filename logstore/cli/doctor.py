"""`logstore doctor`: are delta channels stored as they should be, and at which cadence?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logstore.cli.catalog import Catalog
from logstore.cli.common import CommandError, cell, console, print_json, table
from logstore.cli.options import Json, Uri, existing_store
from logstore.config import load_config
from logstore.doctor import Examination, Finding, examine
from logstore.exam import ChannelExam

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="The application's config.yaml, to compare its mode and cadence with the data.",
        show_default=False,
    ),
]


def doctor(uri: Uri, config: ConfigFile = None, json: Json = False) -> None:
    """Check how delta channels are stored, and which cadence the data shows.

    The cadence (snapshot_frequency) is compiled into graphs and stored nowhere, so nothing
    stops two processes with different ones; here it shows. "in line" are the snapshots that
    the graphs write, "compacted" those that the compactor makes; "replayed" is the most
    updates that a read of one of the checkpoints has to replay.

    The exit code is 1 if something needs to be done.

    Examples:

        logstore doctor file:///var/lib/agents --config config.yaml

        logstore doctor s3://bucket/agents --json | jq '.findings[] | select(.problem)'
    """
    database = load_config(config).database if config else None
    with existing_store(uri) as store:
        found = examine(
            store,
            Catalog(store).reads(),
            mode=database.checkpoint_channel_mode if database else None,
            snapshot_frequency=database.snapshot_frequency if database else None,
        )
    if json:
        print_json(found.to_dict())
    else:
        _print(found)
    if found.problems:
        count = len(found.problems)
        raise CommandError(f"{count} problem{'s' if count > 1 else ''} found in {found.uri}")


def _print(found: Examination) -> None:
    unmarked = f", {found.unmarked_threads} of them unmarked" if found.unmarked_threads else ""
    configured = f"; configured: {found.configured_mode}" if found.configured_mode else ""
    console.print(
        f"{found.uri}: {found.threads} {'thread' if found.threads == 1 else 'threads'}, "
        f"{found.delta_threads} in delta mode"
        f"{unmarked}{configured}",
        markup=False,
    )
    if found.channels:
        console.print()
        _print_channels(found.channels)
    for finding in found.findings:
        console.print()
        _print_finding(finding)


def _print_channels(channels: list[ChannelExam]) -> None:
    numbers = ("threads", "checkpoints", "whole", "in line", "compacted", "bare", "replayed")
    rows = table(
        "channel",
        *numbers,
        "cadence in line",
        "cadence compacted",
        "configured",
        right=(*numbers, "configured"),
    )
    for exam in channels:
        rows.add_row(
            cell(f"{exam.namespace}: {exam.channel}" if exam.namespace else exam.channel),
            f"{exam.threads}",
            f"{exam.checkpoints}",
            f"{exam.whole}",
            f"{exam.inline}",
            f"{exam.compacted}",
            f"{exam.bare}",
            f"{exam.replay}",
            _inline_cadence(exam),
            _distances(exam.compactor_cadence) or "-",
            "-" if exam.configured is None else f"{exam.configured}",
        )
    console.print(rows)


def _inline_cadence(exam: ChannelExam) -> str:
    told = [_distances(exam.cadence)] if exam.cadence else []
    if exam.unbroken >= max(exam.cadence, default=1):
        told.append(f"> {exam.unbroken}")
    if exam.out_of_turn:
        told.append(f"{exam.out_of_turn} out of turn")
    return ", ".join(told) or "-"


def _distances(found: dict[int, int]) -> str:
    return ", ".join(f"{distance} ×{times}" for distance, times in sorted(found.items()))


def _print_finding(finding: Finding) -> None:
    style = "bold red" if finding.problem else "yellow"
    times = f" ({finding.times} times)" if finding.times > 1 else ""
    label = "problem" if finding.problem else "note"
    console.print(cell(f"{label}: {finding.text}{times}", style=style))
    for example in finding.examples:
        console.print(cell(f"  {example}", style="dim"))
