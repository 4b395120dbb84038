"""A DuckDB connection with a snapshot's tables as views.

DuckDB reads the runs and the kept tables itself, from the disk or through a registered file
system, and joins the deletion vectors. It is not allowed to load an extension: none is needed, and
none can be downloaded by a query.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from logstore.analytics.files import RunFiles
from logstore.analytics.pin import PinnedPartition
from logstore.analytics.spool import in_spool
from logstore.analytics.streams import PushedDown, SpooledTable
from logstore.analytics.tables import READ, RECORDS, STORED
from logstore.errors import QueryError, UsageError

if TYPE_CHECKING:
    import duckdb

MEMORY_LIMIT = "256MB"
"""DuckDB's own; above it, it spills to disk. Arrow and Python need the rest of 512 MB."""

_BATCH_ROWS = 8192
_BATCH_BYTES = 4 << 20
_FETCHED_BYTES = 8 << 20
"""DuckDB hands over rows by number, whatever their size, and a value may have megabytes: so many
bytes at once cost several times as much memory."""
_UNION = " UNION ALL "
_PARTS = "parts"
"""The schema of what the views are made of: SHOW TABLES lists those of `main`."""
_RUN_FILES = "hive_partitioning = true, hive_types = {'partition': INTEGER}"
_PLAIN_FILES = "hive_partitioning = false"
"""Kept tables have the partition as a column."""
_THREADS = """
CREATE VIEW threads AS
SELECT partition, thread_id, count(DISTINCT checkpoint_ns) AS namespaces,
       count(*) AS checkpoints, min(ts) AS first_ts, max(ts) AS last_ts,
       max_by(checkpoint_id, (checkpoint_ns = '', checkpoint_id)) AS head,
       max_by(step, (checkpoint_ns = '', checkpoint_id)) AS step
FROM checkpoints GROUP BY partition, thread_id
"""
"""The head is the root graph's; a thread that has none shows its newest checkpoint."""


def connect(
    partitions: Sequence[PinnedPartition],
    files: RunFiles,
    read: Mapping[str, SpooledTable],
    spool: Path,
    *,
    kept: bool,
) -> duckdb.DuckDBPyConnection:
    """Open a connection with a view for each table.

    Args:
        partitions: the pinned partitions.
        files: where their runs are.
        read: the rows of the tables that are made by reading threads.
        spool: a directory for what does not fit into memory.
        kept: whether the tables are also made of what the compactor keeps.

    Raises:
        UsageError: DuckDB is not installed.
    """
    connection = _duckdb().connect(
        config={
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "memory_limit": MEMORY_LIMIT,
            "temp_directory": str(spool / "duckdb"),
            "preserve_insertion_order": "false",
        }
    )
    try:
        _create_views(connection, partitions, files, read, kept=kept)
    except BaseException:
        connection.close()
        raise
    return connection


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise UsageError(
            'SQL needs DuckDB: pip install "langgraph-checkpoint-logstore[analytics]"'
        ) from error
    return duckdb


def _create_views(
    connection: duckdb.DuckDBPyConnection,
    partitions: Sequence[PinnedPartition],
    files: RunFiles,
    read: Mapping[str, SpooledTable],
    *,
    kept: bool,
) -> None:
    connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
    if files.filesystem is not None:
        connection.register_filesystem(files.filesystem)
    connection.execute(f"CREATE SCHEMA {_PARTS}")
    connection.execute(f"CREATE VIEW records AS {_records(connection, partitions, files)}")
    for name, (kind, schema) in STORED.items():
        columns = ", ".join(schema.names)
        connection.execute(
            f"CREATE VIEW {name} AS SELECT {columns} FROM records WHERE kind = '{kind}'"
        )
    connection.execute(_THREADS)
    for name in READ:
        rows = _part(connection, f"{name}_decoded", PushedDown(read[name]))
        branches = [f"SELECT * FROM {rows}"]
        if kept:
            branches += _kept(connection, partitions, files, name)
        connection.execute(f"CREATE VIEW {name} AS {_UNION.join(branches)}")


@contextmanager
def explaining(explain: Callable[[], None]) -> Iterator[None]:
    """Turn an error of DuckDB into what is behind it.

    Args:
        explain: raises what is behind an error, if that is not the query.

    Raises:
        QueryError: the query is wrong.
    """
    try:
        yield
    except (_duckdb().Error, pa.ArrowException, OSError) as error:
        explain()
        raise QueryError(
            f"DuckDB cannot run the query: {_said(error)} SHOW TABLES lists the tables, "
            "DESCRIBE messages the columns of one"
        ) from error


