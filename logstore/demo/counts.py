"""What the records in a store's runs add up to, counted by DuckDB in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from logstore.store import LogStore

SQL = "SELECT kind, count(*) FROM runs GROUP BY kind ORDER BY kind"


def count_records(store: LogStore) -> dict[str, int]:
    """How many records of each kind the live runs hold.

    The runs are those that the partition manifests name. On a `file://` store DuckDB reads
    the Parquet files themselves; from elsewhere they come through the store's own client.
    """
    settings = store.settings()
    partitions = range(settings.partitions if settings else 0)
    manifests = [store.reader.partition_manifest(number)[0] for number in partitions]
    keys = [run.key for manifest in manifests for run in manifest.runs]
    if not keys:
        return {}
    with duckdb.connect() as connection:
        _view(connection, store, keys)
        rows = connection.execute(SQL).fetchall()
    return dict(rows)


def _view(connection: Any, store: LogStore, keys: list[str]) -> None:
    if store.objects.scheme == "file":
        root = Path(unquote(urlsplit(store.uri).path))
        connection.read_parquet([str(root / key) for key in keys]).create_view("runs")
        return
    bodies = (pa.BufferReader(store.objects.get(key).data) for key in keys)
    kinds = pa.concat_tables(pq.read_table(body, columns=["kind"]) for body in bodies)
    connection.register("runs", kinds)
