"""`compactor publish`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from compactor.commands.rendering import status_line
from compactor.iceberg import open_catalog
from compactor.iceberg import publish as publish_tables
from logstore.cli.common import console, print_json, table
from logstore.cli.options import Json, Uri
from logstore.cli.snapshots import snapshot_of
from logstore.errors import InvalidOptionError


def publish(
    uri: Uri,
    catalog: Annotated[
        str, typer.Option(metavar="NAME", help="The Iceberg catalog, as pyiceberg knows it.")
    ],
    to: Annotated[
        str,
        typer.Option(
            "--table",
            metavar="NS.TABLE",
            help="Namespace and beginning of the names: NS.TABLE_checkpoints, NS.TABLE_messages.",
        ),
    ],
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            metavar="KEY=VALUE",
            show_default=False,
            help="Of the catalog, on top of pyiceberg's configuration. May be repeated.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Keep Apache Iceberg tables of a store up to date.

    Rows that the tables lack are appended, those that the store no longer shows are deleted, in
    one commit for each partition and table. Run it after each compaction; it may be killed and
    repeated. Spark, Trino, Athena, Snowflake and DuckDB read the tables.

    Needs pyiceberg: pip install "langgraph-checkpoint-logstore[iceberg]".

    Examples:

        compactor publish s3://bucket/agents --catalog prod --table agents.support

        compactor publish file:///var/lib/agents --catalog local --table agents.support
        --property type=sql --property uri=sqlite:////var/lib/catalog.db
        --property warehouse=file:///var/lib/warehouse
    """
    opened = open_catalog(catalog, dict(map(_property, properties or ())))
    with snapshot_of(uri) as snapshot, status_line() as tell:
        done = publish_tables(snapshot, opened, to, tell)
    if json:
        print_json({"uri": uri, "catalog": catalog, "tables": [asdict(one) for one in done]})
        return
    numbers = ("appended", "deleted", "partitions changed")
    rows = table("table", *numbers, right=numbers)
    for one in done:
        rows.add_row(one.table, f"{one.appended}", f"{one.deleted}", f"{one.partitions}")
    console.print(rows)


def _property(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InvalidOptionError(f"--property is KEY=VALUE, not {text!r}")
    return key, value
