"""`logstore tail`: what has landed in the log, and what lands next."""

from __future__ import annotations

import json as json_text
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from logstore.cli.common import cell, console, human_bytes, human_time, iso_time, notes
from logstore.cli.options import Limit, Uri, existing_store
from logstore.cli.preview import preview
from logstore.errors import FormatError, ObjectNotFoundError
from logstore.records import Encoding, Kind, Record
from logstore.segment import table_to_records
from logstore.store import LogStore
from logstore.structural import decode

DEFAULT_LIMIT = 20
_PREVIEW = 120
_NO_EVENTS = "the log has no events: all that was stored is compacted, or nothing was stored yet"
_STYLES = {Kind.CHECKPOINT: "bold", Kind.TOMBSTONE: "bold red"}

Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Go on, and show events as they land.")
]
Interval = Annotated[
    float, typer.Option(min=0.05, metavar="SECONDS", help="How often to look for new ones.")
]
Json = Annotated[bool, typer.Option("--json", help="Print a JSON object a line, for programs.")]


@dataclass(frozen=True, slots=True)
class Event:
    """A record that has landed."""

    arrived: int
    """Microseconds since the epoch, by the store's clock."""
    partition: int
    kind: str
    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    step: int | None
    channel: str | None
    text: str

    @classmethod
    def of(cls, record: Record, partition: int) -> Event:
        """Describe a record."""
        return cls(
            record.arrived,
            partition,
            record.kind,
            record.thread_id,
            record.checkpoint_ns,
            record.checkpoint_id,
            record.step,
            record.channel,
            _text(record),
        )


def tail(
    uri: Uri,
    follow: Follow = False,
    limit: Limit = DEFAULT_LIMIT,
    interval: Interval = 1.0,
    json: Json = False,
) -> None:
    """Show the newest events in a store's log: checkpoints, writes, deletes.

    The log is what no compaction has deleted yet, so events of the last minutes are there. With
    --follow the command goes on until it is interrupted. An event is what a process stored; one
    that is hidden later, or repeats another, has landed all the same.

    Examples:

        logstore tail file:///var/lib/agents --follow

        logstore tail s3://bucket/agents --follow --json | jq 'select(.kind == "tombstone")'
    """
    with existing_store(uri) as store:
        log = _Log(store)
        events = log.new(newest=limit)
        for event in events[-limit:]:
            _print(event, json)
        if not events:
            notes.print(_NO_EVENTS, style="dim")
        while follow:
            time.sleep(interval)
            for event in log.new():
                _print(event, json)


class _Log:
    """The log of all partitions, each segment seen once."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        settings = store.settings()
        self._seen: dict[int, set[str]] = {
            number: set() for number in range(settings.partitions if settings else 0)
        }

    def new(self, newest: int = 0) -> list[Event]:
        """What has landed since the last look, in the order of its arrival.

        Args:
            newest: at least so many events are wanted, older ones need not be fetched; 0 for all.
        """
        found: list[Event] = []
        for partition in self._seen:
            found.extend(self._new(partition, newest))
        return sorted(found, key=lambda event: event.arrived)

    def _new(self, partition: int, newest: int) -> Iterator[Event]:
        arrived = self._store.log.list(partition).arrived
        fresh = arrived.keys() - self._seen[partition]
        for key in sorted(fresh, key=lambda key: (arrived[key], key))[-newest:]:
            try:
                segment = self._store.log.fetch(key)
            except ObjectNotFoundError:
                continue  # deleted since the LIST: its events are old
            for record in table_to_records(segment.table):
                if record.kind != Kind.BLOB:
                    yield Event.of(record._replace(arrived=arrived[key]), partition)
        self._seen[partition] = set(arrived)


def _text(record: Record) -> str:
    if record.kind == Kind.TOMBSTONE:
        return "deleted"
    if record.kind == Kind.CHECKPOINT:
        return record.source or ""
    if record.encoding != Encoding.RAW or not isinstance(record.value, bytes):
        return f"{human_bytes(record.size or 0)}, stored as what changed"
    try:
        return preview(decode(record.type or "", record.value), _PREVIEW)
    except FormatError as error:
        return str(error)


def _print(event: Event, json: bool) -> None:
    if json:
        document: dict[str, Any] = {**asdict(event), "arrived": iso_time(event.arrived)}
        sys.stdout.write(json_text.dumps(document) + "\n")
        sys.stdout.flush()
        return
    line = cell(human_time(event.arrived), "dim")
    thread = event.thread_id + (f" [{event.checkpoint_ns}]" if event.checkpoint_ns else "")
    line.append_text(cell(f"  {thread}", "cyan"))
    what = event.kind if event.step is None else f"{event.kind} step {event.step}"
    line.append_text(cell(f"  {what}", _STYLES.get(Kind(event.kind), "")))
    line.append_text(
        cell(f"  {event.channel}: {event.text}" if event.channel else f"  {event.text}")
    )
    console.print(line, soft_wrap=True)
