"""`logstore convert`: make a thread readable in the other channel mode."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from logstore.channels import merge_message_writes
from logstore.cli.common import cell, console, print_json
from logstore.cli.options import Json, ThreadId, Uri, existing_store, read_thread
from logstore.config import load_object
from logstore.convert import convert_to_full
from logstore.saver import LogStoreSaver


class Target(StrEnum):
    """The mode to convert to."""

    FULL = "full"


To = Annotated[
    Target,
    typer.Option("--to", help="The mode. From full to delta nothing needs converting."),
]
Reducer = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:ATTR",
        help="The reducer of the graph's DeltaChannel, if it is not merge_message_writes.",
        show_default=False,
    ),
]
Serde = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:ATTR",
        help="The saver's serde, if it is not LangGraph's.",
        show_default=False,
    ),
]
Rerun = Annotated[
    bool,
    typer.Option(
        "--rerun-unfinished",
        help="Convert a thread that waits in the middle of a step; that step then runs again.",
    ),
]


def convert(
    uri: Uri,
    thread_id: ThreadId,
    to: To,
    reducer: Reducer = None,
    serde: Serde = None,
    rerun_unfinished: Rerun = False,
    json: Json = False,
) -> None:
    """Materialise a delta thread, so that full-mode processes can go on with it.

    Each namespace gets a new head that holds the whole list of messages. Checkpoints below it
    stay in delta mode: full mode goes on from the head, and refuses those. Stop what writes
    the thread first. Repeating the command does nothing.

    Example:

        logstore convert file:///var/lib/agents 42 --to full
    """
    with existing_store(uri) as store:
        namespaces = read_thread(store, thread_id).view.namespaces()
        saver = LogStoreSaver(store, serde=load_object(serde) if serde else None)
        done = convert_to_full(
            saver,
            thread_id,
            namespaces=namespaces,
            reducer=load_object(reducer) if reducer else merge_message_writes,
            rerun_unfinished=rerun_unfinished,
        )
    if json:
        print_json({"uri": store.uri, "thread_id": thread_id, "converted": [*map(asdict, done)]})
        return
    for one in done:
        ns = f" in namespace {one.checkpoint_ns!r}" if one.checkpoint_ns else ""
        line = f"{one.messages} messages{ns}: {one.converted_from} -> {one.checkpoint_id}"
        console.print(cell(line))
    if not done:
        console.print(cell(f"thread {thread_id!r} is in {to} mode already"))
