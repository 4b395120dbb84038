"""Writing runs: sorted rows into Parquet, in row groups and objects of bounded size."""

from __future__ import annotations

import secrets
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from compactor.sorted_file import SortedFile
from logstore.keys import run_key
from logstore.lanes import store_once
from logstore.manifest import RunEntry
from logstore.objects.base import ObjectStore
from logstore.records import SCHEMA, Encoding

ROW_GROUP_BYTES = 4 << 20
"""No column of a row group is larger, unless a single value is."""
ROW_GROUP_ROWS = 50_000
_PAGE_BYTES = ROW_GROUP_BYTES
"""A column of a row group is one page, so that neighbours are compressed together."""
_COMPRESSION_LEVEL = 9
_ID_LEVEL = 1
"""For columns of random digits: in these a search for longer matches finds worse ones."""
_ID_COLUMNS = ("checkpoint_id", "parent_checkpoint_id", "task_id", "version")
_SIZED_COLUMNS = ("value", "metadata_value", "metadata", "versions", "cover", "dictionary")
"""The columns whose values may be of any length."""
_DICTIONARY_COLUMNS = [
    "thread_id",
    "checkpoint_ns",
    "checkpoint_id",
    "parent_checkpoint_id",
    "kind",
    "channel",
    "task_path",
    "type",
    "encoding",
    "metadata_type",
    "run_id",
    "source",
    "writer",
]
_LEVELS = {name: _ID_LEVEL if name in _ID_COLUMNS else _COMPRESSION_LEVEL for name in SCHEMA.names}


class RunWriter:
    """Writes one sorted sequence of rows as runs of a level.

    A run is written to a temporary file and stored when it is large enough, so that of many
    rows only a row group is in memory, and of a finished run its body.
    """

    def __init__(
        self,
        objects: ObjectStore,
        folder: Path,
        partition: int,
        level: int,
        generation: int,
        job: str,
        *,
        max_bytes: int | None,
        place: tuple[str, int] | None = None,
    ) -> None:
        """Begin.

        Args:
            objects: where the runs go.
            folder: for the temporary file.
            partition: the partition of the rows.
            level: the runs' level.
            generation: of the partition manifest that will list them.
            job: the job that writes them.
            max_bytes: a run is ended by the row group with which it reaches this size.
            place: the sequence that the rows belong to, and from which part of it on; a new
                one by default.
        """
        self._objects = objects
        self._folder = folder
        self._partition = partition
        self._level = level
        self._generation = generation
        self._job = job
        self._max_bytes = max_bytes
        self._sequence, self._part = place or (secrets.token_hex(8), 0)
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._file: SortedFile | None = None
        self._objects_named = 0
        self._runs: list[RunEntry] = []

    def add(self, table: pa.Table) -> None:
        """Write rows that follow those written before."""
        while table.num_rows:
            number = self._room(table)
            part, table = table.slice(0, number), table.slice(number)
            if number:
                self._pending.append(part)
                self._pending_rows += number
                self._pending_bytes += int(pc.sum(_row_bytes(part)).as_py())
            if table.num_rows:
                self._end_row_group()

    def close(self) -> list[RunEntry]:
        """Store what is left; the runs in the order of their rows."""
        self._end_row_group()
        self._end_run()
        return self._runs

    def _room(self, table: pa.Table) -> int:
        """How many rows still fit into the row group; a row too large for any comes alone."""
        ends = pc.add(pc.cumulative_sum(_row_bytes(table)), self._pending_bytes)
        number = int(pc.sum(pc.less_equal(ends, ROW_GROUP_BYTES)).as_py())
        if number == 0 and not self._pending:
            number = 1
        return min(number, ROW_GROUP_ROWS - self._pending_rows)

    def _end_row_group(self) -> None:
        if not self._pending:
            return
        group = pa.concat_tables(self._pending)
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        if self._file is None:
            self._file = self._begin_run()
        self._file.write(group)
        named = pc.equal(group["encoding"], Encoding.OBJECT.value)
        self._objects_named += int(pc.sum(named).as_py())
        if self._max_bytes is not None and self._file.size >= self._max_bytes:
            self._end_run()

    def _begin_run(self) -> SortedFile:
        self._objects_named = 0
        return SortedFile(
            self._folder,
            SCHEMA,
            "thread_id checkpoint_ns",
            compression_level=_LEVELS,
            use_dictionary=_DICTIONARY_COLUMNS,
            data_page_size=_PAGE_BYTES,
            write_batch_size=128,
        )

    def _end_run(self) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        body = file.close(
            {
                "job": self._job,
                "generation": self._generation,
                "sequence": self._sequence,
                "part": self._part,
            }
        )
        key = run_key(self._partition, self._level, secrets.token_hex(12))
        store_once(self._objects, key, body)
        self._runs.append(
            RunEntry(
                key=key,
                level=self._level,
                rows=file.rows,
                size=len(body),
                first_thread=file.first_thread,
                last_thread=file.last_thread,
                generation=self._generation,
                sequence=self._sequence,
                part=self._part,
                objects=self._objects_named,
            )
        )
        self._part += 1


def _row_bytes(table: pa.Table) -> pa.ChunkedArray:
    """The bytes of each row's values of any length."""
    sizes = pa.chunked_array([pa.repeat(pa.scalar(0, pa.int64()), table.num_rows)])
    for name in _SIZED_COLUMNS:
        length = pc.fill_null(pc.binary_length(table[name]), 0)
        sizes = pc.add(sizes, length.cast(pa.int64()))
    return sizes
