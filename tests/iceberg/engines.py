"""Engines that no one here wrote, each reading a table of an Iceberg REST catalog.

Both read metadata, manifests and data with code of their own: Polars from where the catalog says
that the table is, ClickHouse (chDB) asks the catalog itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import polars
from chdb.session import Session
from pyiceberg.catalog import Catalog

from compactor.iceberg import open_catalog
from logstore.testing.servers import CREDENTIALS, TABLE_BUCKET

Rows = list[tuple[Any, ...]]
_KEY, _SECRET = CREDENTIALS.values()


@dataclass(frozen=True)
class RestCatalog:
    """Where SeaweedFS serves tables."""

    s3: str
    rest: str

    def open(self) -> Catalog:
        """As `compactor publish` opens it."""
        properties = {
            "type": "rest",
            "uri": self.rest,
            "warehouse": f"s3://{TABLE_BUCKET}",
            "credential": f"{_KEY}:{_SECRET}",
            "s3.endpoint": self.s3,
            "s3.access-key-id": _KEY,
            "s3.secret-access-key": _SECRET,
            "s3.region": "us-east-1",
        }
        return open_catalog("seaweedfs", properties)


def read_with_polars(catalog: RestCatalog, table: str, columns: Sequence[str]) -> Rows:
    """Rows as Polars finds them."""
    options = {
        "aws_endpoint_url": catalog.s3,
        "aws_access_key_id": _KEY,
        "aws_secret_access_key": _SECRET,
        "aws_region": "us-east-1",
    }
    loaded = catalog.open().load_table(table)
    with patch.dict(os.environ, POLARS_ICEBERG_PLANNER="plugin"):
        frame = polars.scan_iceberg(loaded, storage_options=options, reader_override="native")
        return sorted(frame.select(columns).collect().rows())


def read_with_clickhouse(catalog: RestCatalog, table: str, columns: Sequence[str]) -> Rows:
    """Rows as ClickHouse finds them through the REST catalog."""
    session = Session()
    try:
        session.query("SET allow_database_iceberg = 1")
        session.query(
            f"CREATE DATABASE lake ENGINE = DataLakeCatalog('{catalog.rest}/v1', '{_KEY}', "
            f"'{_SECRET}') SETTINGS catalog_type = 'rest', warehouse = 's3://{TABLE_BUCKET}', "
            f"storage_endpoint = '{catalog.s3}/{TABLE_BUCKET}', "
            f"oauth_server_uri = '{catalog.rest}/v1/oauth/tokens', "
            f"catalog_credential = '{_KEY}:{_SECRET}'"
        )
        query = f"SELECT {', '.join(columns)} FROM lake.`{table}`"
        found = session.query(query, "ArrowTable")
        # Otherwise it goes on asking the catalog after the server has stopped.
        session.query("DROP DATABASE lake")
    finally:
        session.close()
    return sorted(zip(*found.to_pydict().values(), strict=True))


ENGINES: Mapping[str, Callable[[RestCatalog, str, Sequence[str]], Rows]] = {
    "Polars": read_with_polars,
    "ClickHouse": read_with_clickhouse,
}
