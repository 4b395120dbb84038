"""`logstore show`: one checkpoint, its values, and what they are made of."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from logstore.cli.common import CommandError, iso_time, print_json
from logstore.cli.inspection import Channel, Inspection, Stored, inspect
from logstore.cli.options import Json, Namespace, ThreadId, Uri, existing_store
from logstore.cli.rendering import print_channel, print_checkpoint
from logstore.structural import to_json

CheckpointId = Annotated[
    str | None,
    typer.Option(
        "--checkpoint", metavar="ID", show_default=False, help="A checkpoint's id; else the head."
    ),
]
ChannelName = Annotated[
    str | None,
    typer.Option(
        "--channel", metavar="NAME", show_default=False, help="Only this channel, its value whole."
    ),
]


def show(
    uri: Uri,
    thread_id: ThreadId,
    checkpoint_id: CheckpointId = None,
    ns: Namespace = "",
    channel: ChannelName = None,
    json: Json = False,
) -> None:
    """Show a checkpoint: metadata, channels, pending writes, and where each value lies.

    Values are read without their classes: nothing of the application is imported, so a
    thread whose code is missing or does not load any more can be looked at. A delta channel
    without a value of its own is shown as the seed and the writes that a read replays on it,
    oldest first. What cannot be read is marked, named at the end, and makes the exit code 1.

    Examples:

        logstore show file:///var/lib/agents customer-42

        logstore show file:///var/lib/agents customer-42 --channel messages

        logstore show s3://bucket/agents customer-42 --checkpoint 1f0c… --json
    """
    with existing_store(uri) as store:
        found = inspect(store, thread_id, ns, checkpoint_id)
    channels = _chosen(found, channel)
    if json:
        print_json(_document(store.uri, found, channels))
    elif channel is not None:
        print_channel(channels[0])
    else:
        print_checkpoint(found)
    if found.errors:
        raise CommandError("; ".join(found.errors))


def _chosen(found: Inspection, channel: str | None) -> list[Channel]:
    chosen = [c for c in found.channels if channel in (None, c.name)]
    if channel is not None and not chosen:
        names = ", ".join(c.name for c in found.channels) or "none"
        raise CommandError(
            f"checkpoint {found.checkpoint.checkpoint_id} has no channel {channel!r}; "
            f"it has {names}"
        )
    return chosen


def _document(uri: str, found: Inspection, channels: list[Channel]) -> dict[str, Any]:
    record = found.checkpoint
    return {
        "uri": uri,
        "thread_id": record.thread_id,
        "checkpoint_ns": record.checkpoint_ns,
        "checkpoint_id": record.checkpoint_id,
        "parent_checkpoint_id": record.parent_checkpoint_id,
        "parent_hidden": found.parent_hidden,
        "head": found.head,
        "step": record.step,
        "source": record.source,
        "ts": iso_time(record.ts),
        "run_id": record.run_id,
        "metadata": _value(found.metadata),
        "channels": {c.name: _channel(c) for c in channels},
        "pending_writes": [_write(w) for w in found.pending],
        "read": asdict(found.path),
        "errors": list(found.errors),
    }


def _channel(channel: Channel) -> dict[str, Any]:
    doc: dict[str, Any] = {"kind": channel.kind, "version": channel.version}
    if channel.value is not None:
        doc.update(_value(channel.value))
    if channel.error is not None:
        doc["error"] = channel.error
    elif channel.kind == "delta":
        doc["seed"] = None if channel.seed is None else _value(channel.seed)
        doc["writes"] = [_write(w) for w in channel.writes]
    return doc


def _write(write: Stored) -> dict[str, Any]:
    record = write.record
    return {
        "channel": record.channel,
        "task_id": record.task_id,
        "task_path": record.task_path,
        "idx": record.idx,
        **_value(write),
    }


def _value(stored: Stored) -> dict[str, Any]:
    doc: dict[str, Any] = {
        "checkpoint_id": stored.record.checkpoint_id,
        "where": stored.where,
        "type": stored.type,
        "bytes": stored.size,
    }
    if stored.error is not None:
        doc["error"] = stored.error
    else:
        doc["value"] = to_json(stored.value)
    return doc
