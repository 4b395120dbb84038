"""`logstore messages`: what was said in a store, or in one thread."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.cli.common import (
    CommandError,
    cell,
    console,
    counted,
    notes,
    one_line,
    print_json,
    table,
)
from logstore.cli.options import Json, Uri
from logstore.cli.snapshots import AllBranches, History, plain, reading, snapshot_of

if TYPE_CHECKING:
    from logstore.analytics import Reading, StoreSnapshot

DEFAULT_LIMIT = 50
_STYLES = {"user": "bold cyan", "assistant": "bold green", "tool": "bold magenta"}
_PREVIEW = 100

Thread = Annotated[
    str | None,
    typer.Argument(metavar="[THREAD]", help="Only this thread, in full.", show_default=False),
]
Limit = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        show_default=False,
        help=f"At most N messages; 0 for all. Default: all of one thread, {DEFAULT_LIMIT} of many.",
    ),
]


def messages(
    uri: Uri,
    thread_id: Thread = None,
    history: History = False,
    all_branches: AllBranches = False,
    limit: Limit = None,
    json: Json = False,
) -> None:
    """Show messages: of one thread as a conversation, or of all threads in a line each.

    Values are read without their classes, so nothing of the application is imported. Messages
    that a compactor has not merged yet are shown too. What is encrypted shows as such.

    Examples:

        logstore messages file:///var/lib/agents customer-42

        logstore messages s3://bucket/agents --limit 0 --json | jq -r '.messages[].model'
    """
    how = reading(history, all_branches)
    most = limit if limit is not None else DEFAULT_LIMIT if thread_id is None else 0
    with snapshot_of(uri) as snapshot:
        found = snapshot.scan("messages", thread_id=thread_id, reading=how)
        rows = (row for batch in found for row in batch.to_pylist())
        shown = list(islice(rows, most) if most else rows)
        more = next(rows, None) is not None
        calls = _calls(snapshot, thread_id, how) if thread_id is not None and not json else {}
    if thread_id is not None and not shown:
        raise CommandError(
            f"thread {thread_id!r} has no messages in {uri}. The threads that there are: "
            f'logstore threads "{uri}"'
        )
    if json:
        print_json({"uri": uri, "messages": [plain(row) for row in shown], "more": more})
    elif thread_id is None:
        _print_lines(shown)
    else:
        _print_conversation(shown, calls)
    if more and not json:
        notes.print(f"the first {most}; --limit 0 shows all", style="dim")


def _print_lines(rows: list[dict[str, Any]]) -> None:
    short = ("step", "time (UTC)", "role")
    found = table("thread", "step", "time (UTC)", "role", "text", right=("step",), whole=short)
    for row in rows:
        found.add_row(
            cell(_thread(row)),
            "-" if row["step"] is None else f"{row['step']}",
            _time(row),
            cell(row["role"] or "-"),
            cell(_preview(row)),
        )
    console.print(found if rows else "no messages")


def _thread(row: dict[str, Any]) -> str:
    ns = f" [{row['checkpoint_ns']}]" if row["checkpoint_ns"] else ""
    return f"{row['thread_id']}{ns}"


def _time(row: dict[str, Any]) -> str:
    return "-" if row["ts"] is None else f"{row['ts']:%Y-%m-%d %H:%M:%S}"


def _preview(row: dict[str, Any]) -> str:
    text = " ".join((row["text"] or "").split())
    if row["role"] == "assistant" and row["tool_call_ids"] and not text:
        text = f"→ {counted(len(row['tool_call_ids']), 'tool call')}"
    return text if len(text) <= _PREVIEW else f"{text[: _PREVIEW - 1]}…"


def _calls(snapshot: StoreSnapshot, thread_id: str, how: Reading) -> dict[str, str]:
    """The thread's tool calls as a few words, by their ids."""
    rows = snapshot.scan("tool_calls", thread_id=thread_id, reading=how).read_all().to_pylist()
    return {row["tool_call_id"]: f"{row['name']}({row['arguments']})" for row in rows}


def _print_conversation(rows: list[dict[str, Any]], calls: dict[str, str]) -> None:
    place = None
    for row in rows:
        here = (row["checkpoint_ns"], row["channel"], row["branch"])
        if place not in (None, here) or here[0]:
            console.print(cell(f"── {here[0] or 'root'} · {here[1]} · branch {here[2]}", "dim"))
        place = here
        _print_message(row, calls)


def _print_message(row: dict[str, Any], calls: dict[str, str]) -> None:
    head = cell(row["role"] or "unknown", _STYLES.get(row["role"], "bold"))
    facts = [f"step {row['step']}", _time(row)]
    facts += [row["name"]] if row["name"] else []
    facts += [row["model"]] if row["model"] else []
    facts += [f"{row['total_tokens']} tokens"] if row["total_tokens"] else []
    console.print(head.append(one_line(f"  {' · '.join(facts)}"), style="not bold dim"))
    for line in (row["text"] or "").splitlines():
        console.print(cell(f"  {line}"), soft_wrap=True)
    if row["role"] == "assistant":
        for call in row["tool_call_ids"]:
            console.print(cell(f"  → {calls.get(call, call)}", "dim"), soft_wrap=True)
