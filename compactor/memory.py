"""How a job divides the memory that it may use."""

from __future__ import annotations

import re
from dataclasses import dataclass

from logstore.errors import InvalidOptionError
from logstore.store import StoreOptions

DEFAULT_MEMORY = 512 << 20
BUFFERS = 128 << 20
"""What a job takes whatever it holds: a page of each of the runs that it merges, compressed and
not (64 MB), modules imported when they are needed, and the heaps of its threads."""
MIN_MEMORY = 256 << 20
ROW_BYTES = 2048
"""What a record takes as a Python object, besides its value."""
_SHIFTS = {"MB": 20, "GB": 30}


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes by which a job's process may grow after its start, and the parts for its steps.

    It bounds segments, rows on their way into runs, snapshots, caches and buffers, however many
    segments wait and however large the runs are. On top of it come the interpreter and its
    libraries. Not bounded are the names of the waiting segments, the index of the one thread at
    hand (about 2 KB a record), what that thread's snapshot manifest holds and, a few times over,
    the largest single value: a thread is decided as a whole, and its manifest and a value are
    each one object.
    """

    total: int = DEFAULT_MEMORY

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            InvalidOptionError: it is too little.
        """
        if self.total < MIN_MEMORY:
            raise InvalidOptionError(
                f"a job needs at least {MIN_MEMORY >> 20} MB of memory, not "
                f"{self.total / (1 << 20):g}"
            )

    @classmethod
    def parse(cls, text: str) -> MemoryBudget:
        """Read a size such as `512MB` or `2GB`.

        Raises:
            InvalidOptionError: it is no size, or too little.
        """
        match = re.fullmatch(r"(\d+)\s*(MB|GB)", text.strip(), re.IGNORECASE)
        if match is None:
            raise InvalidOptionError(f"memory is a size such as 512MB or 2GB, not {text!r}")
        return cls(int(match[1]) << _SHIFTS[match[2].upper()])

    @property
    def _held(self) -> int:
        """For what a job holds of the store."""
        return self.total - BUFFERS

    @property
    def batch(self) -> int:
        """For the segments that one commit merges."""
        return min(self._held // 8, 1 << 30)

    @property
    def publishing(self) -> int:
        """For the threads whose manifests are being updated."""
        return self._held // 8

    @property
    def window(self) -> int:
        """For the rows that all merged inputs together have read ahead."""
        return self._held // 32

    @property
    def chunk(self) -> int:
        """For rows that are collected in memory before they go to a temporary file."""
        return self._held // 32

    @property
    def run(self) -> int:
        """For the body of one run, and so its greatest size."""
        return self._held // 16

    def store_options(self) -> StoreOptions:
        """How to open the store of a job: with caches that are part of the budget."""
        return StoreOptions(cache_bytes=self._held // 16, base_bytes=1)
