"""A directory of Parquet files, written from a stream in bounded memory."""

from __future__ import annotations

import shutil
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from logstore.cli.common import CommandError, os_reason

_ROWS_PER_FILE = 1_000_000
_ROWS_PER_GROUP = 64_000
_BYTES_PER_GROUP = 8 << 20
_BYTES_WAITING = 32 << 20
"""Rows of all folders that are not written yet, in memory."""
_OPEN_FILES = 64
_NULL = "__HIVE_DEFAULT_PARTITION__"
_ROW = "row"


@dataclass(slots=True)
class _Part:
    """What goes into one folder."""

    waiting: list[pa.Table] = field(default_factory=list)
    bytes: int = 0
    rows: int = 0
    files: int = 0
    rows_in_file: int = 0


class ParquetFolder:
    """Writes rows into a directory, below it a folder for each value of some columns.

    The names of folders are Hive's, `column=value`, percent-encoded. A row group is written when
    enough bytes of it are there, so that large values do not add up in memory. If the context
    ends with an exception, nothing of what was written stays.
    """

    def __init__(self, directory: Path, schema: pa.Schema, by: Sequence[str]) -> None:
        """Write nothing yet.

        Args:
            directory: new or empty.
            schema: of the rows.
            by: the columns that become folders, in their order; the files do not have them.
        """
        self.directory = directory
        self.rows = 0
        """How many were given."""
        self.files: list[Path] = []
        """All files, in the order in which they were begun."""
        self._by = list(by)
        self._schema = pa.schema([f for f in schema if f.name not in by])
        self._was_there = directory.exists()
        self._parts: dict[str, _Part] = {}
        self._open: OrderedDict[str, pq.ParquetWriter] = OrderedDict()

    def __enter__(self) -> Self:
        with self._writing():
            self.directory.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._abandon()
            return
        try:
            with self._writing():
                self._finish()
        except BaseException:
            self._abandon()
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        """Take more rows.

        Raises:
            CommandError: the directory cannot be written.
        """
        self.rows += batch.num_rows
        with self._writing():
            for folder, rows in self._split(pa.Table.from_batches([batch])):
                part = self._parts.setdefault(folder, _Part())
                part.waiting.append(rows)
                part.bytes += rows.nbytes
                part.rows += rows.num_rows
                if part.bytes >= _BYTES_PER_GROUP or part.rows >= _ROWS_PER_GROUP:
                    self._flush(folder)
            self._make_room()

    def _split(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        if not self._by:
            yield "", table
            return
        names = [pc.fill_null(table[name].cast(pa.string()), _NULL) for name in self._by]
        rows = pa.array(range(table.num_rows), pa.int64())
        keys = pa.table([*names, rows], names=[*self._by, _ROW])
        groups = keys.group_by(self._by, use_threads=False).aggregate([(_ROW, "list")])
        kept = table.select(self._schema.names)
        for group in groups.to_pylist():
            folders = [f"{name}={quote(group[name], safe='')}" for name in self._by]
            yield "/".join(folders), kept.take(pa.array(group[f"{_ROW}_list"], pa.int64()))

    def _make_room(self) -> None:
        if sum(part.bytes for part in self._parts.values()) < _BYTES_WAITING:
            return
        for folder, part in sorted(self._parts.items(), key=lambda item: -item[1].bytes):
            if part.waiting:
                self._flush(folder)

    def _flush(self, folder: str) -> None:
        """Write what waits for a folder, as a row group."""
        part = self._parts[folder]
        table = pa.concat_tables(part.waiting)
        self._writer(folder, part).write_table(table, row_group_size=_ROWS_PER_GROUP)
        part.rows_in_file += part.rows
        part.waiting, part.bytes, part.rows = [], 0, 0
        if part.rows_in_file >= _ROWS_PER_FILE:
            self._open.pop(folder).close()

    def _writer(self, folder: str, part: _Part) -> pq.ParquetWriter:
        if folder in self._open:
            self._open.move_to_end(folder)
            return self._open[folder]
        if len(self._open) == _OPEN_FILES:
            _, oldest = self._open.popitem(last=False)
            oldest.close()
        path = self.directory / folder / f"part-{part.files}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._open[folder] = pq.ParquetWriter(path, self._schema, compression="zstd")
        self.files.append(path)
        part.files += 1
        part.rows_in_file = 0
        return self._open[folder]

    def _finish(self) -> None:
        if not self.rows and not self._by:
            # A file without rows tells the columns.
            self._parts[""] = _Part(waiting=[self._schema.empty_table()])
        for folder, part in self._parts.items():
            if part.waiting:
                self._flush(folder)
        for writer in self._open.values():
            writer.close()

    def _abandon(self) -> None:
        for writer in self._open.values():
            try:
                writer.close()
            except OSError:
                continue  # the disk is full; what was written goes anyway
        for path in self.directory.iterdir() if self.directory.is_dir() else ():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
        if not self._was_there and self.directory.is_dir():
            self.directory.rmdir()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CommandError(
                f"{self.directory} cannot be written: {os_reason(error)}; nothing was kept"
            ) from error


def refuse_folders_of(schema: pa.Schema, by: Sequence[str]) -> None:
    """Make sure that columns have values which a folder can be named by.

    Raises:
        CommandError: one has not.
    """
    for name in by:
        type_ = schema.field(name).type
        if pa.types.is_nested(type_) or pa.types.is_binary(type_):
            raise CommandError(
                f"column {name!r} has values of type {type_}, which are no names of folders; "
                "partition by another column"
            )
