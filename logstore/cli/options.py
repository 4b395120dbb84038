"""Arguments and options that several commands take, and how they open a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote

import typer

from logstore.cli.common import CommandError
from logstore.encode import Target
from logstore.reader import ThreadRead, until_stable
from logstore.store import LogStore, StoreOptions

Uri = Annotated[
    str,
    typer.Argument(
        metavar="URI",
        help="The store: file:///dir or s3://bucket/prefix?endpoint_url=…&region=…",
        show_default=False,
    ),
]
ThreadId = Annotated[
    str, typer.Argument(metavar="THREAD", help="The thread's id.", show_default=False)
]
Namespace = Annotated[
    str,
    typer.Option("--ns", metavar="NS", help="A subgraph's namespace; the root graph's is empty."),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document, for programs, and nothing else.")
]
Limit = Annotated[int, typer.Option(min=0, metavar="N", help="At most N rows; 0 for all.")]


@contextmanager
def existing_store(uri: str, options: StoreOptions | None = None) -> Iterator[LogStore]:
    """Open the store at a URI for a command, and close it in the end.

    Raises:
        CommandError: there is none.
    """
    refuse_memory(uri)
    require_directory(uri)
    store = LogStore.open(uri, options)
    try:
        if store.settings() is None:
            raise _no_store(store.uri)
        yield store
    finally:
        store.close()


def refuse_memory(uri: str) -> None:
    """Make sure that a store outlives the command.

    Raises:
        CommandError: it is a `memory://` store.
    """
    if uri.startswith("memory:"):
        raise CommandError(
            f"{uri} lives in the memory of the program that uses it; no other can reach it. "
            "Commands need a file:// or s3:// store"
        )


def require_directory(uri: str) -> None:
    """Make sure that a directory exists: opening one creates it, and looking must not.

    Raises:
        CommandError: it does not exist.
    """
    prefix, slashes, path = uri.partition(":///")
    if prefix == "file" and slashes and not Path(unquote(f"/{path}")).exists():
        raise _no_store(uri)


def _no_store(uri: str) -> CommandError:
    return CommandError(
        f"there is no store at {uri}: it has no store.json. Check the URI; a new store is created "
        f'by the first write of a saver, or by: logstore init "{uri}"'
    )


def read_thread(store: LogStore, thread_id: str) -> ThreadRead:
    """Read all records of a thread.

    Raises:
        CommandError: it has no visible checkpoint.
    """
    name = Target.check_thread_id(thread_id)
    read = until_stable(lambda: store.read_history(name, with_holes=True))
    if not read.view.namespaces():
        raise missing_thread(store, name, read)
    return read


def missing_thread(store: LogStore, thread_id: str, read: ThreadRead) -> CommandError:
    """The error for a thread without a visible checkpoint: it says what is there instead."""
    waiting = len(list(read.view.written_checkpoints()))
    if waiting:
        why = (
            f"there are writes at {waiting} of its checkpoints, but no checkpoint has arrived; "
            "a checkpoint without its put is not shown"
        )
    elif read.view.tombstones:
        why = "it was deleted"
    else:
        why = (
            f"nothing is stored under that id; partition {store.partition(thread_id)} would hold it"
        )
    return CommandError(
        f"thread {thread_id!r} has no checkpoint in {store.uri}: {why}. "
        f'The threads that there are: logstore threads "{store.uri}"'
    )


def check_namespace(read: ThreadRead, ns: str) -> None:
    """Make sure that a thread has checkpoints in a namespace.

    Raises:
        CommandError: it has none.
    """
    known = read.view.namespaces()
    if ns not in known:
        raise CommandError(
            f"thread {read.view.thread_id!r} has no checkpoint in namespace {ns!r}; it has "
            f"{', '.join(map(repr, known))}. Choose one with --ns"
        )
