"""Questions to a whole store, answered from the very files that the agents write.

    from logstore import analytics

    with analytics.open("s3://bucket/agents") as snapshot:
        snapshot.duckdb().sql("SELECT name, count(*) FROM tool_calls GROUP BY name").show()

`open` pins a consistent snapshot. Its tables are `threads`, the stored records by kind
(`checkpoints`, `writes`, `blobs`, `snapshots`), and what is made of their values: `messages`,
`tool_calls` and, as JSON, `decoded`. What is hidden, deleted or lost a clash shows in none of
them. No class that a value names is imported.
"""

from __future__ import annotations

from typing import Any

from logstore.analytics.decoded import Reading
from logstore.analytics.snapshot import StoreSnapshot
from logstore.analytics.tables import SCHEMAS

__all__ = ["SCHEMAS", "Reading", "StoreSnapshot", "open"]


def open(uri: str, **backend: Any) -> StoreSnapshot:
    """Take a consistent snapshot of the store at a URI.

    Args:
        uri: the store's.
        backend: options of `logstore.objects.open_object_store`.

    Raises:
        MissingDataError: there is no store, or a part of it was lost.
        CorruptObjectError: a manifest or a segment cannot be read.
    """
    return StoreSnapshot(uri, **backend)
