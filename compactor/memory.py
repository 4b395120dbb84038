"""How a job divides the memory that it may use."""

from __future__ import annotations

import re
from dataclasses import dataclass

from logstore.errors import InvalidOptionError
from logstore.store import StoreOptions

DEFAULT_MEMORY = 512 << 20
MIN_MEMORY = 64 << 20
ROW_BYTES = 2048
"""What a record takes as a Python object, besides its value."""
_SHIFTS = {"MB": 20, "GB": 30}


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes for what a job holds of the store, and the parts that its steps may use.

    It bounds segments, rows on their way into runs, snapshots, and caches, however many
    segments wait and however large the runs are. On top of it come the interpreter, the
    libraries and the buffers that Parquet and zstd need at work (some 60 MB), the names of the
    waiting segments, the index of the one thread at hand (about 2 KB a record) and, a few times
    over, the largest single value.
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
    def batch(self) -> int:
        """For the segments that one commit merges."""
        return min(self.total // 8, 1 << 30)

    @property
    def publishing(self) -> int:
        """For the threads whose manifests are being updated."""
        return self.total // 8

    @property
    def window(self) -> int:
        """For the rows that all merged inputs together have read ahead."""
        return self.total // 32

    @property
    def chunk(self) -> int:
        """For rows that are collected in memory before they go to a temporary file."""
        return self.total // 32

    @property
    def run(self) -> int:
        """For the body of one run, and so its greatest size."""
        return self.total // 16

    def store_options(self) -> StoreOptions:
        """How to open the store of a job: with caches that are part of the budget."""
        return StoreOptions(cache_bytes=self.total // 16, base_bytes=1)
