"""What LangGraph and its users expect of a saver, call by call."""

from __future__ import annotations

import threading
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from logstore import InvalidNameError, MissingDataError, ParentCycleError
from tests.helpers import (
    Config,
    Place,
    Script,
    append,
    assert_same_tuple,
    both,
    linear_graph,
    thread,
)

D = {"d": DeltaChannel(append, list, snapshot_frequency=2)}
Job = Callable[[Place], None]


def nothing(place: Place) -> None:
    pass


def folding(place: Place) -> None:
    place.compact(channels=D)


def twice(place: Place) -> None:
    place.compact(channels=D)
    place.compact(channels=D)


jobs = pytest.mark.parametrize("job", [nothing, folding, twice])


def checkpoint(checkpoint_id: str, **channels: Any) -> Any:
    return {
        "v": 4,
        "id": checkpoint_id,
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": channels,
        "channel_versions": dict.fromkeys(channels, f"{checkpoint_id}.1"),
        "versions_seen": {},
        "updated_channels": None,
    }


def put(
    saver: Any, config: Config, checkpoint_id: str, metadata: Any = None, **channels: Any
) -> Any:
    body = checkpoint(checkpoint_id, **channels)
    config = {"configurable": {"checkpoint_ns": "", **config["configurable"]}}
    return saver.put(config, body, metadata or {"source": "loop"}, body["channel_versions"])


# -- tuples and lists -----------------------------------------------------------------------


@jobs
def test_each_tuple_of_a_list_equals_get_tuple_of_its_config(place: Place, job: Job) -> None:
    saver, model = place.saver(), InMemorySaver()
    for ns in ("", "sub:1"):
        script = Script([saver, model], ns=ns)
        ids = script.chain(5)
        script.writes(ids[2], [("__error__", "e"), ("x", 1)], "t0")
        script.put(ids[1], updates=["x"], values={"x": {"a": [1]}})
    job(place)
    with place.fresh() as fresh:
        listed = list(fresh.list(thread()))
        assert len(listed) == 12
        for found in listed:
            again = fresh.get_tuple(found.config)
            assert again is not None
            assert again._asdict() == found._asdict()
            assert_same_tuple(found, model.get_tuple(found.config))
        ids = [t.checkpoint["id"] for t in listed]
        assert ids == sorted(ids, reverse=True)


@jobs
def test_a_tuple_has_every_channel_whichever_step_wrote_it(place: Place, job: Job) -> None:
    saver = place.saver()
    script = Script([saver])
    head = script.put(updates=["a", "b", "c"], values={"a": 1, "b": None, "c": []})
    for number in range(6):
        head = script.put(head, updates=["n"], values={"n": number})
        job(place)
    with place.fresh() as fresh:
        found = fresh.get_tuple(thread())
        assert found is not None
        assert found.checkpoint["channel_values"] == {"a": 1, "b": None, "c": [], "n": 5}
        for number, entry in enumerate(
            sorted(fresh.list(thread()), key=lambda t: t.checkpoint["id"])
        ):
            expected = {"a": 1, "b": None, "c": [], **({"n": number - 1} if number else {})}
            assert entry.checkpoint["channel_values"] == expected


@jobs
def test_a_channel_that_lost_its_value_has_none(place: Place, job: Job) -> None:
    saver = place.saver()
    script = Script([saver])
    first = script.put(updates=["x"], values={"x": 1})
    job(place)
    script.put(first, updates=["x"])
    job(place)
    with place.fresh() as fresh:
        found = fresh.get_tuple(thread())
        assert found is not None
        assert "x" not in found.checkpoint["channel_values"]
        first_again = fresh.get_tuple(script.config(first))
        assert first_again is not None
        assert first_again.checkpoint["channel_values"] == {"x": 1}


