"""What all commands share: output, errors, exit codes.

Exit codes: 0 done; 1 the store, or the data given, has a problem; 2 the command line is wrong;
130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from typing import Any, NoReturn

import typer
from rich.console import Console, ConsoleDimensions
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from logstore.errors import LogStoreError, UsageError

EXIT_PROBLEM = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_UNBOUNDED = 100_000
"""Columns, where nobody has to read them on a screen."""
_UNITS = ("KiB", "MiB", "GiB", "TiB")


class CommandError(LogStoreError):
    """What a command was asked for is not there, or not usable."""


class _WideConsole(Console):
    """A console that wraps and shortens for a terminal, never for a pipe or a file."""

    @property
    def size(self) -> ConsoleDimensions:
        """Columns and lines."""
        found = super().size
        return found if self.is_terminal else ConsoleDimensions(_UNBOUNDED, found.height)

    @size.setter
    def size(self, size: tuple[int, int]) -> None:
        self._width, self._height = size


console = _WideConsole(highlight=False)
"""For results, on stdout."""
notes = _WideConsole(stderr=True, highlight=False)
"""For progress, notes and errors, on stderr."""


class Commands(TyperGroup):
    """A group of commands that shows a `LogStoreError` as one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except LogStoreError as error:
            exit_with(error)


def run_app(app: typer.Typer) -> NoReturn:
    """Run a command line to its end; errors become one line and an exit code."""
    try:
        app()
    except LogStoreError as error:
        show_error(error)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(0)


def exit_with(error: LogStoreError) -> NoReturn:
    """Show an error and end the command.

    Raises:
        typer.Exit: with the error's exit code.
    """
    show_error(error)
    raise typer.Exit(exit_code(error)) from error


def exit_code(error: LogStoreError) -> int:
    """What the process is to answer for an error."""
    return EXIT_USAGE if isinstance(error, UsageError) else EXIT_PROBLEM


def show_error(error: Exception | str) -> None:
    """One line on stderr."""
    line = Text("error: ", style="bold red").append(one_line(str(error)), style="not bold default")
    notes.print(line, soft_wrap=True)


def print_json(doc: Any) -> None:
    """A document for programs on stdout, in ASCII, so that no locale can spoil it."""
    sys.stdout.write(json.dumps(doc, indent=2) + "\n")


def table(*columns: str, right: tuple[str, ...] = (), whole: tuple[str, ...] = ()) -> Table:
    """An empty table.

    Args:
        columns: the names in the header.
        right: those of them that are aligned to the right.
        whole: those whose cells stay on one line, so that they can be copied.
    """
    found = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        found.add_column(
            name,
            justify="right" if name in right else "left",
            overflow="fold",
            no_wrap=name in whole,
        )
    return found


def one_line(text: str) -> str:
    """Text that is safe to print on one line: what does not print is escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cell(text: str, style: str = "") -> Text:
    """Text from a store as a table's cell: escaped, and never read as markup."""
    return Text(one_line(text), style=style)


def counted(count: int, thing: str) -> str:
    """A number of things for people: ``1 file``, ``2,000 files``."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def os_reason(error: OSError) -> str:
    """Why the system refused, in its own words."""
    return os.strerror(error.errno) if error.errno else str(error)


def human_bytes(count: float) -> str:
    """A size for people: ``17 B``, ``4.2 KiB``."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in _UNITS:
        count /= 1024
        if count < 1024 or unit == _UNITS[-1]:
            break
    return f"{count:.1f} {unit}"


def human_seconds(seconds: float) -> str:
    """A span of time for people: ``42 s``, ``3 min``, ``5 h``, ``12 days``."""
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{max(seconds, 0) / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def human_time(us: int | None) -> str:
    """A time for people, in UTC; `us` are microseconds since the epoch."""
    if us is None:
        return "-"
    return datetime.fromtimestamp(us / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def iso_time(us: int | None) -> str | None:
    """A time for programs: ISO 8601, in UTC; `us` are microseconds since the epoch."""
    return None if us is None else datetime.fromtimestamp(us / 1_000_000, UTC).isoformat()
