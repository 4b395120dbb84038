"""A query decodes the threads that its filter leaves, and keeps the columns that it asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow.compute as pc
import pytest
from langchain_core.messages import AIMessage

from logstore import analytics
from logstore.analytics import Reading, StoreSnapshot, decoded
from tests.analytics.test_messages import ask, play
from tests.helpers import Place, memory_place

THREADS = [f"t{number}" for number in range(9)]
FILTERS = (
    "thread_id = 't3'",
    "thread_id IN ('t1', 't8', 'none')",
    "thread_id > 't6' AND role = 'user'",
    "thread_id LIKE 't7%'",
    "ts >= TIMESTAMPTZ '2020-01-01'",
    "ts < TIMESTAMPTZ '2020-01-01'",
    "ts = (SELECT max(ts) FROM messages)",
    "ts IS NULL",
    "role = 'assistant'",
    "text = 'answer of t5'",
    "partition = 1",
    "thread_id = 't4' OR text = 'answer of t2'",
)


@pytest.fixture(scope="module", params=["tail", "compacted"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Some threads in two partitions, one of them pruned."""
    with memory_place(partitions=2) as found:
        for name in THREADS:
            answer = AIMessage(f"answer of {name}", id=f"a-{name}")
            ask(play("delta", found.saver(), [answer]), name, left=1)
        found.saver().prune(["t3"])
        if request.param == "compacted":
            found.compact()
        yield found


@pytest.fixture
def snapshot(place: Place) -> Iterator[StoreSnapshot]:
    """A snapshot that has decoded nothing yet."""
    with analytics.open(place.uri) as found:
        yield found


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that were decoded, as often as they were."""
    found: list[str] = []

    def told(names: Any, partition: int, thread: Any, *more: Any) -> Any:
        found.append(thread.view.thread_id)
        return decoded.rows_of(names, partition, thread, *more)

    monkeypatch.setattr("logstore.analytics.snapshot.rows_of", told)
    return found


def listed(snapshot: StoreSnapshot, query: str) -> list[dict[str, Any]]:
    """A query's rows in one order."""
    return sorted(snapshot.sql(query).read_all().to_pylist(), key=repr)


@pytest.mark.parametrize("table", ["messages", "decoded"])
@pytest.mark.parametrize("where", FILTERS)
def test_a_filter_selects_what_it_would_select_of_all_rows(
    place: Place, snapshot: StoreSnapshot, where: str, table: str
) -> None:
    for old, new in (("role", "kind"), ("text", "json")):
        where = where if table == "messages" else where.replace(old, new)
    asked = "position, thread_id" if table == "messages" else "channel, thread_id"
    found = listed(snapshot, f"SELECT {asked} FROM {table} WHERE {where}")
    with analytics.open(place.uri) as other:
        tables = {name: other.scan(name).read_all() for name in ("messages", table)}
        with other.duckdb() as connection:
            for name, rows in tables.items():
                connection.execute(f"DROP VIEW {name}")
                connection.register(name, rows)
            query = f"SELECT {asked} FROM {table} WHERE {where}"
            expected = connection.sql(query).to_arrow_table().to_pylist()
    assert found == sorted(expected, key=repr)


def test_a_filter_on_threads_decodes_no_others(snapshot: StoreSnapshot, read: list[str]) -> None:
    query = "SELECT count(*) FROM messages WHERE thread_id IN ('t2', 't5')"
    assert snapshot.sql(query).read_all()[0].to_pylist() == [4]
    assert sorted(read) == ["t2", "t5"]
    assert snapshot.scan("tool_calls", filter=pc.field("thread_id") == "t7").read_all() is not None
    assert read[2:] == ["t7"]


def test_a_filter_on_times_decodes_no_threads_of_others(
    snapshot: StoreSnapshot, read: list[str]
) -> None:
    query = "SELECT count(*) FROM messages WHERE ts < TIMESTAMPTZ '2020-01-01'"
    assert snapshot.sql(query).read_all()[0].to_pylist() == [0]
    assert read == []


def test_all_threads_are_decoded_once_and_once_more_for_their_texts(
    snapshot: StoreSnapshot, read: list[str]
) -> None:
    for _ in range(2):
        (row,) = listed(snapshot, "SELECT count(*) AS n FROM messages WHERE role = 'user'")
        assert row == {"n": len(THREADS)}
    assert sorted(read) == THREADS
    for _ in range(2):
        texts = listed(snapshot, "SELECT text FROM messages WHERE role = 'assistant'")
        assert texts == [{"text": f"answer of {name}"} for name in THREADS]
    assert sorted(read) == sorted(THREADS * 2)
    (row,) = listed(snapshot, "SELECT role FROM messages WHERE text = 'answer of t6'")
    assert row == {"role": "assistant"}
    assert len(read) == 2 * len(THREADS)


def test_a_filter_holds_for_every_reading(snapshot: StoreSnapshot) -> None:
    found = snapshot.scan(
        "messages", filter=pc.field("thread_id") == "t4", reading=Reading(history=True)
    )
    assert found.read_all()["message_id"].to_pylist() == ["q-t4", "a-t4"]
