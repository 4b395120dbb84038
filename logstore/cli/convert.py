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


def convert(
    uri: Uri,
    thread_id: ThreadId,
    to: To,
    reducer: Reducer = None,
    serde: Serde = None,
    json: Json = False,
) -> None:
    """Materialise a delta thread, so that full-mode processes can read it and go on with it.

    Each of its checkpoints gets the whole list of messages, in its place: ids, parents, and
    what tasks have written stay, so a thread that waits for an answer still does. Stop what
    writes the thread first. Repeating the command does nothing, or finishes one that was
    interrupted.

    Example:

        logstore convert file:///var/lib/agents 42 --to full
    """
    with existing_store(uri) as store:
        read_thread(store, thread_id)
        saver = LogStoreSaver(store, serde=load_object(serde) if serde else None)
        done = convert_to_full(
            saver,
            thread_id,
            reducer=load_object(reducer) if reducer else merge_message_writes,
        )
    if json:
        print_json({"uri": store.uri, "thread_id": thread_id, "converted": [*map(asdict, done)]})
        return
    for one in done:
        ns = f"namespace {one.checkpoint_ns!r}: " if one.checkpoint_ns else ""
        line = f"{ns}{one.checkpoints} checkpoints converted, {one.messages} messages at the newest"
        console.print(cell(line))
    if not done:
        console.print(cell(f"thread {thread_id!r} is in {to} mode already"))
