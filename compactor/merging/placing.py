"""Taking large values out of the rows that become runs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter

import pyarrow as pa
import pyarrow.compute as pc

from compactor.plan import Plan
from compactor.publishing import large_values
from compactor.publishing.large_values import LargeValues
from compactor.publishing.uploads import Uploads
from logstore.records import Encoding, Kind, Record
from logstore.segment import records_to_table, table_to_records
from logstore.store import LogStore

_KINDS = pa.array([Kind.BLOB.value, Kind.WRITE.value])


class ValuePlacer:
    """Puts the large values of sorted rows into objects, thread by thread."""

    def __init__(self, store: LogStore, plan: Plan) -> None:
        """Place values of the partition of a job's plan."""
        self._store = store
        self._plan = plan
        self._thread: tuple[str, LargeValues] | None = None
        self.bytes_written = 0
        """Of all objects so far."""

    def placed(self, rows: pa.Table) -> pa.Table:
        """The rows with large values outside; they follow those of the last call."""
        large = _is_large(rows)
        if not pc.any(large).as_py():
            return rows
        where = pc.indices_nonzero(large)
        others = pc.indices_nonzero(pc.invert(large))
        named = rows.filter(pc.equal(rows["encoding"], Encoding.OBJECT.value))
        placed = self._records(rows.take(where), table_to_records(named))
        joined = pa.concat_tables([rows.take(others), records_to_table(list(placed))])
        order = pc.sort_indices(pa.concat_arrays([others, where]))
        return joined.take(order)

    def _records(self, rows: pa.Table, named: list[Record]) -> Iterator[Record]:
        for thread_id, records in groupby(table_to_records(rows), key=attrgetter("thread_id")):
            large = self._of(thread_id)
            large.learn(record for record in named if record.thread_id == thread_id)
            for record in records:
                assert isinstance(record.value, bytes)
                placed, size = large.keep(record, record.value)
                self.bytes_written += size
                yield placed

    def _of(self, thread_id: str) -> LargeValues:
        """What is known of a thread's objects: those of its manifest, and the ones met here."""
        if self._thread is None or self._thread[0] != thread_id:
            plan, reader = self._plan, self._store.reader
            uploads = Uploads(self._store.objects, plan.settings.long_grace_s / 4)
            condemned = plan.manifest.condemned
            large = LargeValues(plan.partition, uploads, reader.snapshot_object, condemned)
            large.learn(reader.snapshot_manifest(thread_id, plan.partition).manifest.records)
            self._thread = (thread_id, large)
        return self._thread[1]


def _is_large(rows: pa.Table) -> pa.ChunkedArray:
    sizes = pc.fill_null(pc.binary_length(rows["value"]), 0)
    whole = pc.and_(pc.equal(rows["encoding"], Encoding.RAW.value), pc.is_in(rows["kind"], _KINDS))
    return pc.and_(pc.greater(sizes, large_values.LARGE_BYTES), whole)
