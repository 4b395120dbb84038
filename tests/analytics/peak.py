"""Reads all of a store in a process of its own, and tells the peak of its memory.

python -m tests.analytics.peak URI DIRECTORY
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from logstore import analytics
from logstore.cli import app

TABLES = ("messages", "writes")


def peak_bytes() -> int:
    """The most memory that this process held. `ru_maxrss` would count its parent's before exec."""
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024


def rows_in(batches: Iterable[pa.RecordBatch]) -> int:
    """How many rows a stream has; none of its batches is held."""
    return sum(batch.num_rows for batch in batches)


def main(uri: str, directory: str) -> None:
    """Scan messages and writes, values included, query and export them."""
    peaks = {}
    with analytics.open(uri) as snapshot:
        rows = {table: rows_in(snapshot.scan(table)) for table in TABLES}
    peaks["scanned"] = peak_bytes()
    for table in TABLES:
        app(["export", uri, f"{directory}/{table}", "--what", table], standalone_mode=False)
    peaks["exported"] = peak_bytes()
    with analytics.open(uri) as snapshot:
        for table in TABLES:
            assert rows_in(snapshot.sql(f"SELECT * FROM {table}")) == rows[table]
    peaks["queried"] = peak_bytes()
    print(json.dumps({"rows": rows, "peaks": peaks}))


if __name__ == "__main__":
    main(*sys.argv[1:])
