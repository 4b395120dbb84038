"""Scanning records as they are stored, with what does not show left out.

Row groups of which every row shows are left to Arrow, which reads the columns asked for and
skips row groups by their statistics. From the others the rows of the deletion vector are
taken out after reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from logstore.analytics.files import RunFiles
from logstore.analytics.pin import PinnedPartition, expiring
from logstore.analytics.tables import PARTITION, READ, RECORDS
from logstore.records import SCHEMA

BATCH_ROWS = 8192
_GROUPS_AT_ONCE = 4
_FORMAT = ds.ParquetFileFormat()


class RecordScan:
    """The visible records of one partition."""

    def __init__(self, partition: PinnedPartition, files: RunFiles) -> None:
        """Scan a pinned partition."""
        self._partition = partition
        self._files = files
        self._is_here = pc.field(PARTITION.name) == pc.scalar(
            pa.scalar(partition.number, pa.int32())
        )

    def fragments(self) -> list[ds.ParquetFileFragment]:
        """The row groups of which every row shows, a fragment a run, and the boundaries."""
        whole: list[ds.ParquetFileFragment] = []
        for number, run in enumerate(self._partition.files.values()):
            dirty = {group for source, group in self._partition.hidden if source == number}
            groups = None
            if dirty:
                count = self._partition.sources[number].groups
                groups = [group for group in range(count) if group not in dirty]
            if groups != []:
                fragment = _FORMAT.make_fragment(
                    self._files.path(run.key), self._files.arrow, self._is_here, groups
                )
                whole.append(fragment)
        self._files.serve(self._partition.boundaries)
        whole.extend(
            _FORMAT.make_fragment(self._files.path(file.key), self._files.arrow, self._is_here)
            for file in self._partition.boundaries
        )
        return whole

    def _pieces(self) -> Iterator[ds.ParquetFileFragment]:
        """The same a few row groups at a time: what Arrow reads ahead of them stays small."""
        for fragment in self.fragments():
            groups = [group.id for group in fragment.row_groups]
            for start in range(0, len(groups), _GROUPS_AT_ONCE):
                yield fragment.subset(row_group_ids=groups[start : start + _GROUPS_AT_ONCE])

    def rest(
        self, columns: Sequence[str], filter: pc.Expression | None = None
    ) -> Iterator[pa.Table]:
        """What shows of the other row groups."""
        # A filter may be on columns that were not asked for.
        names = [n for n in SCHEMA.names if n != "value" or n in columns or filter is not None]
        for (source, group), hidden in self._partition.hidden.items():
            table = self._partition.sources[source].read(group, names)
            yield _chosen(self._here(_without(table, hidden)), columns, filter)

    def _here(self, table: pa.Table) -> pa.Table:
        number = pa.scalar(self._partition.number, pa.int32())
        return table.add_column(0, PARTITION, pa.repeat(number, table.num_rows))

    def batches(
        self,
        columns: Sequence[str],
        filter: pc.Expression,
        on_records: Callable[[int], None],
    ) -> Iterator[pa.RecordBatch]:
        """Visible records, in no particular order.

        Args:
            columns: which columns.
            filter: which records.
            on_records: is told how many more records were looked at.

        Raises:
            SnapshotExpiredError: a run is gone.
        """
        with expiring(self._partition.store.uri):
            if not self._may_match(filter):
                return
            for fragment in self._pieces():
                yield from scanner(fragment, RECORDS, columns, filter).to_batches()
                on_records(fragment.count_rows())
            for table in self.rest(columns, filter):
                yield from table.to_batches(max_chunksize=BATCH_ROWS)

    def _may_match(self, filter: pc.Expression) -> bool:
        """Whether anything in this partition can match a filter."""
        files = self._files.arrow
        probe = ds.FileSystemDataset(
            [_FORMAT.make_fragment("none", files, self._is_here)], RECORDS, _FORMAT, files
        )
        return any(True for _ in probe.get_fragments(filter))


class KeptScan:
    """What one partition has of a table that the compactor keeps."""

    def __init__(self, partition: PinnedPartition, files: RunFiles, name: str) -> None:
        """Scan a table of a pinned partition; of one that is not kept nothing."""
        self._partition = partition
        self._files = files
        self._name = name

    def batches(
        self,
        columns: Sequence[str],
        filter: pc.Expression | None,
        on_records: Callable[[int], None],
    ) -> Iterator[pa.RecordBatch]:
        """The rows of the threads that are kept.

        Args:
            columns: which columns.
            filter: which rows.
            on_records: is told how many records stand behind them.

        Raises:
            SnapshotExpiredError: a file is gone.
        """
        kept = self._partition.kept
        with expiring(self._partition.store.uri):
            for rows in kept.rows(self._name):
                counts = filter
                if len(rows.superseded):
                    counts = ~pc.field("thread_id").isin(rows.superseded)
                    counts = counts if filter is None else counts & filter
                fragment = _FORMAT.make_fragment(self._files.path(rows.file.key), self._files.arrow)
                yield from scanner(fragment, READ[self._name], columns, counts).to_batches()
            on_records(kept.records(self._name))


def scanner(
    fragment: ds.Fragment, schema: pa.Schema, columns: Sequence[str], filter: pc.Expression | None
) -> ds.Scanner:
    """A scanner that reads little ahead."""
    return ds.Scanner.from_fragment(
        fragment,
        schema=schema,
        columns=list(columns),
        filter=filter,
        batch_size=BATCH_ROWS,
        batch_readahead=2,
        fragment_readahead=1,
    )


def _chosen(table: pa.Table, columns: Sequence[str], filter: pc.Expression | None) -> pa.Table:
    return (table if filter is None else table.filter(filter)).select(list(columns))


def _without(table: pa.Table, hidden: pa.Array) -> pa.Table:
    rows = pa.array(range(table.num_rows), pa.int64())
    return table.filter(pc.invert(pc.is_in(rows, hidden)))
