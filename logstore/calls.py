"""What the parts of the saver share: the store, and calls that must not block a loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from langgraph.checkpoint.base import BaseCheckpointSaver

from logstore.store import LogStore

T = TypeVar("T")


class StoreCalls(BaseCheckpointSaver[str]):
    """A saver on a store."""

    store: LogStore

    async def _call(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.store.executor, function)