@jobs
def test_a_list_filters_before_it_limits(place: Place, job: Job) -> None:
    saver = place.saver()
    for number in range(10):
        put(saver, thread(), f"{number:03}", {"source": "loop", "even": number % 2 == 0})
    job(place)
    with place.fresh() as fresh:
        found = [t.checkpoint["id"] for t in fresh.list(thread(), filter={"even": True}, limit=3)]
        assert found == ["008", "006", "004"]
        assert list(fresh.list(thread(), limit=0)) == []
        assert len(list(fresh.list(thread(), limit=100))) == 10
        assert len(list(fresh.list(thread(), limit=None))) == 10


@jobs
def test_before_counts_by_its_id_alone_over_namespaces(place: Place, job: Job) -> None:
    saver = place.saver()
    spaces = ["", "a|b:1", "a:b|c:d|e"]
    for number in range(6):
        put(saver, thread(ns=spaces[number % 3]), f"{number:03}")
    job(place)
    with place.fresh() as fresh:
        everywhere = fresh.list(thread(), before=thread("other", "elsewhere", "004"))
        assert [t.checkpoint["id"] for t in everywhere] == ["003", "002", "001", "000"]
        root = fresh.list(thread(ns=""), before=thread(ns="a|b:1", checkpoint_id="004"))
        assert [t.checkpoint["id"] for t in root] == ["003", "000"]
        for number, ns in enumerate(spaces):
            found = [t.checkpoint["id"] for t in fresh.list(thread(ns=ns))]
            assert found == [f"{number + 3:03}", f"{number:03}"]
        assert [t.checkpoint["id"] for t in fresh.list(thread(checkpoint_id="002"))] == ["002"]
        assert list(fresh.list(thread(checkpoint_id="none"))) == []
        assert list(fresh.list(thread("nobody"))) == []
        assert len(list(fresh.list(thread(), before=thread()))) == 6


METADATA = {
    "source": "loop",
    "step": 3,
    "a.b": "dotted",
    "quo'te\"": 1,
    "none": None,
    "nested": {"x": {"y": [1, 2]}},
    "true": True,
    "one": 1,
    "list": ["a", 1],
    "é": "ü",
}


@jobs
@pytest.mark.parametrize("key", METADATA)
def test_a_filter_finds_what_equals_it(place: Place, job: Job, key: str) -> None:
    saver = place.saver()
    put(saver, thread(), "001", METADATA)
    put(saver, thread(), "002", {"source": "input"})
    job(place)
    with place.fresh() as fresh:
        found = list(fresh.list(thread(), filter={key: METADATA[key]}))
        assert [t.checkpoint["id"] for t in found] == ["001"]
        assert list(fresh.list(None, filter={key: METADATA[key]}))[0].checkpoint["id"] == "001"


@pytest.mark.parametrize(
    "filter",
    [
        {"a": {"b": "dotted"}},
        {"nested": {"x": {"y": [1]}}},
        {"nested": {"x": {}}},
        {"nested": {}},
        {"nested.x.y": [1, 2]},
        {"true": 1},
        {"one": True},
        {"none": "None"},
        {"step": "3"},
        {"source": ""},
        {"absent": None},
        {"source": "loop", "absent": 1},
        {"list": ["a"]},
        {"source": "loop' OR '1'='1"},
    ],
    ids=str,
)
def test_a_filter_that_matches_nothing_finds_nothing(place: Place, filter: dict[str, Any]) -> None:
    saver = place.saver()
    put(saver, thread(), "001", METADATA)
    assert list(saver.list(thread(), filter=filter)) == []
    assert list(saver.list(None, filter=filter)) == []


# -- names -------------------------------------------------------------------------------------

NAMES = [
    "a",
    "a/",
    "a/b",
    "a%2Fb",
    "..",
    ".",
    " ",
    "a ",
    "A",
    unicodedata.normalize("NFC", "é"),
    unicodedata.normalize("NFD", "é"),
    "😀",
    "nul\0in",
    "new\nline",
    "back\\slash",
    "x" * 2000,
    "x" * 1999 + "y",
    "user1",
    "user10",
    "manifest",
    "-1",
    "a|b:c",
    "'; --",
    "%00",
    "CON",
]


