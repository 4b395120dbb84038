"""`logstore init` and `logstore stats`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from logstore.cli.common import (
    CommandError,
    cell,
    console,
    human_bytes,
    human_seconds,
    print_json,
    table,
)
from logstore.cli.inventory import StoreStats, read_stats
from logstore.cli.options import Json, Uri, existing_store, refuse_memory
from logstore.store import MAX_PARTITIONS, LogStore, Settings, StoreOptions

Partitions = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MAX_PARTITIONS,
        metavar="N",
        show_default=False,
        help="How many partitions the store has, for good. More spread the load of many "
        "writing processes; 4 if left out.",
    ),
]


def init(uri: Uri, partitions: Partitions = None, json: Json = False) -> None:
    """Create a store, or check the one that is there.

    A saver creates its store with the first write, so this is needed only for another number
    of partitions, or to see early that the bucket, the credentials and the conditional writes
    of the object store are as they must be. Repeating it changes nothing.

    Examples:

        logstore init file:///var/lib/agents

        logstore init "s3://bucket/agents?region=eu-central-1" --partitions 16
    """
    refuse_memory(uri)
    store = LogStore.open(uri, StoreOptions(partitions=partitions))
    try:
        existed = store.settings() is not None
        settings = store.create()
    finally:
        store.close()
    if json:
        print_json({"uri": store.uri, "created": not existed, "settings": asdict(settings)})
        return
    console.print(f"{'found' if existed else 'created'} {store.uri}", markup=False)
    _print_settings(settings)


def _print_settings(settings: Settings) -> None:
    rows = table("setting", "value", "meaning")
    rows.add_row("partitions", f"{settings.partitions}", "fixed at creation")
    rows.add_row(
        "short grace",
        human_seconds(settings.short_grace_s),
        "from a compaction until the segments that it merged are deleted",
    )
    rows.add_row(
        "long grace",
        human_seconds(settings.long_grace_s),
        "until runs and snapshots that were replaced are deleted",
    )
    console.print(rows)


def stats(uri: Uri, json: Json = False) -> None:
    """Show how much a store holds, and how far the compactor is behind.

    The tail is what was written since the last compaction: every read of a thread goes
    through it, so a long or old tail means that the compactor does not run, or not often
    enough. What cannot be read is named at the end, and the exit code is then 1.

    Examples:

        logstore stats file:///var/lib/agents

        logstore stats s3://bucket/agents --json | jq '.partitions[].tail_segments'
    """
    with existing_store(uri) as store:
        found = read_stats(store, store.settings() or Settings())
    if json:
        print_json(found.to_dict())
    else:
        _print_stats(found)
    if found.problems:
        raise CommandError("; ".join(found.problems))


def _print_stats(found: StoreStats) -> None:
    settings = found.settings
    threads = (
        "an unknown number of threads" if found.threads is None else f"{found.threads} threads"
    )
    console.print(
        f"{found.uri}: {threads}, {settings.partitions} partitions, graces "
        f"{human_seconds(settings.short_grace_s)} and {human_seconds(settings.long_grace_s)}",
        markup=False,
    )
    console.print()
    kinds = table("kind", "objects", "bytes", right=("objects", "bytes"))
    for kind, size in found.kinds.items():
        kinds.add_row(kind, f"{size.objects}", human_bytes(size.bytes))
    console.print(kinds)
    console.print()
    console.print(_partitions(found))
    for part in found.partitions:
        for channel, why in part.unfolded.items():
            text = f"partition {part.partition}: no snapshots of {channel}: {why}"
            console.print(cell(text, style="yellow"))


def _partitions(found: StoreStats) -> object:
    numbers = ("partition", "tail segments", "compactions", "runs", "rows", "bytes", "to delete")
    rows = table(
        "partition",
        "tail segments",
        "oldest",
        "compactions",
        "runs",
        "rows",
        "bytes",
        "to delete",
        right=(*numbers, "oldest"),
    )
    for part in found.partitions:
        rows.add_row(
            f"{part.partition}",
            f"{part.tail_segments}",
            "-" if part.oldest_tail_s is None else human_seconds(part.oldest_tail_s),
            f"{part.generation}",
            f"{part.runs}",
            f"{part.run_rows}",
            human_bytes(part.run_bytes),
            f"{part.waiting}",
        )
    return rows
