"""A consistent look at a whole store, for questions rather than for agents."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from logstore.analytics.decoded import Reading, Row, rows_of
from logstore.analytics.duck import connect, explaining, stream_query
from logstore.analytics.files import RunFiles
from logstore.analytics.pin import PinnedPartition, expired, expiring, pin
from logstore.analytics.scan import KeptScan, RecordScan
from logstore.analytics.spool import SpooledObjects
from logstore.analytics.streams import SpooledTable, batches_of
from logstore.analytics.tables import READ, RECORDS, STORED, schema_of
from logstore.encode import Target
from logstore.errors import InvalidOptionError, MissingDataError, ObjectNotFoundError
from logstore.keys import partition_of
from logstore.manifest import RunEntry
from logstore.objects import open_object_store
from logstore.reader import ThreadRead
from logstore.store import LogStore, StoreOptions

if TYPE_CHECKING:
    import duckdb

_CACHE_BYTES = 96 << 20
_NARROW = 4
"""A filter that leaves one of so many threads is narrow."""
_IO_THREADS = 2
"""Each has buffers of its own, which it keeps."""


def _ignore(_: int) -> None:
    """Tell nobody."""


class StoreSnapshot:
    """What a store held when it was opened: one manifest version a partition, and its tail.

    It does not change, whatever writers and compactors do. Compaction may delete the runs that
    it pins, after the store's long grace; what then needs one of them raises
    `SnapshotExpiredError`, and `refresh` gives a snapshot of the present.

    Everything is streamed, a thread's records without their values at a time. The tails, and what
    is needed again, are kept in a directory for temporary files until `close`.
    """

    def __init__(self, uri: str, **backend: Any) -> None:
        """Pin every partition of the store at a URI; `backend` is for `LogStore.open`.

        Raises:
            MissingDataError: there is no store, or a part of it was lost.
            CorruptObjectError: a manifest or a segment cannot be read.
        """
        self._backend = backend
        objects = open_object_store(uri, **backend)
        self._spool = Path(tempfile.mkdtemp(prefix="logstore-analytics-"))
        options = StoreOptions(cache_bytes=_CACHE_BYTES, io_threads=_IO_THREADS)
        self._store = LogStore(SpooledObjects(objects, self._spool), options)
        self._finalizer = weakref.finalize(self, shutil.rmtree, self._spool, ignore_errors=True)
        self._spooled: dict[tuple[str, Reading], SpooledTable] = {}
        try:
            settings = self._store.settings()
            if settings is None:
                raise MissingDataError(
                    f"there is no store at {self._store.uri}: it has no store.json. Check the URI"
                )
            self.partitions = tuple(
                pin(self._store, number, self._spool) for number in range(settings.partitions)
            )
        except BaseException:
            self.close()
            raise

    @property
    def uri(self) -> str:
        """Where the store is."""
        return self._store.uri

    def close(self) -> None:
        """Let go of connections and temporary files. Repeating it does nothing."""
        self._store.close()
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def refresh(self) -> StoreSnapshot:
        """A snapshot of the present, beside this one."""
        return StoreSnapshot(self.uri, **self._backend)

    def check(self) -> None:
        """Make sure that all that is pinned is still there.

        Raises:
            SnapshotExpiredError: a run is gone.
        """
        for key in self._pinned:
            try:
                self._store.objects.get_range(key, 0, 1)
            except ObjectNotFoundError as error:
                raise expired(self.uri, str(error)) from error

    @property
    def records(self) -> int:
        """How many records are pinned, those that do not show included."""
        return sum(file.rows for part in self.partitions for file in part.files.values())

    # -- Arrow ---------------------------------------------------------------------------

    def scan(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        *,
        thread_id: str | None = None,
        partition: int | None = None,
        reading: Reading | None = None,
        on_records: Callable[[int], None] = _ignore,
    ) -> pa.RecordBatchReader:
        """A table as a stream of record batches.

        Of stored records only the columns asked for are read, and no row group whose statistics
        exclude the filter. Tables that are made by reading threads decode every thread, unless
        one is named.

        Args:
            name: the table, see `logstore.analytics.tables.SCHEMAS`.
            columns: which columns, in which order; None for all.
            filter: which rows.
            thread_id: only this thread, which is much cheaper than a filter on it.
            partition: only this partition, likewise.
            reading: for messages and tool calls, which of them.
            on_records: is told, now and then, how many more records were read of `records`.

        Raises:
            InvalidOptionError: there is no such table or column.
            SnapshotExpiredError: while reading: a run is gone.
        """
        schema = schema_of(name)
        unknown = [column for column in columns or () if column not in schema.names]
        if unknown:
            raise InvalidOptionError(
                f"table {name} has no column {', '.join(map(repr, unknown))}; "
                f"it has {', '.join(schema.names)}"
            )
        chosen = schema if columns is None else pa.schema([schema.field(c) for c in columns])
        batches = self._batches(
            name,
            chosen.names,
            filter,
            self._chosen(thread_id, partition),
            thread_id,
            reading or Reading(),
            on_records,
        )
        return pa.RecordBatchReader.from_batches(chosen, batches)

    def _batches(
        self,
        name: str,
        columns: Sequence[str],
        filter: pc.Expression | None,
        partitions: Sequence[PinnedPartition],
        thread_id: str | None,
        reading: Reading,
        on_records: Callable[[int], None],
    ) -> Iterator[pa.RecordBatch]:
        if thread_id is not None and name not in READ:
            mine = pc.field("thread_id") == thread_id
            filter = mine if filter is None else filter & mine
        if name == "threads":
            yield from self._threads(columns, filter)
            return
        for partition in partitions:
            if name in STORED:
                of_kind = pc.field("kind") == STORED[name][0].value
                wanted = of_kind if filter is None else of_kind & filter
                scan = RecordScan(partition, self._files)
                yield from scan.batches(columns, wanted, on_records)
            else:
                if thread_id is None and reading == Reading():
                    kept = KeptScan(partition, self._files, name)
                    yield from kept.batches(columns, filter, on_records)
                made = self._made(name, partition, thread_id, reading, filter, on_records)
                for batch in batches_of(made, READ[name]):
                    table = pa.Table.from_batches([batch])
                    table = table if filter is None else table.filter(filter)
                    yield from table.select(list(columns)).to_batches()

    def _chosen(self, thread_id: str | None, partition: int | None) -> Sequence[PinnedPartition]:
        if thread_id is not None:
            partition = partition_of(Target.check_thread_id(thread_id), len(self.partitions))
        return self.partitions if partition is None else (self.partitions[partition],)

    def _threads(
        self, columns: Sequence[str], filter: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        table = self.sql("SELECT * FROM threads").read_all().cast(schema_of("threads"))
        table = table if filter is None else table.filter(filter)
        yield from table.select(list(columns)).to_batches()

    def _made(
        self,
        name: str,
        partition: PinnedPartition,
        thread_id: str | None,
        reading: Reading,
        filter: pc.Expression | None,
        on_records: Callable[[int], None],
    ) -> Iterator[Row]:
        """The rows of a thread, or of those whose rows are not kept and may match a filter."""
        with expiring(self.uri):
            for read in self._reads(name, partition, thread_id, reading, filter):
                for _, row in rows_of([name], partition.number, read, self._store, reading):
                    yield row
                on_records(len(read.view.records))

    def _reads(
        self,
        name: str,
        partition: PinnedPartition,
        thread_id: str | None,
        reading: Reading,
        filter: pc.Expression | None,
    ) -> Iterator[ThreadRead]:
        if thread_id is not None:
            yield partition.read(thread_id)
            return
        wanted = partition.kept.unkept(name) if reading == Reading() else None
        if filter is not None:
            matching = partition.spans.matching(name, filter)
            wanted = matching if wanted is None else matching.filter(pc.is_in(matching, wanted))
        if wanted is None or len(wanted):
            yield from partition.reads(wanted)

    def dataset(self, name: str) -> ds.Dataset:
        """A table of stored records as a `pyarrow.dataset.Dataset`, for engines that take one.

        Runs are read in place. The tail, and row groups in which something does not show, are
        copied into temporary files first.

        Raises:
            InvalidOptionError: the table is not one of stored records; `scan` has the others.
            SnapshotExpiredError: a run is gone.
        """
        if name not in STORED:
            raise InvalidOptionError(
                f"a dataset is one of {', '.join(STORED)}, not {name!r}; use scan({name!r})"
            )
        kind, schema = STORED[name]
        with expiring(self.uri):
            whole = [f for scan in self._scans for f in scan.fragments()]
        runs = ds.FileSystemDataset(whole, schema, ds.ParquetFileFormat(), self._files.arrow)
        rest = ds.dataset(self._rest, schema=schema, format="parquet")
        return ds.UnionDataset(schema, [runs, rest]).filter(pc.field("kind") == kind.value)

    @cached_property
    def _rest(self) -> str:
        """A file with the visible records that are not in whole row groups of runs."""
        path = self._spool / "rest.parquet"
        with expiring(self.uri), pq.ParquetWriter(path, RECORDS, compression="zstd") as writer:
            for scan in self._scans:
                for table in scan.rest(RECORDS.names):
                    writer.write_table(table)
        return str(path)

    # -- SQL -----------------------------------------------------------------------------

    def duckdb(self, reading: Reading | None = None) -> duckdb.DuckDBPyConnection:
        """A new DuckDB connection with a view for each table.

        If a run is deleted while it is open, queries on it fail with DuckDB's error; `sql`
        turns that into ours.

        Args:
            reading: which messages and tool calls the views show.

        Raises:
            UsageError: DuckDB is not installed.
            SnapshotExpiredError: a run is gone.
        """
        wanted = reading or Reading()
        read = {name: self._spooled_table(name, wanted) for name in READ}
        with explaining(self.check), expiring(self.uri):
            kept = wanted == Reading()
            return connect(self.partitions, self._files, read, self._spool, kept=kept)

    def sql(self, query: str, *, reading: Reading | None = None) -> pa.RecordBatchReader:
        """The result of a query over the views, as a stream of record batches.

        Raises:
            QueryError: the query is wrong.
            SnapshotExpiredError: a run is gone.
        """
        with expiring(self.uri):
            largest = max(partition.largest for partition in self.partitions)
        return stream_query(self.duckdb(reading), query, self._explain, largest=largest)

    def _explain(self) -> None:
        """Raise what is behind an error of DuckDB, if it is known.

        Raises:
            LogStoreError: threads could not be read, or a run is gone.
        """
        for table in self._spooled.values():
            if table.failure is not None:
                raise table.failure
        self.check()

    def _spooled_table(self, name: str, reading: Reading) -> SpooledTable:
        key = (name, reading)
        if key not in self._spooled:
            make = partial(self._unkept_batches, name, reading)
            is_narrow = partial(self._is_narrow, name)
            path = self._spool / f"{name}-{reading.name}.parquet"
            self._spooled[key] = SpooledTable(READ[name], make, is_narrow, path)
        return self._spooled[key]

    def _unkept_batches(
        self, name: str, reading: Reading, schema: pa.Schema, filter: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        """Some columns of the rows of threads whose rows are not kept."""
        for partition in self.partitions:
            made = self._made(name, partition, None, reading, filter, _ignore)
            yield from batches_of(made, schema)

    def _is_narrow(self, name: str, filter: pc.Expression) -> bool:
        """Whether a filter rules most threads out."""
        spans = [partition.spans for partition in self.partitions]
        threads = sum(len(one.threads) for one in spans)
        return _NARROW * sum(len(one.matching(name, filter)) for one in spans) <= threads

    # -- parts ---------------------------------------------------------------------------

    @cached_property
    def _pinned(self) -> dict[str, RunEntry]:
        """The runs, the files of the tails, and those of kept tables."""
        return {
            key: file
            for partition in self.partitions
            for files in (partition.files, partition.manifest.kept.files)
            for key, file in files.items()
        }

    @cached_property
    def _files(self) -> RunFiles:
        return RunFiles(self._store.objects, self._pinned, self._spool)

    @cached_property
    def _scans(self) -> tuple[RecordScan, ...]:
        return tuple(RecordScan(partition, self._files) for partition in self.partitions)