@jobs
@pytest.mark.parametrize("any_place", ["memory", "file"], indirect=True)
def test_threads_of_every_name_are_distinct_and_come_back_unchanged(
    any_place: Place, job: Job
) -> None:
    saver = any_place.saver()
    for number, name in enumerate(NAMES):
        put(saver, thread(name), f"{number:03}", x=name)
    job(any_place)
    with any_place.fresh() as fresh:
        for number, name in enumerate(NAMES):
            found = fresh.get_tuple(thread(name))
            assert found is not None
            assert found.config["configurable"]["thread_id"] == name
            assert found.checkpoint["id"] == f"{number:03}"
            assert found.checkpoint["channel_values"] == {"x": name}
            assert len(list(fresh.list(thread(name)))) == 1
        listed = {t.config["configurable"]["thread_id"] for t in fresh.list(None)}
        assert listed == set(NAMES)


@pytest.mark.s3
def test_threads_of_every_name_are_distinct_on_a_real_s3_server(
    seaweedfs_place: Place,
) -> None:
    saver = seaweedfs_place.saver()
    for number, name in enumerate(NAMES):
        put(saver, thread(name), f"{number:03}", x=name)
    seaweedfs_place.compact(channels=D)
    with seaweedfs_place.fresh() as fresh:
        listed = {
            t.config["configurable"]["thread_id"]: t.checkpoint["id"] for t in fresh.list(None)
        }
        assert listed == {name: f"{number:03}" for number, name in enumerate(NAMES)}
        for name in NAMES:
            found = fresh.get_tuple(thread(name))
            assert found is not None
            assert found.checkpoint["channel_values"] == {"x": name}


@pytest.fixture
def seaweedfs_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    from logstore.testing.servers import s3_client
    from tests.helpers import s3_uri

    client = s3_client(request.getfixturevalue("seaweedfs_endpoint"))
    found = Place(s3_uri(), {"client": client})
    yield found
    found.close()
    client.close()


@jobs
def test_namespaces_channels_ids_and_tasks_have_names_of_any_kind(place: Place, job: Job) -> None:
    saver, model = place.saver(), InMemorySaver()
    for number, name in enumerate(NAMES):
        for one in (saver, model):
            config = put(one, thread(ns=name), f"{number:03}{name}", {"source": name}, **{name: 1})
            one.put_writes(config, [(name, name), ("d", [name])], name, name)
    job(place)
    with place.fresh() as fresh:
        for expected in model.list(thread()):
            ns = expected.config["configurable"]["checkpoint_ns"]
            assert_same_tuple(fresh.get_tuple(thread(ns=ns)), model.get_tuple(thread(ns=ns)))
            assert_same_tuple(fresh.get_tuple(expected.config), expected)
        assert {t.config["configurable"]["checkpoint_ns"] for t in fresh.list(None)} == set(NAMES)


@pytest.mark.parametrize(
    "config",
    [
        {"configurable": {}},
        {"configurable": {"thread_id": None}},
        {"configurable": {"thread_id": "x" * 9000}},
        {"configurable": {"thread_id": "\ud800"}},
    ],
)
def test_an_impossible_thread_id_is_refused_and_nothing_is_sent(
    place: Place, config: Config
) -> None:
    saver = place.saver()
    for call in (
        lambda: saver.get_tuple(config),
        lambda: put(saver, config, "1"),
        lambda: saver.put_writes(config, [("x", 1)], "t"),
        lambda: list(saver.list(config)),
    ):
        with pytest.raises(InvalidNameError):
            call()
    assert place.keys("log/") == []


def test_a_number_and_its_text_are_one_thread(place: Place) -> None:
    saver = place.saver()
    put(saver, thread(1), "1")  # type: ignore[arg-type]
    found = saver.get_tuple(thread("1"))
    assert found is not None
    assert found.config["configurable"]["thread_id"] == "1"
    saver.delete_thread("1")
    assert saver.get_tuple(thread(1)) is None  # type: ignore[arg-type]


# -- metadata and values --------------------------------------------------------------------------


