"""Reading runs: from the footer and its statistics to a few ranges.

A run is sorted by thread, namespace and checkpoint id, so that the statistics of its row
groups tell which of them can hold a thread. Values are not read with the rows; each row
remembers where its value lies.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from logstore.cache import ByteCache
from logstore.directory import DirectoryCache, ImmutableObjects
from logstore.errors import CorruptObjectError, ObjectNotFoundError
from logstore.keys import run_level
from logstore.manifest import RunEntry
from logstore.objects.base import ObjectStore
from logstore.records import SCHEMA, Encoding, Record, ValueRef
from logstore.seal import check_end, check_ranges, end_bytes
from logstore.segment import (
    PARQUET_READ,
    cast_table,
    corrupt_parquet,
    parquet_meta,
    table_to_records,
)
from logstore.tail import StartAgain

T = TypeVar("T")
_FOOTER_GUESS = 64 << 10
INDEX_COLUMNS = [name for name in SCHEMA.names if name != "value"]
INDEX_SCHEMA = SCHEMA.remove(SCHEMA.get_field_index("value"))
_VALUE_SCHEMA = pa.schema([SCHEMA.field("value")])


class _RangeFile(io.RawIOBase):
    """A run as a file whose reads are ranged GETs, the end of it read once."""

    def __init__(
        self, objects: ImmutableObjects, key: str, size: int, tail: bytes, ahead: int = 0
    ) -> None:
        self._objects = objects
        self._key = key
        self._size = size
        self._tail = tail
        self._ahead = ahead
        self._held = b""
        self._held_from = 0
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        length = self._size - self._at if size is None or size < 0 else size
        length = max(0, min(length, self._size - self._at))
        start = self._at - (self._size - len(self._tail))
        in_tail = start >= 0
        data = self._tail[start : start + length] if in_tail else self._read_range(length)
        self._at += len(data)
        return data

    def _read_range(self, length: int) -> bytes:
        """Read at the current place, and as far ahead as may be."""
        if length > self._ahead:
            return self._objects.get_range(self._key, self._at, length)
        start = self._at - self._held_from
        if not 0 <= start <= start + length <= len(self._held):
            self._held = self._objects.get_range(self._key, self._at, self._ahead)
            self._held_from, start = self._at, 0
        return self._held[start : start + length]


@dataclass(frozen=True)
class _OpenRun:
    metadata: Any
    tail: bytes


class RunReader:
    """Reads rows and values of runs, and keeps what it read under a byte budget."""

    def __init__(
        self, objects: ObjectStore, cache: ByteCache[Any], directory: DirectoryCache | None = None
    ) -> None:
        """Read through `objects` and `directory`."""
        self._objects = ImmutableObjects(objects, directory)
        self._cache = cache

    def rows(self, run: RunEntry, thread_id: str) -> list[Record]:
        """A thread's rows in a run, each with a `ValueRef` for its value.

        Raises:
            StartAgain: the run is gone; a newer partition manifest replaced it.
            CorruptObjectError: it cannot be read.
        """
        found: list[Record] = []
        for group in self._groups(run, thread_id):
            table = self._index(run, group)
            mask = pc.equal(table["thread_id"], thread_id)
            numbers = pc.indices_nonzero(mask).to_pylist()
            records = table_to_records(table.filter(mask))
            found.extend(
                record._replace(value=ValueRef(run.key, group, number))
                for record, number in zip(records, numbers, strict=True)
            )
        return found

    def describe(self, key: str, size: int) -> RunEntry:
        """What a manifest says of a run, read from the run itself.

        Args:
            key: the run.
            size: bytes of the object.

        Raises:
            StartAgain: the run is gone.
            CorruptObjectError: it is damaged, or no run.
        """
        entry = RunEntry(key, run_level(key), 0, size, "", "", 0)
        with self._file(entry) as file:
            meta = parquet_meta(key, file)
            rows = self._guard(key, partial(file.read, ["thread_id", "encoding"]))
        threads = rows["thread_id"]
        bounds = pc.min_max(threads)
        return replace(
            entry,
            rows=len(threads),
            first_thread=bounds["min"].as_py() or "",
            last_thread=bounds["max"].as_py() or "",
            generation=int(meta.get("generation", 0)),
            sequence=meta.get("sequence", ""),
            part=meta.get("part", 0),
            objects=pc.sum(pc.equal(rows["encoding"], Encoding.OBJECT.value)).as_py() or 0,
        )

    def columns(self, run: RunEntry, names: Sequence[str]) -> Iterable[pa.Table]:
        """Some columns of a whole run, a row group at a time."""
        with self._file(run) as file:
            for group in range(file.metadata.num_row_groups):
                yield self._guard(run.key, partial(file.read_row_group, group, list(names)))

    def group(self, run: RunEntry, group: int, names: Sequence[str]) -> pa.Table:
        """Some columns of one row group, kept nowhere.

        Raises:
            StartAgain: the run is gone.
            CorruptObjectError: it cannot be read.
        """
        return self._read_group(run, group, list(names))

    def group_batches(
        self, run: RunEntry, group: int, names: Sequence[str], rows: int
    ) -> Iterator[pa.Table]:
        """Some columns of one row group, at most so many rows at a time.

        Raises:
            StartAgain: the run is gone.
            CorruptObjectError: it cannot be read.
        """
        with self._file(run) as file:
            batches = file.iter_batches(rows, [group], list(names), use_threads=False)
            while (batch := self._guard(run.key, partial(next, batches, None))) is not None:
                yield pa.Table.from_batches([batch])

    def metadata(self, run: RunEntry) -> Any:
        """A run's Parquet metadata.

        Raises:
            StartAgain: the run is gone.
            CorruptObjectError: it cannot be read.
        """
        return self._open(run).metadata

    def bounds(self, run: RunEntry, group: int) -> tuple[str, str] | None:
        """The first and the last thread of a row group; None if its statistics do not tell."""
        column = SCHEMA.get_field_index("thread_id")
        statistics = self.metadata(run).row_group(group).column(column).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        return statistics.min, statistics.max

    def batches(self, run: RunEntry, max_bytes: int) -> Iterator[pa.Table]:
        """All rows of a run in their order, a few at a time.

        Args:
            run: the run.
            max_bytes: about the size of a table; a single larger row comes alone.

        Raises:
            StartAgain: the run is gone; a newer partition manifest replaced it.
            CorruptObjectError: it cannot be read.
        """
        with self._file(run, max_bytes) as file:
            for group in range(file.metadata.num_row_groups):
                of_group = file.metadata.row_group(group)
                rows = of_group.num_rows * max_bytes // max(1, of_group.total_byte_size)
                batches = file.iter_batches(max(1, rows), row_groups=[group], use_threads=False)
                while (batch := self._guard(run.key, partial(next, batches, None))) is not None:
                    yield cast_table(pa.Table.from_batches([batch]), SCHEMA)

    def values(
        self, runs: Mapping[str, RunEntry], refs: Iterable[ValueRef]
    ) -> dict[ValueRef, bytes | None]:
        """The values that refs point to.

        Raises:
            StartAgain: a run is gone.
        """
        found: dict[ValueRef, bytes | None] = {}
        for ref in refs:
            run = runs.get(ref.run_key)
            if run is None:
                raise StartAgain
            column = self._values(run, ref.row_group)
            found[ref] = column[ref.row].as_py()
        return found

    def _groups(self, run: RunEntry, thread_id: str) -> list[int]:
        groups = []
        for group in range(self.metadata(run).num_row_groups):
            bounds = self.bounds(run, group)
            if bounds is None or bounds[0] <= thread_id <= bounds[1]:
                groups.append(group)
        return groups

    def _open(self, run: RunEntry) -> _OpenRun:
        opened: _OpenRun = self._cache.get_or_load(
            ("footer", run.key), lambda: self._load_footer(run), lambda o: len(o.tail)
        )
        return opened

    def _load_footer(self, run: RunEntry) -> _OpenRun:
        try:
            tail = self._end_of(run, _FOOTER_GUESS)
            if (needed := end_bytes(tail)) > len(tail):
                tail = self._end_of(run, needed)
        except ObjectNotFoundError as error:
            raise StartAgain from error

        def read() -> _OpenRun:
            check_end(run.key, tail)
            file = pq.ParquetFile(_RangeFile(self._objects, run.key, run.size, tail))
            parquet_meta(run.key, file)
            return _OpenRun(file.metadata, tail)

        return self._guard(run.key, read)

    def _end_of(self, run: RunEntry, length: int) -> bytes:
        start = max(0, run.size - length)
        return self._objects.get_range(run.key, start, run.size - start)

    def check(self, run: RunEntry) -> None:
        """Read every byte of a run, and compare it with the run's seal.

        Raises:
            StartAgain: the run is gone.
            CorruptObjectError: it is damaged.
        """
        try:
            check_ranges(run.key, run.size, partial(self._objects.get_range, run.key))
        except ObjectNotFoundError as error:
            raise StartAgain from error

    def _file(self, run: RunEntry, ahead: int = 0) -> pq.ParquetFile:
        """A run as Parquet: whole columns in one request, or piece by piece, so far ahead."""
        opened = self._open(run)
        source = _RangeFile(self._objects, run.key, run.size, opened.tail, ahead)
        return pq.ParquetFile(
            source,
            metadata=opened.metadata,
            pre_buffer=not ahead,
            buffer_size=ahead,
            **PARQUET_READ,
        )

    def _read_group(self, run: RunEntry, group: int, columns: list[str]) -> pa.Table:
        return self._guard(run.key, lambda: self._file(run).read_row_group(group, columns))

    def _index(self, run: RunEntry, group: int) -> pa.Table:
        return self._cache.get_or_load(
            ("index", run.key, group),
            lambda: cast_table(self._read_group(run, group, INDEX_COLUMNS), INDEX_SCHEMA),
            lambda table: table.nbytes,
        )

    def _values(self, run: RunEntry, group: int) -> Any:
        return self._cache.get_or_load(
            ("values", run.key, group),
            lambda: cast_table(self._read_group(run, group, ["value"]), _VALUE_SCHEMA)[
                "value"
            ].combine_chunks(),
            lambda column: column.nbytes,
        )

    def _guard(self, key: str, read: Callable[[], T]) -> T:
        try:
            return read()
        except ObjectNotFoundError as error:
            raise StartAgain from error
        except (pa.ArrowException, OSError, ValueError) as error:
            self._objects.forget(key)
            raise corrupt_parquet(key, error) from error
        except CorruptObjectError:
            self._objects.forget(key)
            raise
