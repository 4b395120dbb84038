"""`logstore advise`: which channels to keep as deltas, from the user's own threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Annotated, Any

import typer
from langgraph.checkpoint.base import BaseCheckpointSaver

from logstore.advise import FREQUENCIES, ChannelAdvice
from logstore.advise import advise as advise_channels
from logstore.cli.common import cell, console, human_bytes, print_json, table
from logstore.cli.options import Json, existing_store
from logstore.config import load_object
from logstore.errors import InvalidOptionError
from logstore.index import StoreIndex
from logstore.saver import LogStoreSaver

Saver = BaseCheckpointSaver[Any]
OptionalUri = Annotated[
    str | None,
    typer.Argument(
        metavar="URI",
        help="The store: file:///dir or s3://bucket/prefix?endpoint_url=…&region=…",
        show_default=False,
    ),
]
SaverPath = Annotated[
    str | None,
    typer.Option(
        "--saver",
        metavar="MODULE:FACTORY",
        help="Another saver instead: what the function returns, as it is or as a context manager.",
        show_default=False,
    ),
]
Threads = Annotated[
    list[str] | None,
    typer.Option(
        "--thread",
        metavar="THREAD",
        help="Only this thread; may be repeated.",
        show_default=False,
    ),
]


def advise(
    uri: OptionalUri = None,
    saver: SaverPath = None,
    thread: Threads = None,
    json: Json = False,
) -> None:
    """Tell for each channel what keeping it as deltas would save and cost.

    It goes by the threads that there are: how often each channel was written, how large it
    became, how often it was read to go on. A snapshot at every K-th update costs bytes, and
    spares replaying. Bytes are counted before a saver compresses or patches them.

    Switching needs a reducer that does not care how writes are batched; for messages that is
    logstore.channels:merge_message_writes.

    Examples:

        logstore advise file:///var/lib/agents

        logstore advise --saver my_app.storage:open_postgres_saver --json
    """
    with _opened(uri, saver) as (found, thread_ids):
        advice = advise_channels(found, thread or thread_ids)
    if json:
        print_json({"channels": [one.to_dict() for one in advice]})
    else:
        _print(advice)


@contextmanager
def _opened(uri: str | None, path: str | None) -> Iterator[tuple[Saver, Iterable[str] | None]]:
    """The saver to look at, and its threads if they are known without listing everything."""
    if (uri is None) == (path is None):
        raise InvalidOptionError("give the URI of a store, or --saver module:factory")
    if uri is not None:
        with existing_store(uri) as store:
            threads = sorted({thread_id for thread_id, _, _ in StoreIndex(store).checkpoints()})
            yield LogStoreSaver(store), threads
        return
    with _made(path or "") as saver:
        yield saver, None


def _made(path: str) -> AbstractContextManager[Saver]:
    found = load_object(path)
    made = found() if callable(found) and not _is_saver(found) else found
    if _is_saver(made):
        return nullcontext(made)
    if isinstance(made, AbstractContextManager):
        return made
    raise InvalidOptionError(
        f"{path!r} gives a {type(made).__name__}; it is to give a checkpoint saver, or a context "
        "manager of one"
    )


def _is_saver(value: object) -> bool:
    return isinstance(value, BaseCheckpointSaver)


def _print(advice: list[ChannelAdvice]) -> None:
    if not advice:
        console.print("no threads")
        return
    columns = ("written", "read", "value", "full", *(f"K={k}" for k in FREQUENCIES))
    replayed = "replayed at " + "/".join(map(str, FREQUENCIES))
    rows = table("channel", *columns, replayed, "advice", right=columns)
    for one in advice:
        name = f"{one.namespace}: {one.channel}" if one.namespace else one.channel
        rows.add_row(
            cell(name),
            f"{one.updates}",
            f"{one.reads}",
            f"{'~' if one.estimated else ''}{human_bytes(one.value_bytes)}",
            human_bytes(one.full.stored),
            *(human_bytes(one.delta[k].stored) for k in FREQUENCIES),
            " / ".join(f"{one.replays(k):.3g}" for k in FREQUENCIES),
            one.verdict,
        )
    console.print(rows)
    console.print(
        "written: updates; read: starts of runs, resumes, updates from outside; value: the "
        "largest; full and K: bytes stored in all; replayed: updates a read, on average",
        style="dim",
    )
