"""What the command `compactor` prints for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from compactor.findings import Finding, Verification
from logstore.cli.common import cell, console, notes, table


@contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """A line on a terminal's stderr that tells what is going on, and disappears."""
    with notes.status("") as line:
        yield lambda text: line.update(cell(text))


def show_reasons(title: str, reasons: Mapping[str, str]) -> None:
    """A line for each thing that was left undone, and why."""
    for name, reason in sorted(reasons.items()):
        console.print(cell(f"{title} {name}: {reason}", style="yellow"))


def show_verification(found: Verification) -> None:
    """Counts, what is not proved, and a row for each finding."""
    checked = found.checked
    console.print(f"verified {found.uri} in {found.seconds:.1f} s", markup=False)
    columns = ("threads", "checkpoints", "values", "snapshots", "proved", "heads", "objects")
    counts = table(*columns, right=columns)
    counts.add_row(*(f"{getattr(checked, name)}" for name in columns))
    console.print(counts)
    show_reasons("not proved:", checked.unproved)
    if not found.findings:
        console.print("nothing is wrong", style="green")
        return
    console.print(f"findings: {len(found.findings)}", style="bold red")
    for finding in found.findings:
        _show_finding(finding)


def _show_finding(finding: Finding) -> None:
    places = {
        "thread": finding.thread_id,
        "namespace": finding.namespace,
        "checkpoint": finding.checkpoint_id,
        "channel": finding.channel,
        "object": finding.key,
    }
    console.print()
    console.print(cell(finding.problem, style="bold red"))
    rows = table("", "")
    rows.show_header = False
    for name, value in places.items():
        if value:
            rows.add_row(f"  {name}", cell(value))
    rows.add_row("  found", cell(finding.detail))
    rows.add_row("  remedy", cell(finding.remedy))
    console.print(rows)
