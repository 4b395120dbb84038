"""`logstore sql`: a query over a store's tables."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from logstore.cli.common import (
    CommandError,
    cell,
    console,
    counted,
    human_bytes,
    notes,
    os_reason,
    table,
)
from logstore.cli.options import Limit, Uri
from logstore.cli.snapshots import AllBranches, History, plain, reading, snapshot_of
from logstore.errors import InvalidOptionError, QueryError

DEFAULT_LIMIT = 100
_CELL_WIDTH = 120
_NARROWEST = 12
"""Characters that a column needs to be read, if it has so many."""
_GAP = 2

Query = Annotated[
    str,
    typer.Argument(metavar="SQL", help="One statement, in DuckDB's SQL.", show_default=False),
]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV with a header, for programs.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON array of rows, for programs.")]
Parquet = Annotated[
    Path | None,
    typer.Option(
        "--parquet",
        metavar="FILE",
        show_default=False,
        help="Write a Parquet file, in place of what is there.",
    ),
]


def sql(
    uri: Uri,
    query: Query,
    csv: Csv = False,
    json: Json = False,
    parquet: Parquet = None,
    history: History = False,
    all_branches: AllBranches = False,
    limit: Limit = DEFAULT_LIMIT,
) -> None:
    """Run a query over a store's tables, on a consistent snapshot, in place.

    The tables: threads, checkpoints, writes, blobs, snapshots, messages, tool_calls, and
    decoded (values as JSON). Deleted threads show in none of them. DESCRIBE messages shows
    a table's columns. In writes, blobs and snapshots a value is as it is stored: where
    `encoding` is patch or object it is a patch or null, and decoded has it whole. For people
    the first --limit rows are printed; --csv, --json and --parquet give all.

    Needs DuckDB: pip install "langgraph-checkpoint-logstore[analytics]".

    Examples:

        logstore sql file:///var/lib/agents "SELECT role, count(*) FROM messages GROUP BY role"

        logstore sql s3://bucket/agents "FROM tool_calls WHERE is_error" --parquet errors.parquet
    """
    if sum((csv, json, parquet is not None)) > 1:
        raise InvalidOptionError("--csv, --json and --parquet exclude each other; choose one")
    if parquet is not None and not parquet.parent.is_dir():
        raise CommandError(f"{parquet} cannot be written: {parquet.parent} is no directory")
    with snapshot_of(uri) as snapshot:
        result = snapshot.sql(query, reading=reading(history, all_branches))
        if parquet is not None:
            _write_parquet(result, parquet)
        elif csv:
            _print_csv(result)
        elif json:
            _print_json(result)
        else:
            _print_table(result, limit)


def _rows(result: pa.RecordBatchReader) -> Iterator[list[Any]]:
    for batch in result:
        yield from map(list, zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _print_table(result: pa.RecordBatchReader, limit: int) -> None:
    names = result.schema.names
    rows = _rows(result)
    shown = [[_shown(value) for value in row] for row in (islice(rows, limit) if limit else rows)]
    if not shown:
        console.print("no rows")
    elif _fits(names, shown):
        numbers = tuple(f.name for f in result.schema if _is_number(f.type))
        found = table(*names, right=numbers)
        for row in shown:
            found.add_row(*map(cell, row))
        console.print(found)
    else:
        _print_blocks(names, shown)
    if limit and next(rows, None) is not None:
        notes.print(f"the first {limit} rows; --limit 0 shows all", style="dim")


def _fits(names: list[str], rows: list[list[str]]) -> bool:
    """Whether the columns of a table stay wide enough to be read."""
    columns = zip(names, *rows, strict=True)
    widths = [min(max(map(len, column)), _NARROWEST) + _GAP for column in columns]
    return sum(widths) <= console.width


def _print_blocks(names: list[str], rows: list[list[str]]) -> None:
    """Each row on lines of its own, a column a line."""
    for number, row in enumerate(rows, 1):
        console.print(cell(f"── row {number}", "dim"))
        block = table("", "")
        block.show_header = False
        for name, text in zip(names, row, strict=True):
            block.add_row(cell(name, "bold"), cell(text))
        console.print(block)


def _is_number(type_: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_))


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bytes):
        return human_bytes(len(value))
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | dict):
        value = json.dumps(plain(value), ensure_ascii=False)
    text = str(value)
    return text if len(text) <= _CELL_WIDTH else f"{text[: _CELL_WIDTH - 1]}…"


def _print_csv(result: pa.RecordBatchReader) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(result.schema.names)
    for row in _rows(result):
        writer.writerow(_csv_cell(value) for value in row)


def _csv_cell(value: Any) -> Any:
    value = plain(value)
    return json.dumps(value) if isinstance(value, list | dict | bool) else value


def _print_json(result: pa.RecordBatchReader) -> None:
    """One array, a row a line, in ASCII, without holding it."""
    names = result.schema.names
    _refuse_twins(names)
    before = "[\n"
    for row in _rows(result):
        text = json.dumps(dict(zip(names, map(plain, row), strict=True)))
        sys.stdout.write(f"{before}  {text}")
        before = ",\n"
    sys.stdout.write("[]\n" if before == "[\n" else "\n]\n")


def _refuse_twins(names: list[str]) -> None:
    """Make sure that each column has a name of its own.

    Raises:
        QueryError: two have the same.
    """
    twins = sorted({name for name in names if names.count(name) > 1})
    if twins:
        raise QueryError(
            f"the query gives more than one column {twins[0]!r}; name each its own with AS"
        )


def _write_parquet(result: pa.RecordBatchReader, path: Path) -> None:
    _refuse_twins(result.schema.names)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    rows = 0
    try:
        with pq.ParquetWriter(partial, result.schema, compression="zstd") as writer:
            for batch in result:
                writer.write_batch(batch)
                rows += batch.num_rows
        partial.replace(path)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {os_reason(error)}") from error
    finally:
        partial.unlink(missing_ok=True)
    size = human_bytes(path.stat().st_size)
    console.print(f"{counted(rows, 'row')}, {size}, in {path}", markup=False)