def _said(error: Exception) -> str:
    """What DuckDB says, as a sentence; the line that points into the query is left out."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line.strip("^") and not re.match(r"LINE \d+:", line)]
    text = " ".join(told)
    return text if text.endswith((".", "!", "?")) else f"{text}."


def stream_query(
    connection: duckdb.DuckDBPyConnection,
    query: str,
    explain: Callable[[], None],
    *,
    largest: int,
) -> pa.RecordBatchReader:
    """Run a query and stream its result.

    Args:
        connection: is closed at the end of the stream.
        query: one statement of SQL.
        explain: raises what is behind an error, if that is not the query.
        largest: bytes of the largest value that a row may have.

    Raises:
        QueryError: the query is wrong.
    """
    with explaining(explain):
        if (count := len(connection.extract_statements(query))) != 1:
            raise QueryError(
                f"one statement is expected, and there are {count}; ask them one after the other"
                if count
                else "there is no statement; a query begins with SELECT"
            )
        relation = connection.sql(query)
        if relation is None:
            raise QueryError("the statement gives no rows; a query that does begins with SELECT")
        rows = max(1, min(_BATCH_ROWS, _FETCHED_BYTES // max(1, largest)))
        reader = relation.to_arrow_reader(rows)

    def batches() -> Iterator[pa.RecordBatch]:
        with explaining(explain):
            yield from _joined(reader)
        connection.close()

    return pa.RecordBatchReader.from_batches(reader.schema, batches())


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Small batches as larger ones, but not of more than some bytes."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield pa.concat_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_batches(waiting)


def _part(connection: Any, name: str, rows: pa.Table | PushedDown) -> str:
    """Make rows of Arrow a part that views can be made of; its name in SQL."""
    connection.execute(f"USE {_PARTS}")
    connection.from_arrow(rows).create_view(name)
    connection.execute("USE main")
    return f"{_PARTS}.{name}"


def _records(connection: Any, partitions: Sequence[PinnedPartition], files: RunFiles) -> str:
    """A query for all visible records."""
    found: dict[tuple[bool, bool], list[str]] = defaultdict(list)
    for partition in partitions:
        with_hidden = {source for source, _ in partition.hidden}
        for number, key in enumerate(partition.files):
            found[(number in with_hidden, in_spool(key))].append(files.url(key))
        files.serve(partition.boundaries)
        for file in partition.boundaries:
            found[(False, True)].append(files.url(file.key))
    columns = ", ".join(RECORDS.names)
    nothing = _part(connection, "no_records", RECORDS.empty_table())
    hidden = _part(connection, "hidden_rows", _hidden_rows(partitions, files))
    branches = [f"SELECT {columns} FROM {nothing}"]
    for (dirty, _), urls in found.items():
        if not dirty:
            branches.append(f"SELECT {columns} FROM {_parquet(urls, _RUN_FILES)}")
            continue
        rows = _parquet(urls, f"{_RUN_FILES}, file_row_number = true, filename = 'file'")
        branches.append(
            f"SELECT {columns} FROM {rows} AS run ANTI JOIN {hidden} AS hidden "
            "ON run.file = hidden.file AND run.file_row_number = hidden.row"
        )
    return _UNION.join(branches)


def _kept(
    connection: Any, partitions: Sequence[PinnedPartition], files: RunFiles, name: str
) -> Iterator[str]:
    """Queries for the rows of a table that the compactor keeps."""
    found = [rows for partition in partitions for rows in partition.kept.rows(name)]
    clean = [files.url(rows.file.key) for rows in found if not len(rows.superseded)]
    mixed = {files.url(rows.file.key): rows.superseded for rows in found if len(rows.superseded)}
    columns = ", ".join(READ[name].names)
    if clean:
        yield f"SELECT {columns} FROM {_parquet(clean, _PLAIN_FILES)}"
    if mixed:
        superseded = _part(connection, f"{name}_superseded", _superseded(mixed))
        rows = _parquet(list(mixed), f"{_PLAIN_FILES}, filename = 'file'")
        yield (
            f"SELECT {columns} FROM {rows} AS kept ANTI JOIN {superseded} AS superseded "
            "ON kept.file = superseded.file AND kept.thread_id = superseded.thread"
        )


def _superseded(threads: Mapping[str, pa.Array]) -> pa.Table:
    """Threads in kept files of which another file, or the tail, tells."""
    names = [pa.repeat(pa.scalar(url), len(found)) for url, found in threads.items()]
    found = pa.concat_arrays(list(threads.values()))
    return pa.table({"file": pa.concat_arrays(names), "thread": found})


def _parquet(paths: Sequence[str], options: str) -> str:
    quoted = ", ".join("'" + _literal(path) + "'" for path in paths)
    return f"read_parquet([{quoted}], {options})"


def _literal(path: str) -> str:
    """A path of which nothing is a pattern or ends the string."""
    return re.sub(r"([*?\[])", r"[\1]", path).replace("'", "''")


def _hidden_rows(partitions: Sequence[PinnedPartition], files: RunFiles) -> pa.Table:
    """The deletion vectors, with rows counted within the file."""
    names: list[str] = []
    places: list[int] = []
    for partition in partitions:
        keys = list(partition.files)
        for (source, group), rows in partition.hidden.items():
            first = partition.sources[source].position(group)
            places.extend(first + row for row in rows.to_pylist())
            names.extend([files.url(keys[source])] * len(rows))
    return pa.table({"file": pa.array(names, pa.string()), "row": pa.array(places, pa.int64())})
