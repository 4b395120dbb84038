"""The saver's calls that handle whole threads and runs: delete, prune, copy."""

from __future__ import annotations

from collections.abc import Sequence

from logstore.calls import StoreCalls
from logstore.durability import SpecialWrites
from logstore.encode import Target
from logstore.errors import InvalidOptionError
from logstore.maintenance import Maintenance


class ThreadUpkeep(StoreCalls):
    """Deletes, prunes and copies; no value is decoded for it."""

    _maintenance: Maintenance
    _special: SpecialWrites

    def delete_thread(self, thread_id: str) -> None:
        """Delete all of a thread that this call can see, durably; re-creating it works.

        The bytes go with the next compaction and its grace.
        """
        thread_id = Target.check_thread_id(thread_id)
        self._special.forget(thread_id)
        self._maintenance.delete_thread(thread_id)

    async def adelete_thread(self, thread_id: str) -> None:
        """Like `delete_thread`, without blocking the loop."""
        await self._call(lambda: self.delete_thread(thread_id))

    def prune(
        self, thread_ids: Sequence[str], *, strategy: str = "keep_latest", newest: int = 1
    ) -> None:
        """Delete threads, or hide all but the newest checkpoints of each namespace.

        It is safe for delta channels: what a kept checkpoint is rebuilt from stays until a
        snapshot of the compactor stands for it. A kept checkpoint whose parent is hidden shows
        no parent. What is saved meanwhile is neither seen nor hidden.

        Args:
            thread_ids: the threads.
            strategy: `keep_latest` or `delete`.
            newest: how many checkpoints of a namespace `keep_latest` keeps.

        Raises:
            InvalidOptionError: there is no such strategy, or `thread_ids` is one string.
        """
        if isinstance(thread_ids, str):
            raise InvalidOptionError(
                f"thread_ids is a sequence of thread ids, not one string; pass [{thread_ids!r}]"
            )
        if newest < 1:
            raise InvalidOptionError(f"newest is at least 1, not {newest}")
        names = [Target.check_thread_id(thread_id) for thread_id in thread_ids]
        self._maintenance.prune(names, strategy, newest)

    async def aprune(
        self, thread_ids: Sequence[str], *, strategy: str = "keep_latest", newest: int = 1
    ) -> None:
        """Like `prune`, without blocking the loop."""
        await self._call(lambda: self.prune(thread_ids, strategy=strategy, newest=newest))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Hide the checkpoints of runs, in all threads, and the runs' writes at other ones.

        Checkpoints that came after them keep their values, and show no parent if it is hidden.
        Looking for the runs reads an index column of the whole store.
        """
        if isinstance(run_ids, str):
            raise InvalidOptionError(
                f"run_ids is a sequence of run ids, not one string; pass [{run_ids!r}]"
            )
        self._maintenance.delete_for_runs([str(run_id) for run_id in run_ids])

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Like `delete_for_runs`, without blocking the loop."""
        await self._call(lambda: self.delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread, whole; the two are independent afterwards.

        Values are copied as they are stored. A thread of many segments appears in the copy
        oldest part first; if the call fails half-way, delete the copy and repeat.

        Raises:
            ThreadExistsError: the target has checkpoints.
        """
        self._maintenance.copy_thread(
            Target.check_thread_id(source_thread_id), Target.check_thread_id(target_thread_id)
        )

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Like `copy_thread`, without blocking the loop."""
        await self._call(lambda: self.copy_thread(source_thread_id, target_thread_id))
