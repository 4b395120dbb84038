"""A store in which every rule of visibility has something to hide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from logstore import analytics
from logstore.analytics import StoreSnapshot
from tests.helpers import Place, Script, memory_place, thread

STORED = ("checkpoints", "writes", "blobs", "snapshots")


def fill(place: Place) -> None:
    """Threads that are plain, forked, clashing, deleted, re-created, pruned, copied, without a checkpoint."""
    saver = place.saver()
    for number in range(6):
        script = Script([saver], f"plain-{number}")
        script.chain(4)
    forked = Script([saver], "forked")
    trunk = forked.chain(3)
    forked.chain(2, trunk[1])
    clashing = Script([saver], "clashing")
    first, _ = clashing.chain(2)
    clashing.again(first)
    clashing.write(first, "late", task="t1")  # the slot is taken
    clashing.write(first, 1, to="__resume__", task="t9")
    clashing.write(first, 2, to="__resume__", task="t9")  # replaces
    Script([saver], "gone").chain(3)
    saver.delete_thread("gone")
    Script([saver], "again").chain(3)
    saver.delete_thread("again")
    Script([saver], "again", _serial=50).chain(2)
    Script([saver], "pruned").chain(4)
    saver.prune(["pruned"])
    Script([saver], "copied").chain(3)
    saver.copy_thread("copied", "copy")
    orphan = Script([saver], "orphan")
    orphan.write("1f0never", "x")
    saver.flush()


def truth(place: Place) -> dict[str, Counter[tuple[Any, ...]]]:
    """What the saver itself answers, thread by thread."""
    found: dict[str, Counter[tuple[Any, ...]]] = {"checkpoints": Counter(), "writes": Counter()}
    with place.fresh() as saver:
        for one in saver.list(None):
            address = one.config["configurable"]
            key = (address["thread_id"], address["checkpoint_ns"], address["checkpoint_id"])
            found["checkpoints"][key] += 1
            for task_id, channel, _ in one.pending_writes or ():
                found["writes"][(*key, task_id, channel)] += 1
    return found


def counted(rows: list[dict[str, Any]], *more: str) -> Counter[tuple[Any, ...]]:
    """How often each address stands in rows."""
    names = ("thread_id", "checkpoint_ns", "checkpoint_id", *more)
    return Counter(tuple(row[name] for name in names) for row in rows)


def everything(snapshot: StoreSnapshot, table: str) -> list[list[dict[str, Any]]]:
    """A table's rows in each of the three ways to them."""
    with snapshot.duckdb() as connection:
        return [
            snapshot.scan(table).read_all().to_pylist(),
            snapshot.dataset(table).to_table().to_pylist(),
            connection.sql(f"SELECT * FROM {table}").to_arrow_table().to_pylist(),
        ]


@pytest.fixture(params=["tail", "compacted", "both", "twice"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """The store before, after, and in the middle of compaction."""
    with memory_place(partitions=2) as found:
        fill(found)
        if request.param != "tail":
            found.compact()
        if request.param in ("both", "twice"):
            more = Script([found.saver()], "plain-0", _serial=70)
            more.chain(3)
            found.saver().delete_thread("plain-1")
            Script([found.saver()], "plain-2").chain(2)  # repeats what is in the run
        if request.param == "twice":
            found.compact()
        yield found


@pytest.fixture
def snapshot(place: Place) -> Iterator[StoreSnapshot]:
    """A snapshot of it."""
    with analytics.open(place.uri) as found:
        yield found


__all__ = ["STORED", "counted", "everything", "fill", "thread", "truth"]
