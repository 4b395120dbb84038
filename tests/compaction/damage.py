"""Damage to single objects of a store, for the tests of verifying and rebuilding."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from compactor.merging.output import RunWriter
from logstore.keys import partition_manifest_key, snapshot_manifest_key
from logstore.manifest import PartitionManifest
from logstore.records import SCHEMA, Record
from logstore.segment import records_to_table, table_to_records
from tests.helpers import Place


def flip(place: Place, key: str, at: float = 0.5) -> None:
    """Change one byte, `at` of the way through an object."""
    with place.store() as store:
        found = store.objects.get(key)
        body = bytearray(found.data)
        body[int(at * (len(body) - 1))] ^= 0x55
        store.objects.compare_and_swap(key, bytes(body), found.etag)


def flip_value(place: Place, run: str) -> None:
    """Change a byte of the last value in a run."""
    body = bytearray(read(place, run))
    group = pq.ParquetFile(pa.BufferReader(bytes(body))).metadata.row_group(0)
    column = group.column(SCHEMA.get_field_index("value"))
    body[column.data_page_offset + column.total_compressed_size - 3] ^= 0x55
    overwrite(place, run, bytes(body))


def overwrite(place: Place, key: str, body: bytes) -> None:
    """Give an object another body."""
    with place.store() as store:
        try:
            etag = store.objects.get(key).etag
        except Exception:
            etag = None
        store.objects.compare_and_swap(key, body, etag)


def read(place: Place, key: str) -> bytes:
    with place.store() as store:
        return store.objects.get(key).data


def remove(place: Place, *keys: str) -> None:
    with place.store() as store:
        store.objects.delete(keys)


def the_manifest(place: Place, thread_id: str = "t") -> str:
    return snapshot_manifest_key(0, thread_id)


def the_runs(place: Place) -> list[str]:
    """The keys of the live runs."""
    with place.store() as store:
        return [run.key for run in store.reader.partition_manifest(0)[0].runs]


def change_runs(place: Place, change: Callable[[Record], Record | None]) -> None:
    """Replace each live run by one with changed records, as a job with a fault would."""
    with place.store() as store:
        manifest, etag = store.reader.partition_manifest(0)
        runs = []
        for run in manifest.runs:
            with tempfile.TemporaryDirectory() as folder:
                writer = RunWriter(
                    store.objects,
                    Path(folder),
                    0,
                    run.level,
                    run.generation,
                    "damage",
                    max_bytes=None,
                    place=(run.sequence, run.part),
                )
                for table in store.runs.batches(run, 1 << 20):
                    records = map(change, table_to_records(table))
                    writer.add(records_to_table([r for r in records if r is not None]))
                runs += writer.close()
        changed: PartitionManifest = replace(manifest, runs=tuple(runs))
        store.objects.compare_and_swap(partition_manifest_key(0), changed.encode(), etag)
        store.objects.delete([run.key for run in manifest.runs])
