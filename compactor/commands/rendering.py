"""What the command `compactor` prints for people."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

from compactor.cleaning.retention import Retired
from compactor.commands.dryrun import DryRunStore, PlannedSnapshot
from compactor.commands.status import StoreStatus
from compactor.report import Report
from compactor.verifying.findings import Finding, Verification
from logstore.cli.common import cell, console, human_bytes, notes, table
from logstore.keys import LOG

_SNAPSHOTS = 50
"""So many are shown one by one."""
_REASONS = 10


@contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """A line on a terminal's stderr that tells what is going on, and disappears."""
    with notes.status("") as line:
        yield lambda text: line.update(cell(text))


def show_reasons(title: str, reasons: Mapping[str, str]) -> None:
    """A line for each thing that was left undone, and why."""
    for name, reason in sorted(reasons.items()):
        console.print(cell(f"{title} {name}: {reason}", style="yellow"))


def show_plan(plan: DryRunStore) -> None:
    """The objects that a dry run would have written and deleted."""
    rows = table("action", "bytes", "object", right=("bytes",))
    segments: dict[str, list[int]] = defaultdict(list)
    for one in plan.inputs():
        if one.key.startswith(f"{LOG}/"):
            segments[one.key.rpartition("/")[0]].append(one.size)
        else:
            rows.add_row("merge", human_bytes(one.size), cell(one.key))
    for folder, sizes in segments.items():
        rows.add_row("merge", human_bytes(sum(sizes)), f"{folder}: {len(sizes)} segments")
    for write in plan.written:
        rows.add_row("write", human_bytes(write.size), cell(write.key))
    for key in plan.deleted:
        rows.add_row("delete", "", cell(key))
    if rows.row_count:
        console.print(rows)
    made, voided = plan.snapshots()
    _show_snapshots("snapshots that would be made", made)
    _show_snapshots("snapshots that would be taken back", voided)
    console.print("nothing was written")


def _show_snapshots(what: str, snapshots: Sequence[PlannedSnapshot]) -> None:
    if not snapshots:
        return
    rows = table("thread", "namespace", "checkpoint", "channel", "bytes", right=("bytes",))
    for one in snapshots[:_SNAPSHOTS]:
        places = (one.thread_id, one.checkpoint_ns, one.checkpoint_id, one.channel)
        rows.add_row(*map(cell, places), human_bytes(one.size))
    console.print(f"{what}: {len(snapshots)}")
    console.print(rows)
    if (more := len(snapshots) - _SNAPSHOTS) > 0:
        console.print(f"and {more} more, which --json names")


def show_report(report: Report, verb: str = "compacted") -> None:
    """A row for each partition, and what was left undone."""
    did = ("segments", "runs merged", "rows", "written")
    counters = (*did, "snapshots", "voided", "retired", "deleted")
    rows = table("partition", "outcome", *counters, right=("partition", *counters))
    for part in report.partitions:
        rows.add_row(
            f"{part.partition}",
            part.outcome,
            f"{part.segments_merged}",
            f"{part.runs_merged}",
            f"{part.rows_written}",
            human_bytes(part.bytes_written),
            f"{part.snapshots}",
            f"{part.voided}",
            f"{part.retired}",
            f"{part.segments_deleted + part.runs_deleted + part.objects_deleted}",
        )
    console.print(f"{verb} {report.uri} in {report.seconds:.1f} s", markup=False)
    console.print(rows)
    if dropped := report.total("rows_dropped"):
        console.print(f"dropped {dropped} rows of checkpoints that were hidden long enough ago")
    if kept := report.total("threads_kept"):
        console.print(f"made the kept rows of {kept} threads")
    show_reasons("no snapshots of", report.unfolded)
    show_reasons("another reducer in", report.changed)
    if report.unfinished:
        left = ", ".join(map(str, report.unfinished))
        console.print(f"left to the next job when the time was up: partitions {left}")
    show_reasons("not readable, left as it is:", report.unreadable)


def show_retired(retired: Sequence[Retired], *, dry_run: bool) -> None:
    """A row for each thread that retention deleted or pruned."""
    if not retired:
        return
    rows = table("thread", "retention", "checkpoints", "idle", right=("checkpoints", "idle"))
    for one in retired:
        idle = f"{timedelta(seconds=round(one.idle_s))}"
        rows.add_row(cell(one.thread_id), one.action, f"{one.checkpoints}", idle)
    would = "retention would take away" if dry_run else "retention took away"
    console.print(f"{would} {sum(r.checkpoints for r in retired)} checkpoints")
    console.print(rows)


def log_report(report: Report) -> None:
    """A line in the log of a service."""
    logging.info(
        "merged %d segments, made %d snapshots, wrote %s, deleted %d segments",
        report.total("segments_merged"),
        report.total("snapshots"),
        human_bytes(report.total("bytes_written")),
        report.total("segments_deleted"),
    )
    for name, reason in {**report.unfolded, **report.changed, **report.unreadable}.items():
        logging.warning("%s: %s", name, reason)


def show_status(found: StoreStatus) -> None:
    """A row for each partition, and what the last job left undone."""
    numbers = ("generation", "tail", "runs", "rows", "bytes", "to delete", "written", "rewrites")
    rows = table(
        "partition",
        "last commit",
        "oldest in tail",
        "levels",
        *numbers,
        right=("partition", *numbers),
    )
    for part in found.partitions:
        rows.add_row(
            f"{part.partition}",
            part.last_commit or "never",
            part.oldest_tail or "-",
            " ".join(f"{level}:{count}" for level, count in part.levels.items()) or "-",
            f"{part.generation}",
            f"{part.tail_segments}",
            f"{sum(part.levels.values())}",
            f"{part.rows}",
            human_bytes(part.run_bytes),
            f"{part.waiting}",
            human_bytes(part.totals.get("bytes_written", 0)),
            f"{part.rewrites:.1f}",
        )
    console.print(f"compaction of {found.uri}", markup=False)
    console.print(rows)
    for part in found.partitions:
        show_reasons("no snapshots of", part.unfolded)
        show_reasons("another reducer in", part.changed)
    _show_hidden([reason for part in found.partitions for reason in part.hidden.values()])
    _show_kept(found)


def _show_kept(found: StoreStatus) -> None:
    """The tables that are kept, and what waits to be made."""
    names = sorted({name for part in found.partitions for name in part.kept})
    if not names:
        return
    size = human_bytes(sum(part.kept_bytes for part in found.partitions))
    console.print(f"keeps {' and '.join(names)}: {size}")
    if stale := sum(part.stale for part in found.partitions):
        console.print(f"threads whose rows wait for a job with --keep: at most {stale}")


def _show_hidden(reasons: Sequence[str]) -> None:
    """How many threads have hidden checkpoints, and what keeps them."""
    if not reasons:
        return
    console.print(f"threads with hidden checkpoints that wait to be dropped: {len(reasons)}")
    for reason, count in Counter(reason for reason in reasons if reason).most_common(_REASONS):
        console.print(cell(f"  kept in {count}: {reason}", style="yellow"))


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
