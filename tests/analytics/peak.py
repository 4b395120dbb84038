"""Reads all of a store in a process of its own, and tells the peak of its memory.

python -m tests.analytics.peak URI DIRECTORY
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from logstore import analytics
from logstore.cli import app


def peak_bytes() -> int:
    """The most memory that this process held. `ru_maxrss` would count its parent's before exec."""
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024


def main(uri: str, directory: str) -> None:
    """Scan messages and writes, values included, then export the messages."""
    rows = {}
    for table in ("messages", "writes"):
        with analytics.open(uri) as snapshot:
            rows[table] = sum(batch.num_rows for batch in snapshot.scan(table))
    scanned = peak_bytes()
    app(["export", uri, directory, "--what", "messages"], standalone_mode=False)
    print(json.dumps({"rows": rows, "scanned": scanned, "exported": peak_bytes()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
