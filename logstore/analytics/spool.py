"""The tail of a partition as sorted files on this machine's disk, which are read as runs are.

The log may lose a segment with the next compaction, and a tail may be larger than memory. So its
records are sorted a part at a time, and each part is written as a file that has the form of a run.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from logstore.errors import ObjectNotFoundError
from logstore.manifest import RunEntry
from logstore.memory import return_freed
from logstore.objects.base import ListPage, ObjectData, ObjectStore, Stored
from logstore.records import SCHEMA
from logstore.seal import sealed
from logstore.segment import SEGMENT_SCHEMA, Segment, cast_table, parquet_metadata, with_arrival

_PREFIX = "tail/"
_FILE_BYTES = 16 << 20
"""A part of the tail, in memory."""
_GROUP_BYTES = 1 << 20


class TailSpool:
    """Takes the segments of a partition's tail, and gives files of their records."""

    def __init__(self, folder: Path, partition: int) -> None:
        """Write below `folder`."""
        self._folder = folder
        self._prefix = f"{_PREFIX}partition={partition:04d}/{secrets.token_hex(4)}"
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._files: list[RunEntry] = []

    def add(self, segment: Segment, arrived: int) -> Segment:
        """Take a segment's records; what is left to keep of it has none."""
        self.take(cast_table(with_arrival(segment.table, arrived), SCHEMA))
        return replace(segment, table=SEGMENT_SCHEMA.empty_table())

    def take(self, table: pa.Table) -> None:
        """Take records."""
        self._waiting.append(table)
        self._waiting_bytes += table.nbytes
        if self._waiting_bytes >= _FILE_BYTES:
            self._write()

    def close(self) -> tuple[RunEntry, ...]:
        """Write what is left; all files."""
        self._write()
        return tuple(self._files)

    def _write(self) -> None:
        if not self._waiting:
            return
        table = pa.concat_tables(self._waiting).sort_by([("thread_id", "ascending")])
        rows = max(1, table.num_rows * _GROUP_BYTES // max(_GROUP_BYTES, self._waiting_bytes))
        self._waiting, self._waiting_bytes = [], 0
        if not table.num_rows:
            return
        body = _body_of(table, rows)
        key = f"{self._prefix}-{len(self._files):04d}.parquet"
        path = self._folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        bounds = pc.min_max(table["thread_id"])
        first, last = bounds["min"].as_py(), bounds["max"].as_py()
        self._files.append(RunEntry(key, 0, table.num_rows, len(body), first, last, 0))
        return_freed()


def _body_of(table: pa.Table, rows: int) -> bytes:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, SCHEMA, compression="zstd", compression_level=1) as writer:
        writer.write_table(table, row_group_size=rows)
        writer.add_key_value_metadata(parquet_metadata({}))
    return sealed(sink.getvalue())


def in_spool(key: str) -> bool:
    """Whether a key names a file of a spooled tail."""
    return key.startswith(_PREFIX)


class SpooledObjects(ObjectStore):
    """An object store, for reading, with the spooled tails beside its own objects."""

    def __init__(self, objects: ObjectStore, folder: Path) -> None:
        """Read `objects`, and the tails below `folder`."""
        self.uri = objects.uri
        self._objects = objects
        self._folder = folder

    def get(self, key: str) -> ObjectData:
        """See `ObjectStore.get`."""
        return self._objects.get(key)

    def get_if_changed(self, key: str, etag: str) -> ObjectData | None:
        """See `ObjectStore.get_if_changed`."""
        return self._objects.get_if_changed(key, etag)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""
        if not in_spool(key):
            return self._objects.get_range(key, start, length)
        try:
            with (self._folder / key).open("rb") as file:
                file.seek(start)
                return file.read(length)
        except FileNotFoundError as error:
            raise ObjectNotFoundError(key) from error

    def list(self, prefix: str) -> Iterator[ListPage]:
        """See `ObjectStore.list`; tails are not listed."""
        return self._objects.list(prefix)

    def put_if_absent(self, key: str, data: bytes) -> Stored:
        """See `ObjectStore.put_if_absent`."""
        return self._objects.put_if_absent(key, data)

    def compare_and_swap(self, key: str, data: bytes, expected: str | None) -> Stored:
        """See `ObjectStore.compare_and_swap`."""
        return self._objects.compare_and_swap(key, data, expected)

    def delete(self, keys: Sequence[str]) -> None:
        """See `ObjectStore.delete`."""
        self._objects.delete(keys)

    def close(self) -> None:
        """See `ObjectStore.close`."""
        self._objects.close()
