"""Noticing values whose class the serde does not construct: it gives plain data for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener


@contextmanager
def blocked_classes() -> Iterator[set[str]]:
    """Collect the classes that this thread's reads meet and the serde does not allow.

    Example:
        ```python
        with blocked_classes() as blocked:
            value = serde.loads_typed(typed)
        if blocked:
            raise …
        ```
    """
    blocked: set[str] = set()
    me = threading.get_ident()

    def listen(event: SerdeEvent) -> None:
        if threading.get_ident() == me and "blocked" in event["kind"]:
            blocked.add(f"{event['module']}.{event['name']}")

    unregister = register_serde_event_listener(listen)
    try:
        yield blocked
    finally:
        unregister()
