"""`logstore export`: a table as a directory of Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from logstore.cli.common import CommandError, console, counted, human_bytes, notes, print_json
from logstore.cli.folder import ParquetFolder, refuse_folders_of
from logstore.cli.options import Json, Uri
from logstore.cli.snapshots import AllBranches, History, reading, snapshot_of
from logstore.errors import InvalidOptionError
from logstore.records import Encoding

_DATES = {"threads": "last_ts"}
_DERIVED = pa.array([Encoding.PATCH.value, Encoding.OBJECT.value])
"""The encodings of which a row does not hold the value itself."""

Directory = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="A directory, new or empty.", show_default=False),
]
What = Annotated[str, typer.Option(metavar="TABLE", help="Which table, as in: logstore sql.")]
PartitionBy = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN",
        show_default=False,
        help="A folder for each value of a column, or of `date`. May be repeated.",
    ),
]


def export(
    uri: Uri,
    directory: Directory,
    what: What = "messages",
    partition_by: PartitionBy = None,
    history: History = False,
    all_branches: AllBranches = False,
    json: Json = False,
) -> None:
    """Write a table of a consistent snapshot as Parquet files, in bounded memory.

    Examples:

        logstore export file:///var/lib/agents ./messages --partition-by date

        logstore export s3://bucket/agents ./calls --what tool_calls --partition-by name
    """
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise CommandError(f"{directory} exists and is not empty; name a new directory")
    by = partition_by or []
    with snapshot_of(uri) as snapshot, _bar() as progress:
        task = progress.add_task(f"exporting {what}", total=snapshot.records, rows=0)
        found = snapshot.scan(
            what,
            reading=reading(history, all_branches),
            on_records=lambda count: progress.update(task, advance=count),
        )
        dated = _dated(found, what, by)
        refuse_folders_of(dated.schema, by)
        derived = 0
        with ParquetFolder(directory, dated.schema, by) as folder:
            for batch in dated:
                folder.write(batch)
                derived += _derived(batch)
                progress.update(task, rows=folder.rows)
    if derived:
        notes.print(
            f"{counted(derived, 'value')} of {what} exported as stored: a patch, or null for an "
            "object of its own (see column encoding); --what decoded has the values whole, as JSON"
        )
    size = sum(path.stat().st_size for path in folder.files)
    if json:
        report = {"uri": uri, "table": what, "rows": folder.rows, "bytes": size}
        print_json({**report, "files": sorted(map(str, folder.files))})
        return
    files = counted(len(folder.files), "file")
    text = f"{counted(folder.rows, 'row')} of {what}, {files}, {human_bytes(size)}, in {directory}"
    console.print(text, markup=False)


def _dated(found: pa.RecordBatchReader, what: str, by: list[str]) -> pa.RecordBatchReader:
    """The table with a column `date` where it is asked for."""
    time = _DATES.get(what, "ts")
    known = [*found.schema.names, "date"]
    unknown = [name for name in by if name not in known]
    if unknown:
        raise InvalidOptionError(
            f"table {what} has no column {unknown[0]!r} to partition by; it has {', '.join(known)}"
        )
    if "date" not in by:
        return found
    schema = found.schema.append(pa.field("date", pa.date32()))

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in found:
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, pc.cast(batch[time], pa.date32())], schema=schema
            )

    return pa.RecordBatchReader.from_batches(schema, batches())


def _derived(batch: pa.RecordBatch) -> int:
    """How many rows of a batch do not hold their value itself."""
    if "value" not in batch.schema.names:
        return 0
    return pc.sum(pc.is_in(batch["encoding"], _DERIVED)).as_py() or 0


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]} rows"),
        TimeRemainingColumn(),
        console=notes,
        transient=True,
        disable=not notes.is_terminal,
    )
