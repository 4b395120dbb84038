"""What a process's next segment builds on, so that readers can close the set.

A LIST is no snapshot: its first page may miss a segment that a later page's segment builds
on. So each segment names, for each of its threads, the unmerged segments that its writer
had written or read; readers and compactors fetch a named segment even if no page showed it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence


class Lineage:
    """For each thread of this process: the newest segments that are known and not merged."""

    def __init__(self) -> None:
        """Start knowing nothing."""
        self._lock = threading.Lock()
        self._frontier: dict[str, frozenset[str]] = {}

    def builds_on(self, thread_id: str) -> Sequence[str]:
        """The keys that the next segment names for the thread."""
        with self._lock:
            return sorted(self._frontier.get(thread_id, ()))

    def wrote(self, key: str, named: Mapping[str, Collection[str]]) -> None:
        """A segment was stored; it stands for what it names.

        What was read meanwhile it does not name, and the next one must.

        Args:
            key: the segment's key.
            named: its threads, each with the keys that it names.
        """
        with self._lock:
            for thread_id, keys in named.items():
                known = self._frontier.get(thread_id, frozenset())
                self._frontier[thread_id] = known.difference(keys) | {key}

    def read(
        self, thread_id: str, tail: Mapping[str, Sequence[str]], merged: Collection[str]
    ) -> None:
        """A read has seen these unmerged segments and what each of them names.

        Args:
            thread_id: the thread that was read.
            tail: segment keys, with the keys that each builds on.
            merged: keys that a manifest names as merged.
        """
        named = {key for keys in tail.values() for key in keys}
        newest = {key for key in tail if key not in named}
        with self._lock:
            own = {
                k for k in self._frontier.get(thread_id, ()) if k not in merged and k not in named
            }
            frontier = frozenset(newest | own)
            if frontier:
                self._frontier[thread_id] = frontier
            else:
                self._frontier.pop(thread_id, None)
