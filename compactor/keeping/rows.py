"""Making the rows of threads for the kept tables: as readers of the next commit would."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from compactor.keeping.files import TableTarget, TableWriter
from compactor.keeping.thread import ThreadRows
from logstore.analytics.decoded import Reading, Row, rows_of
from logstore.analytics.kept import INDEX, INDEX_SCHEMA, schema_of_file
from logstore.analytics.pin import PinnedPartition
from logstore.analytics.sources import aligned
from logstore.analytics.visibility import PLAIN_COLUMNS, contested_threads
from logstore.errors import FormatError, ObjectNotFoundError, ReadError
from logstore.manifest import KEPT, RunEntry
from logstore.reader import ThreadRead
from logstore.tail import StartAgain

logger = logging.getLogger(__name__)
LONG_THREAD = 512
"""The rows of a thread with fewer records are made anew whenever it changes; those of a longer
one when it has grown by an eighth, so that all of its rows ever made are some times its length."""
_THREADS_AT_ONCE = 4_096
_FLUSH_ROWS = 4_096
_FLUSH_BYTES = 4 << 20


@dataclass
class _Census:
    """What the records of some threads tell without being decoded."""

    records: dict[str, int] = field(default_factory=dict)
    contested: set[str] = field(default_factory=set)


class RowMaker:
    """Writes the rows of threads, and the index that tells of them."""

    def __init__(
        self, partition: PinnedPartition, target: TableTarget, keep: Collection[str]
    ) -> None:
        """Make rows as of a manifest that is about to be committed.

        Args:
            partition: pinned at that manifest, without a tail.
            target: where the files go.
            keep: the tables to make.
        """
        self._partition = partition
        self._folder = target.folder
        self._keep = tuple(name for name in KEPT if name in keep)
        self._rows = {name: _Rows(target.writer(name), name) for name in self._keep}
        self._index = target.writer(INDEX)
        self.index = INDEX_SCHEMA.empty_table()
        """The index so far."""
        self.threads = 0
        """How many threads' rows were made."""

    def run(self, threads: pa.Array, known: pa.Table) -> dict[str, tuple[RunEntry, ...]]:
        """Make the rows of threads, or leave them to readers if that is not worth it.

        Args:
            threads: their names, ascending.
            known: what is known of threads so far.

        Raises:
            SnapshotExpiredError: a run is gone.
        """
        for start in range(0, len(threads), _THREADS_AT_ONCE):
            some = threads.slice(start, _THREADS_AT_ONCE)
            before = known.filter(pc.is_in(known["thread_id"], some))
            self._some(some, {row["thread_id"]: row for row in before.to_pylist()})
        files = {name: rows.close() for name, rows in self._rows.items()}
        return {INDEX: self._index.close(), **files}

    def _some(self, threads: pa.Array, known: Mapping[str, Mapping[str, Any]]) -> None:
        census = self._census(threads)
        chosen = []
        found: dict[str, Row] = {}
        for thread_id in threads.to_pylist():
            records = census.records.get(thread_id, 0)
            before = known.get(thread_id, {}).get("records", 0)
            row: Row = {"thread_id": thread_id, "plain": thread_id not in census.contested}
            found[thread_id] = row
            if not records or _is_worth_it(records, before):
                row.update(records=records, **dict.fromkeys(self._keep, True))
                chosen += [thread_id] if records else []
            else:
                row["records"] = before
        for thread_id in self._make(pa.array(chosen, pa.string())):
            found[thread_id].update(dict.fromkeys(self._keep, False))
        rows = [{**dict.fromkeys(KEPT, False), **row} for row in found.values()]
        table = pa.Table.from_pylist(rows, INDEX_SCHEMA)
        self.index = pa.concat_tables([self.index, table])
        self._index.add(table)

    def _census(self, threads: pa.Array) -> _Census:
        census = _Census()
        for table in aligned(self._partition.sources, PLAIN_COLUMNS, threads):
            counted = pc.value_counts(table["thread_id"])
            names, numbers = counted.field("values"), counted.field("counts")
            census.records.update(zip(names.to_pylist(), numbers.to_pylist(), strict=True))
            census.contested.update(contested_threads(table))
        return census

    def _make(self, threads: pa.Array) -> Iterator[str]:
        """Write the rows of threads; gives those whose rows could not be made."""
        if not len(threads):
            return
        for read in self._partition.reads(threads):
            made = {name: ThreadRows(schema_of_file(name), self._folder) for name in self._keep}
            try:
                self._decode(read, made)
            except (FormatError, ReadError, StartAgain, ObjectNotFoundError) as error:
                # Readers will meet the same, and tell whoever asks for this thread.
                logger.warning("the rows of thread %s: %s", read.view.thread_id, error)
                for rows in made.values():
                    rows.discard()
                yield read.view.thread_id
                continue
            self.threads += 1
            for name, rows in made.items():
                self._rows[name].add(rows)

    def _decode(self, read: ThreadRead, made: Mapping[str, ThreadRows]) -> None:
        partition = self._partition
        for name, row in rows_of(self._keep, partition.number, read, partition.store, Reading()):
            made[name].add(row)


def _is_worth_it(records: int, before: int) -> bool:
    """Whether to make the rows of a thread anew.

    Args:
        records: how many it has.
        before: how many it had when its rows were last made.
    """
    return records < LONG_THREAD or records <= before or 8 * records >= 9 * before


class _Rows:
    """Collects rows, and writes many at a time."""

    def __init__(self, writer: TableWriter, name: str) -> None:
        self._writer = writer
        self._schema = schema_of_file(name)
        self._rows: list[Row] = []
        self._bytes = 0

    def add(self, thread: ThreadRows) -> None:
        for table in thread.spilled():
            self._flush()
            self._writer.add(table)
        self._rows += thread.rows
        self._bytes += thread.bytes
        if len(self._rows) >= _FLUSH_ROWS or self._bytes >= _FLUSH_BYTES:
            self._flush()

    def close(self) -> tuple[RunEntry, ...]:
        self._flush()
        return self._writer.close()

    def _flush(self) -> None:
        self._writer.add(pa.Table.from_pylist(self._rows, self._schema))
        self._rows, self._bytes = [], 0
