"""Purging: a job that waits until what it replaced may be deleted, and deletes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from compactor.folding.channels import ChannelTable, default_serde
from compactor.job import Job
from compactor.report import Outcome, Report
from logstore.store import LogStore

_MARGIN_S = 1.1
"""A store's `Last-Modified` has whole seconds."""
_TRIES = 5
Tell = Callable[[str], None]


def purge(
    job: Job,
    short_grace_s: float,
    partitions: Collection[int] | None,
    tell: Tell,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Report, Report]:
    """Compact, wait for the short grace, and delete.

    Afterwards nothing is left of what was deleted or replaced before the call: not of threads
    that were deleted, nor of segments, runs and snapshot objects that were replaced. Only objects
    that no manifest ever named, which a job at work may have stored, wait for the long grace.

    Args:
        job: with `purge` set.
        short_grace_s: the store's.
        partitions: only these.
        tell: is told what goes on.
        sleep: waits.

    Returns:
        What the first job did, and what was deleted after the wait.
    """
    tell("compacting")
    first = job.run(partitions)
    if first.total("waiting"):
        _wait(short_grace_s + _MARGIN_S, tell, sleep)
    tell("deleting")
    last = job.run(partitions)
    for _ in range(_TRIES):
        lost = [p.partition for p in last.partitions if p.outcome == Outcome.LOST]
        if not lost:
            break
        again = {p.partition: p for p in job.run(lost).partitions}
        parts = tuple(again.get(p.partition, p) for p in last.partitions)
        last = Report(last.uri, parts, last.seconds)
    return first, last


def _wait(seconds: float, tell: Tell, sleep: Callable[[float], None]) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        tell(f"waiting {left:.0f} s for the grace of readers to pass")
        sleep(min(1.0, left))


def purge_partition(store: LogStore, partition: int, tell: Tell) -> None:
    """Purge one partition without folding anything; found through an entry point.

    Args:
        store: an open store.
        partition: its number.
        tell: is told what goes on.
    """
    settings = store.settings()
    job = Job(store, ChannelTable(()), default_serde(), purge=True)
    purge(job, settings.short_grace_s if settings else 0.0, [partition], tell)