@jobs
def test_metadata_comes_back_exactly(place: Place, job: Job) -> None:
    saver, model = place.saver(), InMemorySaver()
    metadata = {
        **METADATA,
        "nul\0key": "nul\0value",
        "deep": {"nul": "kept\0"},
        "message": AIMessage("hello", id="m1", tool_calls=[]),
        "writes": {"n": [HumanMessage("hi", id="h1")]},
        "counters_since_delta_snapshot": {"d": (3, 7)},
        "parents": {"": "x"},
        "bytes": b"\0\xff",
        "float": float("inf"),
        "tuple": (1, (2, 3)),
        "set": {1, 2},
        "surrogate": "\ud800",
    }
    config = {
        "configurable": {"thread_id": "t", "checkpoint_ns": "", "user": "u\0v", "__private": 1},
        "metadata": {"run_id": "r1", "owner": "o", "list": ["not taken"]},
    }
    body = checkpoint("001", x=1)
    for one in (saver, model):
        one.put(config, body, metadata, body["channel_versions"])  # type: ignore[arg-type]
    job(place)
    expected = model.get_tuple(thread())
    assert expected is not None
    assert expected.metadata["run_id"] == "r1"
    with place.fresh() as fresh:
        found = fresh.get_tuple(thread())
        assert_same_tuple(found, expected)
        assert found is not None
        counters = found.metadata["counters_since_delta_snapshot"]["d"]
        assert type(counters) is type(expected.metadata["counters_since_delta_snapshot"]["d"])
        assert found.metadata["message"] == metadata["message"]
        assert [t.metadata for t in fresh.list(None, filter={"user": "uv"})] == [expected.metadata]


@jobs
def test_a_value_without_a_version_comes_back_with_its_checkpoint(place: Place, job: Job) -> None:
    saver = place.saver()
    body = checkpoint("001", x=1)
    body["channel_values"]["loose"] = {"no": "version"}
    saver.put(thread(ns=""), body, {"source": "loop"}, {"x": "001.1"})
    other = checkpoint("002", x=2)
    saver.put(thread(ns="", checkpoint_id="001"), other, {"source": "loop"}, {"x": "002.1"})
    job(place)
    with place.fresh() as fresh:
        first, head = fresh.get_tuple(thread(checkpoint_id="001")), fresh.get_tuple(thread())
        assert first is not None
        assert head is not None
        assert first.checkpoint["channel_values"] == {"x": 1, "loose": {"no": "version"}}
        assert head.checkpoint["channel_values"] == {"x": 2}


