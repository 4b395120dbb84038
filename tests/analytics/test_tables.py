"""What shows in the tables is what the saver shows, by every way to them."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest
from langgraph.channels.delta import DeltaChannel

from logstore import analytics
from logstore.analytics import StoreSnapshot
from logstore.errors import InvalidOptionError, MissingDataError, QueryError
from logstore.testing.servers import s3_client
from tests.analytics.conftest import STORED, counted, everything, truth
from tests.helpers import Place, Script, append, memory_place, s3_uri


def test_checkpoints_and_writes_are_those_that_the_saver_shows(
    place: Place, snapshot: StoreSnapshot
) -> None:
    expected = truth(place)
    assert expected["checkpoints"].total() > 25
    for rows in everything(snapshot, "checkpoints"):
        assert counted(rows) == expected["checkpoints"]
    for rows in everything(snapshot, "writes"):
        assert counted(rows, "task_id", "channel") == expected["writes"]


@pytest.mark.parametrize("table", STORED)
def test_all_ways_to_a_table_give_the_same_rows(snapshot: StoreSnapshot, table: str) -> None:
    scanned, dataset, sql = (
        sorted(rows, key=lambda row: (row["stamp"], row["writer"], row["checkpoint_id"]))
        for rows in everything(snapshot, table)
    )
    assert scanned == dataset == sql


def test_a_deleted_thread_shows_in_no_table(snapshot: StoreSnapshot) -> None:
    for table in (*STORED, "threads", "messages", "tool_calls", "decoded"):
        names = set(snapshot.scan(table, columns=["thread_id"]).read_all()["thread_id"].to_pylist())
        assert not names & {"gone", "orphan"}, table


def test_a_pruned_checkpoint_shows_in_no_table(snapshot: StoreSnapshot) -> None:
    rows = snapshot.scan("checkpoints", thread_id="pruned").read_all().to_pylist()
    assert [row["checkpoint_id"] for row in rows] == ["1f000004"]
    assert snapshot.scan("writes", thread_id="pruned").read_all().num_rows == 0


def test_parents_are_those_that_the_saver_shows(place: Place, snapshot: StoreSnapshot) -> None:
    expected = {}
    with place.fresh() as saver:
        for one in saver.list(None):
            address = one.config["configurable"]
            key = (address["thread_id"], address["checkpoint_ns"], address["checkpoint_id"])
            parent = one.parent_config and one.parent_config["configurable"]["checkpoint_id"]
            expected[key] = parent
    assert expected[("pruned", "", "1f000004")] is None
    for rows in everything(snapshot, "checkpoints"):
        assert {
            (row["thread_id"], row["checkpoint_ns"], row["checkpoint_id"]): row[
                "parent_checkpoint_id"
            ]
            for row in rows
        } == expected


def test_threads_are_counted_as_the_saver_would(place: Place, snapshot: StoreSnapshot) -> None:
    rows = {row["thread_id"]: row for row in snapshot.scan("threads").read_all().to_pylist()}
    with place.fresh() as saver:
        for name, row in rows.items():
            found = list(saver.list({"configurable": {"thread_id": name}}))
            assert row["checkpoints"] == len(found)
            assert row["head"] == found[0].config["configurable"]["checkpoint_id"]
    assert rows.keys() == {key[0] for key in truth(place)["checkpoints"]}


def test_projection_and_filters_reach_every_column(snapshot: StoreSnapshot) -> None:
    everything = snapshot.scan("writes").read_all()
    (partition,) = {
        row["partition"] for row in everything.to_pylist() if row["thread_id"] == "forked"
    }
    for expression in (
        pc.field("partition") == partition,
        pc.field("thread_id") == "forked",
        pc.field("idx") < 0,
        pc.field("ts") > everything["ts"][0],
        pc.field("kind") == "blob",
        pc.field("channel").isin(["d", "x"]) & (pc.field("partition") != partition),
    ):
        found = snapshot.scan("writes", columns=["task_id", "thread_id"], filter=expression)
        assert found.schema.names == ["task_id", "thread_id"]
        expected = everything.filter(expression).select(["task_id", "thread_id"])
        order = [("thread_id", "ascending"), ("task_id", "ascending")]
        assert found.read_all().sort_by(order) == expected.sort_by(order)


def test_one_thread_can_be_asked_for(snapshot: StoreSnapshot) -> None:
    for table in (*STORED, "decoded"):
        expected = [
            r for r in snapshot.scan(table).read_all().to_pylist() if r["thread_id"] == "clashing"
        ]
        found = snapshot.scan(table, thread_id="clashing").read_all().to_pylist()
        assert sorted(map(repr, found)) == sorted(map(repr, expected))
        assert found or table == "snapshots"


def test_a_snapshot_does_not_change_under_writers_and_compaction(place: Place) -> None:
    with analytics.open(place.uri) as snapshot:
        before = snapshot.scan("checkpoints").read_all().num_rows
        Script([place.saver()], "new").chain(3)
        place.saver().delete_thread("forked")
        place.compact()
        place.compact()
        assert snapshot.scan("checkpoints").read_all().num_rows == before
        with snapshot.duckdb() as connection:
            assert connection.sql("SELECT count(*) FROM checkpoints").fetchall() == [(before,)]
        with snapshot.refresh() as fresh:
            assert (
                counted(fresh.scan("checkpoints").read_all().to_pylist())
                == truth(place)["checkpoints"]
            )


def test_a_snapshot_that_the_compactor_took_back_does_not_show() -> None:
    channels = {"d": DeltaChannel(append, list, snapshot_frequency=2)}
    with memory_place() as place:
        script = Script([place.saver()])
        made = script.chain(7)
        place.compact(channels=channels)
        with analytics.open(place.uri) as snapshot:
            before = counted(snapshot.scan("snapshots").read_all().to_pylist(), "channel")
        script.write(made[0], "late", task="t7")
        place.compact()  # without a reducer the snapshots above are only taken back
        with analytics.open(place.uri) as snapshot:
            for rows in everything(snapshot, "snapshots"):
                assert counted(rows, "channel").keys() == place.snapshots()
    assert before.total() == 3
    assert not place.snapshots()


def test_what_does_not_exist_is_named() -> None:
    with memory_place() as place, analytics.open(place.uri) as snapshot:
        with pytest.raises(InvalidOptionError, match="there are threads, checkpoints"):
            snapshot.scan("message")
        with pytest.raises(InvalidOptionError, match="no column 'nope'; it has partition"):
            snapshot.scan("writes", columns=["nope"])
        with pytest.raises(InvalidOptionError, match="use scan"):
            snapshot.dataset("messages")
        with pytest.raises(QueryError, match="nope"):
            snapshot.sql("SELECT nope FROM writes")
        assert snapshot.sql("SELECT count(*) FROM messages").read_all()[0].to_pylist() == [0]
    with pytest.raises(MissingDataError, match=r"no store\.json"):
        analytics.open("memory://nowhere")


def test_no_query_can_load_an_extension() -> None:
    with (
        memory_place() as place,
        analytics.open(place.uri) as snapshot,
        snapshot.duckdb() as connection,
        pytest.raises(Exception, match="httpfs"),
    ):
        connection.sql("SELECT * FROM read_parquet('s3://bucket/key')").fetchall()


@pytest.mark.s3
def test_a_store_on_s3_is_read_through_its_own_client(moto_endpoint: str) -> None:
    place = Place(s3_uri(), {"client": s3_client(moto_endpoint)}).create(partitions=1)
    Script([place.saver()]).chain(4)
    place.compact()
    with analytics.open(place.uri, **place.backend) as snapshot:
        for rows in everything(snapshot, "checkpoints"):
            assert len(rows) == 4
    place.close()
