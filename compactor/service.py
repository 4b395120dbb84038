"""The compactor as a service: a job every so often, until it is told to stop."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType

from compactor.report import Report
from logstore.errors import FormatError, ObjectStoreError, ReadError

logger = logging.getLogger(__name__)


def serve(
    run_job: Callable[[], Report], interval_s: float, on_report: Callable[[Report], None]
) -> None:
    """Run jobs until SIGTERM or SIGINT; a job under way is finished first.

    A store that does not answer, or in which something is damaged, is tried again at the next
    interval: nothing is lost by compacting later.
    """
    stop = threading.Event()

    def end(signum: int, frame: FrameType | None) -> None:
        stop.set()

    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, end)
    while not stop.is_set():
        try:
            on_report(run_job())
        except (ObjectStoreError, FormatError, ReadError) as error:
            logger.error("%s; trying again in %g s", error, interval_s)
        stop.wait(interval_s)
