"""Memory that was freed, and that allocators keep."""

from __future__ import annotations

import ctypes

import pyarrow as pa

_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGE_BLOCK = 128 << 10


def return_freed() -> None:
    """Give freed memory back to the system, between two steps that hold much."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def limit_heap() -> None:
    """Keep allocators from holding on to freed memory, for a process that does one job.

    By default glibc gives each thread a heap of its own, and Arrow's pool keeps what threads
    that have ended had: over many batches that is several times what was ever in use.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
