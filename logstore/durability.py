"""When a call returns: the acknowledgement modes."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from cachetools import LRUCache
from langgraph.checkpoint.base import WRITES_IDX_MAP

from logstore.errors import InvalidOptionError
from logstore.forks import fork_safe_lock

_REMEMBERED = 65_536


class Durability(StrEnum):
    """What an acknowledgement means."""

    STRICT = "strict"
    """Every call returns after its records are durable."""
    CHECKPOINT = "checkpoint"
    """`put` returns durable, with all earlier records of the thread; task writes at once."""
    BUFFERED = "buffered"
    """Calls return at once; `flush` and `close` are the barriers."""

    @classmethod
    def parse(cls, value: str) -> Durability:
        """The mode of that name.

        Raises:
            InvalidOptionError: there is none.
        """
        try:
            return cls(value)
        except ValueError:
            raise InvalidOptionError(
                f"durability is one of {', '.join(cls)}, not {value!r}"
            ) from None


class SpecialWrites:
    """The checkpoints at which a step was interrupted or failed, in `checkpoint` mode.

    No put follows such a step, so its writes must be durable by themselves: a finished
    sibling whose write is lost would run twice. From the first write to a special channel
    on, every write to the checkpoint waits.
    """

    def __init__(self) -> None:
        """Remember nothing."""
        self._lock = fork_safe_lock()
        self._seen: LRUCache[tuple[str, str, str], None] = LRUCache(_REMEMBERED)

    def must_wait(self, key: tuple[str, str, str], channels: Iterable[str]) -> bool:
        """Whether a write to these channels at the checkpoint has to be durable at once."""
        special = any(channel in WRITES_IDX_MAP for channel in channels)
        with self._lock:
            if special:
                self._seen[key] = None
            return key in self._seen

    def forget(self, thread_id: str) -> None:
        """A thread was deleted."""
        with self._lock:
            for key in [k for k in self._seen if k[0] == thread_id]:
                del self._seen[key]
