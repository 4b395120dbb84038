"""Which threads can have rows that a filter selects: no others need be decoded.

Each thread is described by what holds for all of its rows: its name, its partition, and the
times between which its checkpoints were made. Arrow, which knows how to skip files by what holds
in them, then tells which of these descriptions a filter does not rule out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from logstore.analytics.sources import RunSource
from logstore.analytics.tables import PARTITION, READ, TIMESTAMP, UNDATED
from logstore.records import Kind

_FORMAT = ds.ParquetFileFormat()
_COLUMNS = ["thread_id", "kind", "ts"]
_SPANS = pa.schema(
    [
        ("thread_id", pa.string()),
        ("first", TIMESTAMP),
        ("last", TIMESTAMP),
        ("undated", pa.bool_()),
    ]
)
"""A thread, the times of its first and last checkpoint, and whether some have none."""


class ThreadSpans:
    """The threads of a partition, and from when to when they went."""

    def __init__(self, partition: int, sources: Sequence[RunSource]) -> None:
        """Read nothing yet."""
        self._partition = partition
        self._sources = sources

    @cached_property
    def threads(self) -> pa.Array:
        """All threads, ascending."""
        return self._spans["thread_id"].combine_chunks()

    def matching(self, name: str, filter: pc.Expression) -> pa.Array:
        """The threads of which a filter may select rows.

        Args:
            name: a table that is made by reading threads.
            filter: on its columns.
        """
        described = self._undated if name in UNDATED else self._dated
        dataset = ds.FileSystemDataset(described, READ[name], _FORMAT, pafs.LocalFileSystem())
        numbers = [int(fragment.path) for fragment in dataset.get_fragments(filter)]
        return self.threads.take(pa.array(numbers, pa.int64()))

    @cached_property
    def _spans(self) -> pa.Table:
        found = [_spans_of(source, g) for source in self._sources for g in range(source.groups)]
        return _joined(pa.concat_tables([_SPANS.empty_table(), *found])).sort_by("thread_id")

    @cached_property
    def _undated(self) -> list[ds.Fragment]:
        return [self._described(n, name) for n, name in enumerate(self.threads.to_pylist())]

    @cached_property
    def _dated(self) -> list[ds.Fragment]:
        columns = (self._spans[name] for name in ("first", "last", "undated"))
        times = zip(*columns, strict=True)
        found = []
        for number, (name, span) in enumerate(zip(self.threads.to_pylist(), times, strict=True)):
            first, last, undated = span
            ts = pc.field("ts")
            dated = None if undated.as_py() else (ts >= first) & (ts <= last)
            found.append(self._described(number, name, dated))
        return found

    def _described(
        self, number: int, name: str, more: pc.Expression | None = None
    ) -> ds.ParquetFileFragment:
        """A thread as a file of which something holds."""
        here = pc.field(PARTITION.name) == pc.scalar(pa.scalar(self._partition, pa.int32()))
        holds = here & (pc.field("thread_id") == name)
        holds = holds if more is None else holds & more
        return _FORMAT.make_fragment(str(number), pafs.LocalFileSystem(), holds)


def _spans_of(source: RunSource, group: int) -> pa.Table:
    rows = source.read(group, _COLUMNS)
    rows = rows.filter(pc.equal(rows["kind"], Kind.CHECKPOINT.value))
    columns = [rows["thread_id"], rows["ts"], rows["ts"], pc.is_null(rows["ts"])]
    return _joined(pa.table(columns, schema=_SPANS))


def _joined(spans: pa.Table) -> pa.Table:
    """One span a thread."""
    found = spans.group_by("thread_id").aggregate(
        [("first", "min"), ("last", "max"), ("undated", "max")]
    )
    names = ["thread_id", "first_min", "last_max", "undated_max"]
    return found.select(names).rename_columns(_SPANS.names)
