"""What a process remembers in memory is usable in its forked children."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from logstore.durability import SpecialWrites
from logstore.errors import DeletedCheckpointError
from logstore.maintenance import DeletedCheckpoints


class Slow(str):
    """A name whose hash takes so long that a fork comes in between."""

    def __hash__(self) -> int:
        HASHING.set()
        time.sleep(0.3)
        return super().__hash__()


HASHING = threading.Event()


def special_writes() -> Callable[[str], bool]:
    writes = SpecialWrites()
    writes.must_wait(("t", "", "1"), ["__error__"])
    return lambda thread_id: writes.must_wait((thread_id, "", "1"), ["x"])


def deleted_checkpoints() -> Callable[[str], bool]:
    deleted = DeletedCheckpoints()
    deleted.remember([("t", "", "1")])

    def is_known(thread_id: str) -> bool:
        try:
            deleted.check((thread_id, "", "1"))
        except DeletedCheckpointError:
            return True
        return False

    return is_known


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("make", [special_writes, deleted_checkpoints])
def test_a_child_that_is_forked_while_a_lock_is_held_goes_on(
    make: Callable[[], Callable[[str], bool]],
) -> None:
    is_known = make()
    HASHING.clear()
    busy = threading.Thread(target=is_known, args=(Slow("t"),))
    busy.start()
    assert HASHING.wait(5)
    pid = os.fork()
    if pid == 0:
        signal.alarm(5)  # a child that hangs is killed
        os._exit(0 if is_known("t") and not is_known("u") else 1)
    assert os.waitpid(pid, 0)[1] == 0
    busy.join()
