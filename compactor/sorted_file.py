"""A Parquet file of rows sorted by thread, written a row group at a time."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from logstore.seal import sealed
from logstore.segment import parquet_metadata


class SortedFile:
    """A file that is being written, outside of memory.

    Attributes:
        rows: written so far.
        first_thread: of the first row.
        last_thread: of the last one.
    """

    def __init__(self, folder: Path, schema: pa.Schema, order: str, **properties: Any) -> None:
        """Begin a file.

        Args:
            folder: for the file until it is finished.
            schema: of its rows.
            order: the columns by which they are sorted, apart by a space.
            properties: of the Parquet writer.
        """
        self._path = folder / f"{secrets.token_hex(8)}.parquet"
        self._sink = pa.OSFile(f"{self._path}", "wb")
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            write_page_checksum=True,
            sorting_columns=pq.SortingColumn.from_ordering(
                schema, [(column, "ascending") for column in order.split()]
            ),
            **properties,
        )
        self.rows = 0
        self.first_thread = ""
        self.last_thread = ""

    @property
    def size(self) -> int:
        """Bytes written so far."""
        size: int = self._sink.tell()
        return size

    def write(self, group: pa.Table) -> None:
        """Write a row group; its rows follow those written before."""
        threads = group["thread_id"]
        self.first_thread = self.first_thread if self.rows else threads[0].as_py()
        self.last_thread = threads[-1].as_py()
        self.rows += group.num_rows
        self._writer.write_table(group, row_group_size=group.num_rows)

    def close(self, meta: Mapping[str, str | int]) -> bytes:
        """Finish the file, and give its sealed content."""
        self._writer.add_key_value_metadata(parquet_metadata(dict(meta)))
        self._writer.close()
        self._sink.close()
        body = self._path.read_bytes()
        self._path.unlink()
        return sealed(body)
