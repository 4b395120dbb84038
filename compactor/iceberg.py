"""Apache Iceberg tables of a store, kept up to date for engines that read these.

A run of the compactor is a file of all kinds of records; an Iceberg table has rows of one kind.
So the rows are written anew, once: what a table has and the store no longer shows is deleted,
what it lacks is appended, and both in one commit a partition. Which rows these are follows from
the two sets of row ids, so a run that was killed, or that another one overtook, is mended by the
next; a partition that has not changed since costs no scan.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from logstore.analytics import StoreSnapshot
from logstore.analytics.pin import PinnedPartition
from logstore.analytics.tables import schema_of
from logstore.errors import UsageError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction

ROW_ID = pa.field("row_id", pa.int64())
"""A digest of what makes the row; a changed message is another row."""
_CHUNK_ROWS = 20_000
_DELETED_AT_ONCE = 2_000


@dataclass(frozen=True, slots=True)
class Published:
    """What was done to one table."""

    table: str
    appended: int
    deleted: int
    partitions: int
    """Partitions that had changed."""


@dataclass(frozen=True)
class _Kind:
    """One of the tables."""

    name: str
    columns: tuple[str, ...]
    identity: tuple[str, ...]
    """The columns that the row id digests."""

    @property
    def schema(self) -> pa.Schema:
        """The Iceberg table's columns."""
        source = schema_of(self.name)
        return pa.schema([*(source.field(name) for name in self.columns), ROW_ID])


_CHECKPOINTS = (
    *("partition", "thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id"),
    *("source", "step", "ts", "run_id", "metadata", "versions", "stamp", "writer"),
)
# Not the branch and the last checkpoint: they move with the head, and with them every row would.
_MESSAGES = tuple(
    name for name in schema_of("messages").names if name not in ("branch", "last_checkpoint_id")
)
KINDS = (
    _Kind(
        "checkpoints",
        _CHECKPOINTS,
        ("thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "stamp", "writer"),
    ),
    _Kind("messages", _MESSAGES, _MESSAGES),
)


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open an Iceberg catalog, as pyiceberg's configuration and the properties describe it.

    Raises:
        UsageError: pyiceberg is not installed, or does not know the catalog.
    """
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        raise UsageError(
            'publishing needs pyiceberg: pip install "langgraph-checkpoint-logstore[iceberg]"'
        ) from error
    try:
        return load_catalog(name, **properties)
    except Exception as error:  # pyiceberg's errors have no base of their own
        raise UsageError(
            f"the Iceberg catalog {name!r} cannot be opened: {error}. Describe it in "
            "~/.pyiceberg.yaml, or with --property uri=… --property warehouse=…"
        ) from error


def publish(
    snapshot: StoreSnapshot,
    catalog: Catalog,
    table: str,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Published]:
    """Bring the tables `<table>_checkpoints` and `<table>_messages` to what a snapshot shows.

    Args:
        snapshot: the store.
        catalog: where the tables are, or are made.
        table: the namespace and the beginning of the tables' names, as `agents.airline`.
        tell: is told what is being done.

    Raises:
        UsageError: the table's name has no namespace.
        SnapshotExpiredError: a run is gone; repeat with a fresh snapshot.
    """
    namespace, dot, _ = table.rpartition(".")
    if not dot or not namespace:
        raise UsageError(f"a table is named with its namespace, as agents.{table}, not {table!r}")
    catalog.create_namespace_if_not_exists(namespace)
    return [_publish(snapshot, kind, _table(catalog, kind, table), tell) for kind in KINDS]


def _table(catalog: Catalog, kind: _Kind, prefix: str) -> Table:
    name = f"{prefix}_{kind.name}"
    if catalog.table_exists(name):
        return catalog.load_table(name)
    table = catalog.create_table(name, schema=kind.schema)
    with table.update_spec() as spec:
        spec.add_identity("partition")
    return table


def _publish(
    snapshot: StoreSnapshot, kind: _Kind, table: Table, tell: Callable[[str], None]
) -> Published:
    name = ".".join(table.name())
    appended = deleted = changed = 0
    for partition in snapshot.partitions:
        tell(f"{name}: partition {partition.number}")
        state, known = _state_of(partition), f"logstore.partition.{partition.number:04d}"
        if table.properties.get(known) == state:
            continue
        update = _Update(snapshot, kind, table, partition.number)
        with table.transaction() as transaction:
            update.apply(transaction)
            transaction.set_properties({known: state})
        appended, deleted, changed = (
            appended + update.appended,
            deleted + update.deleted,
            changed + 1,
        )
    return Published(name, appended, deleted, changed)


def _state_of(partition: PinnedPartition) -> str:
    """What the partition's rows follow from: its runs and what is not in them yet."""
    runs = sorted(partition.runs)
    tail = sorted(partition.listing.arrived.keys() - partition.manifest.merged.keys())
    return blake2b(json.dumps([runs, tail]).encode(), digest_size=16).hexdigest()


class _Update:
    """The difference between a table and a snapshot in one partition."""

    def __init__(self, snapshot: StoreSnapshot, kind: _Kind, table: Table, partition: int) -> None:
        self._snapshot = snapshot
        self._kind = kind
        self._partition = partition
        self._there = self._published(table)
        self.appended = self.deleted = 0

    def apply(self, transaction: Transaction) -> None:
        """Append what is missing, then delete what is gone."""
        shown: list[pa.Array] = []
        for rows in self._rows():
            shown.append(rows[ROW_ID.name].combine_chunks())
            fresh = rows.filter(pc.invert(pc.is_in(rows[ROW_ID.name], self._there)))
            if fresh.num_rows:
                transaction.append(fresh)
                self.appended += fresh.num_rows
        now = pa.concat_arrays([pa.array([], ROW_ID.type), *shown])
        gone = self._there.filter(pc.invert(pc.is_in(self._there, now))).to_pylist()
        self._delete(transaction, gone)

    def _published(self, table: Table) -> pa.Array:
        here = f"partition == {self._partition}"
        found = table.scan(row_filter=here, selected_fields=(ROW_ID.name,)).to_arrow()
        return found[ROW_ID.name].combine_chunks()

    def _rows(self) -> Iterator[pa.Table]:
        """The rows that the table is to have, in chunks."""
        kind = self._kind
        reader = self._snapshot.scan(kind.name, kind.columns, partition=self._partition)
        waiting: list[pa.RecordBatch] = []
        for batch in reader:
            waiting.append(batch)
            if sum(b.num_rows for b in waiting) >= _CHUNK_ROWS:
                yield self._identified(pa.Table.from_batches(waiting))
                waiting = []
        if waiting:
            yield self._identified(pa.Table.from_batches(waiting))

    def _identified(self, rows: pa.Table) -> pa.Table:
        columns = (rows[name].to_pylist() for name in self._kind.identity)
        ids = [_digest(values) for values in zip(*columns, strict=True)]
        return rows.append_column(ROW_ID, pa.array(ids, ROW_ID.type))

    def _delete(self, transaction: Transaction, gone: Sequence[int]) -> None:
        from pyiceberg.expressions import And, EqualTo, In

        for start in range(0, len(gone), _DELETED_AT_ONCE):
            some = gone[start : start + _DELETED_AT_ONCE]
            transaction.delete(And(EqualTo("partition", self._partition), In(ROW_ID.name, some)))
            self.deleted += len(some)


def _digest(values: Sequence[Any]) -> int:
    text = json.dumps(values, default=str, separators=(",", ":"))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)
