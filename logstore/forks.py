"""Locks that no forked child inherits while another thread holds them."""

from __future__ import annotations

import os
import threading
import weakref

_LOCKS: weakref.WeakSet[threading.Lock] = weakref.WeakSet()
_HELD: list[threading.Lock] = []


def fork_safe_lock() -> threading.Lock:
    """A lock that is free in a child, and what it guards is whole there.

    It is held across a fork, so it must not be held by a thread that forks or that takes
    another such lock: only for a few operations on memory.
    """
    lock = threading.Lock()
    _LOCKS.add(lock)
    return lock


def _acquire_all() -> None:
    for lock in list(_LOCKS):
        lock.acquire()
        _HELD.append(lock)


def _release_all() -> None:
    while _HELD:
        _HELD.pop().release()


os.register_at_fork(before=_acquire_all, after_in_parent=_release_all, after_in_child=_release_all)
