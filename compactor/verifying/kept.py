"""Proving kept tables: their files are whole, and their rows are what decoding gives."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from compactor.verifying.findings import Checked, Finding, Problem
from logstore.analytics.decoded import Reading, rows_of
from logstore.analytics.kept import KeptSource, schema_of_file
from logstore.analytics.pin import PinnedPartition, pin
from logstore.analytics.sources import aligned
from logstore.errors import FormatError, LogStoreError, SnapshotExpiredError
from logstore.manifest import KEPT
from logstore.store import LogStore
from logstore.tail import StartAgain

REMEDY = "run `compactor rebuild` on the store; the next job with --keep makes the tables anew"
_THREADS_AT_ONCE = 256
Rows = list[dict[str, Any]]


def check_kept(store: LogStore, partition: int) -> Checked:
    """Compare what is kept of a partition with what decoding gives.

    Raises:
        StartAgain: a job committed meanwhile, and a file is gone.
    """
    with tempfile.TemporaryDirectory(prefix="compactor-") as folder:
        try:
            pinned = pin(store, partition, Path(folder))
            if not pinned.manifest.kept.batches:
                return Checked()
            findings = tuple(_findings(pinned))
        except SnapshotExpiredError as error:
            raise StartAgain from error
        except LogStoreError as error:
            return Checked(unproved={f"kept tables of partition {partition}": str(error)})
    if findings and _generation(store, partition) != pinned.manifest.generation:
        raise StartAgain
    return Checked(findings=findings)


def _generation(store: LogStore, partition: int) -> int:
    return store.reader.partition_manifest(partition)[0].generation


def _findings(pinned: PinnedPartition) -> Iterator[Finding]:
    broken = list(_broken_files(pinned))
    yield from broken
    if broken:
        return
    for name in KEPT:
        threads = pinned.kept.current(name).sort()
        for start in range(0, len(threads), _THREADS_AT_ONCE):
            yield from _compared(pinned, name, threads.slice(start, _THREADS_AT_ONCE))


def _broken_files(pinned: PinnedPartition) -> Iterator[Finding]:
    for key, file in pinned.manifest.kept.files.items():
        try:
            pinned.store.runs.check(file)
        except StartAgain:
            detail = "the partition manifest names it"
            yield Finding(Problem.MISSING_OBJECT, detail, REMEDY, key)
        except FormatError as error:
            yield Finding(Problem.UNREADABLE, str(error), REMEDY, key)


def _compared(pinned: PinnedPartition, name: str, threads: pa.Array) -> Iterator[Finding]:
    kept = _kept_rows(pinned, name, threads)
    made: dict[str, Rows] = {}
    for read in pinned.reads(threads):
        made_now = rows_of([name], pinned.number, read, pinned.store, Reading())
        rows = [row for _, row in made_now]
        made[read.view.thread_id] = pa.Table.from_pylist(rows, schema_of_file(name)).to_pylist()
    for thread_id in threads.to_pylist():
        found, expected = kept.get(thread_id, []), made.get(thread_id, [])
        if found != expected:
            detail = (
                f"the kept table {name} has {len(found)} rows of it, which are not the "
                f"{len(expected)} that its values give"
            )
            yield Finding(Problem.WRONG_ROWS, detail, REMEDY, thread_id=thread_id)


def _kept_rows(pinned: PinnedPartition, name: str, threads: pa.Array) -> Mapping[str, Rows]:
    found: dict[str, Rows] = defaultdict(list)
    columns = schema_of_file(name).names
    sources = [
        KeptSource((rows.file,), name, pinned.store.runs, rows.superseded)
        for rows in pinned.kept.rows(name)
    ]
    for table in aligned(sources, columns, threads):
        for row in table.select(columns).to_pylist():
            found[row["thread_id"]].append(row)
    return found
