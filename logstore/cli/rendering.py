"""A checkpoint on the screen, for `logstore show`."""

from __future__ import annotations

import json
from typing import Any

from logstore.cli.common import cell, console, human_bytes, human_time, one_line, table
from logstore.cli.inspection import Channel, Inspection, Stored
from logstore.cli.preview import preview
from logstore.records import Kind
from logstore.structural import is_delta_snapshot, to_json

_SHOWN_WRITES = 20


def print_checkpoint(found: Inspection) -> None:
    """A checkpoint on the screen: its facts, its channels, what is replayed, what is pending."""
    record = found.checkpoint
    hidden = " (hidden)" if found.parent_hidden else ""
    facts = table("", "")
    facts.show_header = False
    for name, text in (
        ("thread", record.thread_id),
        ("namespace", record.checkpoint_ns or "(root)"),
        ("checkpoint", record.checkpoint_id + ("  (head)" if found.head else "")),
        ("parent", f"{record.parent_checkpoint_id or '-'}{hidden}"),
        ("saved", f"{human_time(record.ts)} UTC, step {record.step}, source {record.source}"),
        ("run", record.run_id or "-"),
        ("metadata", found.metadata.error or preview(found.metadata.value, 400)),
        ("read from", _path(found)),
    ):
        facts.add_row(cell(name, style="bold"), cell(text))
    console.print(facts)
    console.print()
    _print_channels(found)
    for channel in found.channels:
        if channel.kind == "delta" and channel.error is None:
            _print_replay(channel)
    _print_pending(found)


def _path(found: Inspection) -> str:
    path = found.path
    if path.kind == "head":
        first = f"the snapshot manifest (generation {path.generation})"
        if not path.generation:
            first = "no snapshot manifest yet"
    else:
        first = f"{len(path.runs)} runs"
    return f"{first}, {len(path.segments)} segments of the log"


def _print_channels(found: Inspection) -> None:
    rows = table("channel", "version", "kind", "bytes", "value", right=("bytes",))
    for channel in found.channels:
        value = channel.value
        if channel.kind != "empty":
            rows.add_row(
                cell(channel.name),
                cell(_short_version(channel.version)),
                cell(_kind(channel)),
                "-" if value is None else human_bytes(value.size),
                cell(_recipe(channel)) if value is None else _preview(value),
            )
    console.print(rows)
    empty = ", ".join(c.name for c in found.channels if c.kind == "empty")
    if empty:
        console.print(cell(f"without a value: {empty}", style="dim"))


def _short_version(version: str | None) -> str:
    """LangGraph's versions are padded with zeros and end in a long random number."""
    number, dot, rest = (version or "-").partition(".")
    return f"{number.lstrip('0') or '0'}{dot}{rest[:6]}"


def _kind(channel: Channel) -> str:
    if channel.value is not None and is_delta_snapshot(channel.value.value):
        return f"{channel.kind}, in-line snapshot"
    return channel.kind


def _recipe(channel: Channel) -> str:
    if channel.error is not None:
        return channel.error
    count = len(channel.writes)
    writes = "1 write" if count == 1 else f"{count} writes"
    return f"{_seed_name(channel.seed)} + {writes}"


def _seed_name(seed: Stored | None) -> str:
    if seed is None:
        return "empty"
    if seed.record.kind == Kind.SNAPSHOT:
        return f"the compactor's snapshot at {seed.record.checkpoint_id}"
    if is_delta_snapshot(seed.value):
        return f"the graph's snapshot at {seed.record.checkpoint_id}"
    return f"the value stored at {seed.record.checkpoint_id}"


def _preview(stored: Stored) -> Any:
    if stored.error is not None:
        return cell(stored.error, style="red")
    return cell(preview(stored.value))


def _print_replay(channel: Channel) -> None:
    console.print()
    console.print(cell(f"{channel.name} = {_recipe(channel)}", style="bold"))
    rows = table("", "at checkpoint", "bytes", "value", right=("bytes",), whole=("at checkpoint",))
    if channel.seed is not None:
        rows.add_row("seed", *_row(channel.seed))
    hidden = max(len(channel.writes) - _SHOWN_WRITES, 0)
    if hidden:
        rows.add_row("write", f"… {hidden} earlier ones; --json lists them")
    for write in channel.writes[hidden:]:
        rows.add_row("write", *_row(write))
    console.print(rows)


def _row(stored: Stored) -> tuple[Any, ...]:
    return cell(stored.record.checkpoint_id), human_bytes(stored.size), _preview(stored)


def _print_pending(found: Inspection) -> None:
    if not found.pending:
        return
    console.print()
    console.print(cell("pending writes: stored at this checkpoint, for the next", style="bold"))
    rows = table(
        "task", "idx", "channel", "bytes", "value", right=("idx", "bytes"), whole=("task",)
    )
    for write in found.pending:
        record = write.record
        rows.add_row(
            cell(record.task_id or "-"),
            f"{record.idx}",
            cell(record.channel or "-"),
            human_bytes(write.size),
            _preview(write),
        )
    console.print(rows)


def print_channel(channel: Channel) -> None:
    """One channel on the screen, its values in full."""
    console.print(cell(f"{channel.name}: {channel.kind}, version {channel.version}", style="bold"))
    if channel.error is not None:
        console.print(cell(channel.error, style="red"))
    parts = [("value", channel.value), ("seed", channel.seed)]
    parts += [(f"write {number}", write) for number, write in enumerate(channel.writes, 1)]
    for name, stored in parts:
        if stored is None:
            continue
        where = f"{name}, at {stored.record.checkpoint_id}, {human_bytes(stored.size)}"
        console.print(cell(where, style="bold"))
        if stored.error is not None:
            console.print(cell(stored.error, style="red"))
            continue
        for line in json.dumps(to_json(stored.value), indent=2, ensure_ascii=False).split("\n"):
            console.print(one_line(line), markup=False, soft_wrap=True)
