"""What the records of a store add up to, counted by DuckDB in place."""

from __future__ import annotations

from logstore import analytics

SQL = "SELECT kind, count(*) AS n FROM records GROUP BY kind ORDER BY kind"


def count_records(uri: str) -> dict[str, int]:
    """How many records of each kind show in a store.

    Raises:
        LogStoreError: the store cannot be read, or DuckDB is missing.
    """
    with analytics.open(uri) as snapshot:
        rows = snapshot.sql(SQL).read_all().to_pylist()
    return {row["kind"]: row["n"] for row in rows}
