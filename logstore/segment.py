"""Records to Parquet and back: the small segments of the log, and tables of records.

A segment is written for latency: no dictionaries, no statistics, no Arrow schema, which
would cost more than the records themselves. Runs, which readers prune, are written by the
compactor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from logstore.errors import CorruptObjectError, FormatVersionError
from logstore.keys import SegmentName
from logstore.records import FORMAT_VERSION, SCHEMA, Record
from logstore.seal import check_whole, sealed

SEGMENT_SCHEMA = SCHEMA.remove(SCHEMA.get_field_index("arrived"))
_META = "logstore"
_TIME_COLUMNS = ("ts", "arrived")


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment as it was read."""

    name: SegmentName
    table: pa.Table
    """Its records, without `arrived`."""
    builds_on: Mapping[str, Sequence[str]]
    """For each thread: the keys of the segments that its records here build on."""
    _rows: dict[str, list[Record]] = field(default_factory=dict, repr=False)

    def records(self, thread_id: str, arrived: int) -> list[Record]:
        """The thread's records, with the arrival that the listing gave."""
        rows = self._rows.get(thread_id)
        if rows is None:
            mine = self.table.filter(pc.equal(self.table["thread_id"], thread_id))
            rows = self._rows[thread_id] = table_to_records(mine)
        return [record._replace(arrived=arrived) for record in rows]


def encode_segment(
    name: SegmentName, records: Sequence[Record], builds_on: Mapping[str, Sequence[str]]
) -> bytes:
    """Write records, in arrival order, as the body of a segment."""
    table = records_to_table(records, SEGMENT_SCHEMA)
    meta = {
        "writer": name.writer,
        "seq": name.seq,
        "builds_on": {thread: list(keys) for thread, keys in builds_on.items() if keys},
    }
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        SEGMENT_SCHEMA,
        compression="zstd",
        compression_level=1,
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
        write_page_checksum=True,
        data_page_size=1 << 20,
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(parquet_metadata(meta))
    return sealed(sink.getvalue().to_pybytes())


def decode_segment(key: str, data: bytes) -> Segment:
    """Read a segment's body.

    Raises:
        CorruptObjectError: it is truncated, damaged, or not the segment that its key names.
        FormatVersionError: a newer version of logstore wrote it.
    """
    name = SegmentName.parse(key)
    check_whole(key, data)
    table, meta = read_parquet(key, lambda: pq.ParquetFile(pa.BufferReader(data), **_SEGMENT_READ))
    if meta.get("writer") != name.writer or meta.get("seq") != name.seq:
        raise CorruptObjectError(
            f"segment {key} holds the records of writer {meta.get('writer')} at position "
            f"{meta.get('seq')}; its name says otherwise. It was renamed or overwritten; "
            "restore it from a copy of the bucket"
        )
    return Segment(name, cast_table(table, SEGMENT_SCHEMA), meta.get("builds_on", {}))


PARQUET_READ: dict[str, Any] = {"page_checksum_verification": True}
_SEGMENT_READ = {**PARQUET_READ, "pre_buffer": False}


def read_parquet(
    key: str, open_file: Callable[[], pq.ParquetFile]
) -> tuple[pa.Table, dict[str, Any]]:
    """Read a whole Parquet object and what logstore wrote into its metadata.

    Raises:
        CorruptObjectError: it is not readable as Parquet.
        FormatVersionError: a newer version of logstore wrote it.
    """
    try:
        file = open_file()
        meta = parquet_meta(key, file)
        return file.read(use_threads=False), meta
    except (pa.ArrowException, OSError, ValueError) as error:
        raise corrupt_parquet(key, error) from error


def parquet_meta(key: str, file: pq.ParquetFile) -> dict[str, Any]:
    """What logstore wrote into a Parquet object's metadata.

    Raises:
        CorruptObjectError: logstore did not write it.
        FormatVersionError: a newer version of logstore wrote it.
    """
    raw = (file.metadata.metadata or {}).get(_META.encode())
    if raw is None:
        raise CorruptObjectError(
            f"{key} is Parquet but not written by logstore; move foreign objects out of the "
            "store's prefix"
        )
    meta: dict[str, Any] = json.loads(raw)
    if meta["format"] > FORMAT_VERSION:
        raise FormatVersionError(
            f"{key} has format version {meta['format']}, this logstore reads up to "
            f"{FORMAT_VERSION}; upgrade langgraph-checkpoint-logstore"
        )
    return meta


def parquet_metadata(meta: Mapping[str, Any]) -> dict[str, str]:
    """The key-value metadata of a Parquet object, as `parquet_meta` reads it."""
    return {_META: json.dumps({"format": FORMAT_VERSION, **meta}, separators=(",", ":"))}


def corrupt_parquet(key: str, error: Exception) -> CorruptObjectError:
    """The error for an object that is not readable as Parquet."""
    return CorruptObjectError(
        f"{key} cannot be read as Parquet ({error}); it is truncated or damaged. "
        "Nothing was skipped: restore the object from a version or copy of the bucket"
    )


def records_to_table(records: Sequence[Record], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Records as an Arrow table of the given columns."""
    columns = dict(zip(Record._fields, zip(*records, strict=True), strict=True)) if records else {}
    arrays = [
        _time_array(columns.get(column.name, ()), column)
        if column.name in _TIME_COLUMNS
        else pa.array(columns.get(column.name, ()), column.type)
        for column in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _time_array(values: Sequence[int | None], field: pa.Field) -> pa.Array:
    return pa.array(values, pa.int64()).cast(field.type)


def cast_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly the schema's columns; one it lacks is filled with nulls."""
    if table.schema.equals(schema):
        return table
    arrays = []
    for column in schema:
        if column.name in table.column_names:
            arrays.append(table[column.name].cast(column.type))
        else:
            arrays.append(pa.nulls(table.num_rows, column.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def table_to_records(table: pa.Table) -> list[Record]:
    """The rows of a table of records; columns that it lacks keep their defaults."""
    columns = []
    names = [name for name in Record._fields if name in table.column_names]
    for name in names:
        column = table[name]
        if name in _TIME_COLUMNS:
            column = column.cast(pa.int64())
        columns.append(column.to_pylist())
    if names == list(Record._fields):
        return [Record(*row) for row in zip(*columns, strict=True)]
    return [Record(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def with_arrival(table: pa.Table, arrived: int) -> pa.Table:
    """A segment's table with the column that only the store can tell."""
    kind = SCHEMA.field("arrived").type
    column = pa.repeat(pa.scalar(arrived, pa.int64()).cast(kind), table.num_rows)
    return table.append_column(SCHEMA.field("arrived"), column).select(SCHEMA.names)