@jobs
def test_a_snapshot_outside_new_versions_is_kept_with_its_checkpoint(
    place: Place, job: Job
) -> None:
    """A copied checkpoint carries its snapshot along, and no version of it is new."""
    saver = place.saver()
    script = Script([saver])
    script.chain(2)
    body = checkpoint("2", d=_DeltaSnapshot(["carried"]))
    body["channel_versions"]["d"] = "never-put.1"
    saver.put(thread(ns=""), body, {"source": "fork"}, {})
    job(place)
    child = checkpoint("3")
    child["channel_versions"] = {"d": "never-put.1"}
    saver.put_writes(thread(ns="", checkpoint_id="2"), [("d", ["more"])], "t1")
    saver.put(thread(ns="", checkpoint_id="2"), child, {"source": "loop"}, {})
    job(place)
    with place.fresh() as fresh:
        found = fresh.get_tuple(thread(checkpoint_id="2"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"d": _DeltaSnapshot(["carried"])}
        history = fresh.get_delta_channel_history(config=thread(), channels=["d"])["d"]
        assert history["seed"] == _DeltaSnapshot(["carried"])
        assert [value for _, _, value in history["writes"]] == [["more"]]


@jobs
def test_a_snapshot_outside_new_versions_gives_way_to_the_versions_own_value(
    place: Place, job: Job
) -> None:
    saver = place.saver()
    body = checkpoint("1", d=_DeltaSnapshot(["own"]))
    saver.put(thread(ns=""), body, {"source": "loop"}, body["channel_versions"])
    job(place)
    copied = checkpoint("2", d=_DeltaSnapshot(["carried"]))
    copied["channel_versions"] = dict(body["channel_versions"])
    saver.put(thread(ns="", checkpoint_id="1"), copied, {"source": "fork"}, {})
    job(place)
    with place.fresh() as fresh:
        found = fresh.get_tuple(thread())
        assert found is not None
        assert found.checkpoint["channel_values"] == {"d": _DeltaSnapshot(["own"])}


def test_a_caller_that_changes_its_values_afterwards_changes_nothing_stored(place: Place) -> None:
    saver = place.saver(durability="buffered")
    value, metadata, write = {"k": [1]}, {"source": "loop", "m": [1]}, [["w"]]
    body = checkpoint("1", x=value)
    saver.put(thread(ns=""), body, metadata, body["channel_versions"])  # type: ignore[arg-type]
    saver.put_writes(thread(ns="", checkpoint_id="1"), [("d", write)], "t1")
    value["k"].append(2)
    metadata["m"].append(2)  # type: ignore[attr-defined]
    body["channel_versions"]["x"] = "changed"
    body["id"] = "changed"
    write.clear()
    saver.flush()
    for one in (saver, place.saver()):
        found = one.get_tuple(thread())
        assert found is not None
        assert found.checkpoint["channel_values"] == {"x": {"k": [1]}}
        assert found.metadata["m"] == [1]  # type: ignore[typeddict-item]
        assert found.pending_writes == [("t1", "d", [["w"]])]


@jobs
def test_what_a_reader_changes_does_not_reach_other_readers(place: Place, job: Job) -> None:
    saver = place.saver()
    script = Script([saver])
    ids = script.chain(5)
    script.put(ids[-1], updates=["x"], values={"x": {"k": [1]}})
    job(place)
    for _ in range(2):
        found = saver.get_tuple(thread())
        assert found is not None
        assert found.checkpoint["channel_values"]["x"] == {"k": [1]}
        found.checkpoint["channel_values"]["x"]["k"].append(2)
        found.checkpoint["channel_versions"].clear()
        found.metadata.clear()  # type: ignore[attr-defined]
        history = saver.get_delta_channel_history(config=thread(), channels=["d"])["d"]
        assert "spoilt" not in str(history)
        for _, _, value in history["writes"]:
            value.append("spoilt")
        if "seed" in history:
            history["seed"].value.append("spoilt")


def test_a_value_that_cannot_be_serialised_stores_nothing(place: Place) -> None:
    saver = place.saver()
    with pytest.raises(TypeError):
        put(saver, thread(), "1", x=threading.Lock())
    with pytest.raises(TypeError):
        saver.put_writes(thread(checkpoint_id="1"), [("a", 1), ("b", threading.Lock())], "t")
    assert place.keys("log/") == []
    put(saver, thread(), "2", x=1)
    assert saver.get_tuple(thread()) is not None


# -- writes -----------------------------------------------------------------------------------------


@jobs
def test_special_writes_keep_their_indices_and_the_last_wins(place: Place, job: Job) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    at = script.put()
    batches: list[list[tuple[str, Any]]] = [
        [("__error__", "first"), ("d", ["one"])],
        [("d", ["ignored"]), ("__interrupt__", "i1"), ("x", 1)],
        [("__error__", "second"), ("d", ["late"]), ("__resume__", "r1"), ("x", "ignored")],
        [("__resume__", "r2"), ("__scheduled__", "s"), ("__interrupt__", "i2"), ("y", 5)],
        [],
    ]
    for batch in batches:
        for task in ("t2", "t1"):
            script.writes(at, batch, task, path="~p")
        job(place)
        with place.fresh() as fresh:
            assert_same_tuple(fresh.get_tuple(thread()), model.get_tuple(thread()))
            assert_same_tuple(next(fresh.list(thread())), model.get_tuple(thread()))
    assert set(WRITES_IDX_MAP) >= {"__error__", "__interrupt__", "__resume__", "__scheduled__"}


def test_an_empty_batch_stores_nothing(place: Place) -> None:
    saver = place.saver()
    saver.put_writes(thread(ns="", checkpoint_id="1"), [], "t1")
    assert place.keys("log/") == []


@jobs
def test_pending_writes_come_in_the_order_of_path_task_and_index(place: Place, job: Job) -> None:
    saver = place.saver()
    script = Script([saver])
    at = script.put()
    tasks = [
        ("~b", "t1"),
        ("", "z"),
        ("~a", "t9"),
        ("~~exit", "a"),
        ("~a", "t5"),
        ("é", "t"),
        ("z", "t0"),
    ]
    for path, task in tasks:
        script.writes(at, [("x", 0), ("d", [1]), ("y", 2)], task, path)
        job(place)
    expected = [
        (task, channel)
        for path, task in sorted(tasks, key=lambda t: (t[0].encode(), t[1].encode()))
        for channel in ("x", "d", "y")
    ]
    with place.fresh() as fresh:
        for found in (fresh.get_tuple(thread()), next(fresh.list(thread()))):
            assert found is not None
            assert [(task, channel) for task, channel, _ in found.pending_writes or ()] == expected


@jobs
def test_a_checkpoint_that_has_only_writes_yet_is_not_shown(place: Place, job: Job) -> None:
    saver = place.saver()
    script = Script([saver])
    script.write("1f9", "early")
    job(place)
    for one in (saver, place.saver()):
        assert one.get_tuple(thread()) is None
        assert one.get_tuple(script.config("1f9")) is None
        assert list(one.list(thread())) == list(one.list(None)) == []
    script.put(at="1f9")
    job(place)
    for one in (saver, place.saver()):
        found = one.get_tuple(thread())
        assert found is not None
        assert found.pending_writes == [("t1", "d", ["early"])]


# -- parents -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 3])
@jobs
def test_a_circle_of_parents_ends_in_an_error(place: Place, job: Job, length: int) -> None:
    saver = place.saver()
    for number in range(length):
        body = checkpoint(f"{number}")
        body["channel_versions"] = {"d": "1"}
        parent = f"{(number + 1) % length}"
        saver.put(thread(ns="", checkpoint_id=parent), body, {"source": "loop"}, {"d": "1"})
    job(place)
    with place.fresh() as fresh:
        assert fresh.get_tuple(thread()) is not None
        assert len(list(fresh.list(thread()))) == length
        with pytest.raises(ParentCycleError):
            fresh.get_delta_channel_history(config=thread(), channels=["d"])
    other = Script([saver], thread_id="other")
    other.chain(3)
    job(place)
    assert place.saver().get_tuple(thread("other")) is not None


@jobs
def test_a_first_checkpoint_may_name_a_parent_that_never_was(place: Place, job: Job) -> None:
    make = linear_graph(1000)
    live = make(place.saver()).invoke(both("one"), thread(checkpoint_id="never"))
    job(place)
    live = make(place.saver()).invoke(both("two"), thread())
    job(place)
    with place.fresh() as fresh:
        assert make(fresh).get_state(thread()).values == live
    assert live["delta"] == live["plain"]


@jobs
def test_a_missing_ancestor_is_an_error_where_a_walk_needs_it(place: Place, job: Job) -> None:
    saver = place.saver()
    script = Script([saver])
    script._known["lost"] = ({"d": "1"}, 1, 1)
    head = script.put("lost")
    job(place)
    with place.fresh() as fresh:
        assert fresh.get_tuple(thread()) is not None
        with pytest.raises(MissingDataError, match="lost"):
            fresh.get_delta_channel_history(config=script.config(head), channels=["d"])
    script.write("lost", "found")
    script.put(at="lost")
    job(place)
    with place.fresh() as fresh:
        found = fresh.get_delta_channel_history(config=script.config(head), channels=["d"])["d"]
        assert [value for _, _, value in found["writes"]] == [["found"]]
