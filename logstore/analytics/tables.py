"""The tables of a snapshot and their columns."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from logstore.errors import InvalidOptionError
from logstore.records import SCHEMA, Kind

PARTITION = pa.field("partition", pa.int32())
RECORDS = pa.schema([PARTITION, *SCHEMA])
"""The columns of runs, and the partition in which they lie."""

_PLACE = ["partition", "kind", "thread_id", "checkpoint_ns", "checkpoint_id"]
_VALUE = ["type", "encoding", "size", "value"]
_ORIGIN = ["run_id", "ts", "arrived", "stamp", "writer", "seq"]


def _records(*names: str) -> pa.Schema:
    return pa.schema([RECORDS.field(name) for name in (*_PLACE, *names, *_ORIGIN, *_VALUE)])


STORED: Mapping[str, tuple[Kind, pa.Schema]] = {
    "checkpoints": (
        Kind.CHECKPOINT,
        _records("parent_checkpoint_id", "source", "step", "metadata", "versions"),
    ),
    "writes": (Kind.WRITE, _records("channel", "task_id", "task_path", "idx")),
    "blobs": (Kind.BLOB, _records("channel", "version")),
    "snapshots": (Kind.SNAPSHOT, _records("channel", "cover")),
}
"""The tables whose rows are records as they are stored, each with its kind. A `value` is the
serde's bytes where `encoding` is `raw`; where it is `patch` or `object` it is a patch, or null if
the value is an object of its own, and the table `decoded` has the value. A checkpoint whose parent
does not show has none, as with a saver."""

TIMESTAMP = pa.timestamp("us", tz="UTC")

MESSAGES = pa.schema(
    [
        PARTITION,
        ("thread_id", pa.string()),
        ("checkpoint_ns", pa.string()),
        ("channel", pa.string()),
        ("branch", pa.string()),
        ("first_checkpoint_id", pa.string()),
        ("last_checkpoint_id", pa.string()),
        ("step", pa.int64()),
        ("ts", TIMESTAMP),
        ("position", pa.int32()),
        ("message_id", pa.string()),
        ("role", pa.string()),
        ("name", pa.string()),
        ("text", pa.string()),
        ("tool_call_ids", pa.list_(pa.string())),
        ("finish_reason", pa.string()),
        ("model", pa.string()),
        ("input_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
        ("total_tokens", pa.int64()),
    ]
)

TOOL_CALLS = pa.schema(
    [
        PARTITION,
        ("thread_id", pa.string()),
        ("checkpoint_ns", pa.string()),
        ("channel", pa.string()),
        ("branch", pa.string()),
        ("step", pa.int64()),
        ("ts", TIMESTAMP),
        ("position", pa.int32()),
        ("message_id", pa.string()),
        ("tool_call_id", pa.string()),
        ("name", pa.string()),
        ("arguments", pa.string()),
        ("result", pa.string()),
        ("is_error", pa.bool_()),
        ("result_ts", TIMESTAMP),
        ("latency_s", pa.float64()),
    ]
)

DECODED = pa.schema(
    [
        *(RECORDS.field(name) for name in _PLACE),
        *(RECORDS.field(name) for name in ("channel", "version", "task_id", "idx", "ts")),
        ("type", pa.string()),
        ("size", pa.int64()),
        ("json", pa.string()),
    ]
)

THREADS = pa.schema(
    [
        PARTITION,
        ("thread_id", pa.string()),
        ("namespaces", pa.int64()),
        ("checkpoints", pa.int64()),
        ("first_ts", TIMESTAMP),
        ("last_ts", TIMESTAMP),
        ("head", pa.string()),
        ("step", pa.int64()),
    ]
)

READ: Mapping[str, pa.Schema] = {
    "messages": MESSAGES,
    "tool_calls": TOOL_CALLS,
    "decoded": DECODED,
}
"""The tables that are made by reading one thread after the other and decoding its values."""
UNDATED = frozenset({"decoded"})
"""Those of them whose `ts` is not that of a checkpoint."""
LARGE = frozenset({"text", "arguments", "result", "json"})
"""Their columns whose size nothing limits."""

SCHEMAS: Mapping[str, pa.Schema] = {
    "threads": THREADS,
    **{name: schema for name, (_, schema) in STORED.items()},
    **READ,
}
"""All tables."""


def schema_of(name: str) -> pa.Schema:
    """A table's columns.

    Raises:
        InvalidOptionError: there is no such table.
    """
    if name not in SCHEMAS:
        raise InvalidOptionError(f"there is no table {name!r}; there are {', '.join(SCHEMAS)}")
    return SCHEMAS[name]
