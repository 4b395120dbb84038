"""The tables of messages say what LangGraph's own state says, at the head and at every step."""

# No `from __future__ import annotations`: LangGraph evaluates the annotations of states.

import json
import subprocess
import sys
from typing import Annotated, Any, TypedDict

import ormsgpack
import pytest
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Overwrite

from logstore import analytics
from logstore.analytics import Reading
from logstore.channels import merge_message_writes
from tests.helpers import Place, memory_place, thread

Rows = list[dict[str, Any]]
MODES = {
    "delta": DeltaChannel(merge_message_writes, list, snapshot_frequency=1000),
    "inline": DeltaChannel(merge_message_writes, list, snapshot_frequency=3),
    "full": add_messages,
}
CALL = {"name": "search", "args": {"q": "flights"}, "id": "call-1", "type": "tool_call"}
SCRIPT: list[Any] = [
    AIMessage("", id="a1", tool_calls=[CALL], usage_metadata={"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}),
    ToolMessage("none found", tool_call_id="call-1", id="t1", status="error", name="search"),
    AIMessage("sorry", id="a2", response_metadata={"model_name": "m-1", "finish_reason": "stop", "token_usage": {"prompt_tokens": 3, "completion_tokens": 4}}),
    [AIMessage("sorry!", id="a2"), HumanMessage("h", id="h9")],
    RemoveMessage(id="h9"),
    [SystemMessage("be kind", id="s1"), {"role": "user", "content": "hello", "id": "u2"}],
    Overwrite([HumanMessage("only", id="o1"), AIMessage([{"type": "text", "text": "two "}, {"type": "text", "text": "blocks"}], id="o2")]),
    AIMessage("bye", id="a3"),
]  # fmt: skip


def play(mode: str, saver: Any, script: list[Any] | None = None) -> Any:
    """A graph whose agent says what a script says, one entry a superstep."""
    script = SCRIPT if script is None else script

    class State(TypedDict):
        messages: Annotated[list[AnyMessage], MODES[mode]]
        left: int

    def agent(state: State) -> dict[str, Any]:
        said = script[len(script) - state["left"]]
        return {"messages": said, "left": state["left"] - 1}

    builder = StateGraph(State)
    builder.add_node("agent", agent)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", lambda state: "agent" if state["left"] else END)
    return builder.compile(checkpointer=saver)


def ask(graph: Any, thread_id: str = "t", left: int = len(SCRIPT), **how: Any) -> None:
    """Run the script to its end."""
    question = HumanMessage(f"question to {thread_id}", id=f"q-{thread_id}")
    graph.invoke(
        {"messages": [question], "left": left}, {**thread(thread_id), "recursion_limit": 50}, **how
    )


def said(messages: list[BaseMessage]) -> list[tuple[Any, ...]]:
    """What the state holds, as the table would say it."""
    roles = {"human": "user", "ai": "assistant"}
    return [(m.id, roles.get(m.type, m.type), m.text) for m in messages]


def listed(rows: Rows) -> list[tuple[Any, ...]]:
    """The table's rows in their order."""
    ordered = sorted(rows, key=lambda row: row["position"])
    assert [row["position"] for row in ordered] == list(range(len(ordered)))
    return [(row["message_id"], row["role"], row["text"]) for row in ordered]


def rows_of(place: Place, table: str = "messages", **how: Any) -> Rows:
    """A table's rows."""
    with analytics.open(place.uri) as snapshot:
        found: Rows = snapshot.scan(table, **how).read_all().to_pylist()
    return found


@pytest.mark.parametrize("compacted", [False, True], ids=["tail", "compacted"])
@pytest.mark.parametrize("mode", MODES)
def test_messages_are_those_of_the_state_at_the_head_and_at_every_step(
    mode: str, compacted: bool
) -> None:
    with memory_place() as place:
        graph = play(mode, place.saver())
        ask(graph)
        if compacted:
            channel = MODES[mode]
            channels = {"messages": DeltaChannel(merge_message_writes, list, snapshot_frequency=3)}
            place.compact(channels=channels if isinstance(channel, DeltaChannel) else {})
        state = graph.get_state(thread())
        assert len(state.values["messages"]) == 3
        assert listed(rows_of(place)) == said(state.values["messages"])
        everything = rows_of(place, reading=Reading(history=True))
        for step in graph.get_state_history(thread()):
            at = step.config["configurable"]["checkpoint_id"]
            there = [
                row
                for row in everything
                if row["first_checkpoint_id"] <= at <= row["last_checkpoint_id"]
            ]
            expected = said(step.values.get("messages", []))
            assert sorted((r["message_id"], r["role"], r["text"]) for r in there) == sorted(
                expected
            )


@pytest.mark.parametrize("mode", MODES)
def test_a_message_carries_the_step_that_first_showed_it(mode: str) -> None:
    with memory_place() as place:
        graph = play(mode, place.saver())
        ask(graph)
        first: dict[str, tuple[Any, ...]] = {}
        for step in reversed(list(graph.get_state_history(thread()))):
            for message in step.values.get("messages", []):
                at = (step.metadata["step"], step.config["configurable"]["checkpoint_id"])
                first.setdefault(message.id, at)
        for row in rows_of(place):
            assert (row["step"], row["first_checkpoint_id"]) == first[row["message_id"]]


@pytest.mark.parametrize("mode", MODES)
def test_what_survives_a_prune_keeps_its_messages_and_shows_no_hidden_step(mode: str) -> None:
    with memory_place() as place:
        saver = place.saver()
        graph = play(mode, saver)
        ask(graph)
        expected = said(graph.get_state(thread()).values["messages"])
        saver.prune(["t"], newest=2)
        assert listed(rows_of(place)) == expected
        shown = {
            s.config["configurable"]["checkpoint_id"] for s in graph.get_state_history(thread())
        }
        assert len(shown) == 2
        for row in (*rows_of(place), *rows_of(place, reading=Reading(history=True))):
            assert {row["first_checkpoint_id"], row["last_checkpoint_id"]} <= shown


def test_steps_are_found_where_a_run_stored_no_writes() -> None:
    with memory_place() as place:
        graph = play("full", place.saver(), [AIMessage("one", id="a1"), AIMessage("two", id="a2")])
        ask(graph, left=2, durability="exit")
        graph.update_state(thread(), {"messages": [HumanMessage("three", id="h3")]})
        steps = {row["message_id"]: row["step"] for row in rows_of(place)}
        assert len({steps["q-t"], steps["a1"], steps["a2"]}) == 1
        assert steps["h3"] == steps["a2"] + 1


def test_tokens_models_and_reasons_come_from_what_providers_say() -> None:
    with memory_place() as place:
        ask(play("delta", place.saver(), SCRIPT[:3]), left=3)
        rows = {row["message_id"]: row for row in rows_of(place)}
    names = ("input_tokens", "output_tokens", "total_tokens", "model", "finish_reason")
    assert [rows["a1"][n] for n in names] == [7, 2, 9, None, None]
    assert [rows["a2"][n] for n in names] == [3, 4, 7, "m-1", "stop"]
    assert [rows["q-t"][n] for n in names] == [None] * 5
    assert rows["a1"]["tool_call_ids"] == rows["t1"]["tool_call_ids"] == ["call-1"]
    assert rows["t1"]["name"] == "search"
    assert rows["a1"]["ts"] < rows["t1"]["ts"]


def test_a_tool_call_stands_beside_its_result() -> None:
    broken = {"name": "book", "args": "{oops", "id": "call-2", "error": "bad JSON"}
    waiting = {"name": "wait", "args": {}, "id": "call-3"}
    script = [*SCRIPT[:2], AIMessage("", id="a9", tool_calls=[waiting], invalid_tool_calls=[{**broken, "type": "invalid_tool_call"}])]  # fmt: skip
    with memory_place() as place:
        ask(play("delta", place.saver(), script), left=3)
        rows = {row["tool_call_id"]: row for row in rows_of(place, "tool_calls")}
        times = {row["message_id"]: row["ts"] for row in rows_of(place)}
    failed, invalid, open_ = rows["call-1"], rows["call-2"], rows["call-3"]
    assert (failed["name"], json.loads(failed["arguments"])) == ("search", {"q": "flights"})
    assert (failed["result"], failed["is_error"]) == ("none found", True)
    assert failed["latency_s"] == (times["t1"] - times["a1"]).total_seconds() > 0
    assert (json.loads(invalid["arguments"]), invalid["is_error"]) == ("{oops", True)
    assert invalid["result"] == "bad JSON"
    assert (open_["result"], open_["is_error"], open_["latency_s"]) == (None, None, None)


def test_the_head_s_branch_shows_and_all_branches_on_request() -> None:
    with memory_place() as place:
        graph = play("delta", place.saver(), [AIMessage("one", id="a1")])
        ask(graph, left=1)
        old = list(graph.get_state_history(thread()))[1]
        graph.update_state(old.config, {"messages": [AIMessage("other", id="b1")]}, as_node="agent")
        head = listed(rows_of(place))
        assert head == said(graph.get_state(thread()).values["messages"])
        assert [entry[0] for entry in head] == ["q-t", "b1"]
        branches: dict[str, Rows] = {}
        for row in rows_of(place, reading=Reading(branches="all")):
            branches.setdefault(row["branch"], []).append(row)
        assert [[entry[0] for entry in listed(b)] for _, b in sorted(branches.items())] == [
            ["q-t", "a1"],
            ["q-t", "b1"],
        ]


def test_head_views_in_sql_and_one_thread_s_scan_agree() -> None:
    with memory_place(partitions=3) as place:
        graph = play("delta", place.saver(), [AIMessage("one", id="a1")])
        for name in ("x", "y", "z"):
            ask(graph, name, left=1)
        with analytics.open(place.uri) as snapshot:
            counted = snapshot.sql("SELECT thread_id, count(*) FROM messages GROUP BY ALL")
            assert sorted(map(tuple, (r.values() for r in counted.read_all().to_pylist()))) == [
                ("x", 2), ("y", 2), ("z", 2)
            ]  # fmt: skip
            mine = snapshot.scan("messages", ["message_id"], thread_id="y").read_all()
            assert mine["message_id"].to_pylist() == ["q-y", "a1"]
            joined = "SELECT count(*) AS n FROM messages a JOIN messages b USING (thread_id)"
            assert snapshot.sql(joined).read_all()["n"].to_pylist() == [12]


def test_other_channels_and_other_reducers_are_no_messages() -> None:
    class State(TypedDict):
        notes: Annotated[list, lambda a, b: a + b]
        content: dict

    with memory_place() as place:
        builder = StateGraph(State)
        builder.add_node("n", lambda s: {"notes": ["content"], "content": {"content": "x"}})
        builder.add_edge(START, "n")
        builder.compile(checkpointer=place.saver()).invoke({"notes": [], "content": {}}, thread())
        assert rows_of(place) == []


class Rot13(CipherProtocol):
    """A cipher that hides the words."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "rot", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return ciphertext[::-1]


def test_encrypted_values_show_as_such() -> None:
    with memory_place() as place:
        saver = place.saver(serde=EncryptedSerializer(Rot13()))
        ask(play("delta", saver, SCRIPT[:2]), left=2)
        rows = rows_of(place)
        assert [(row["role"], row["text"], row["message_id"]) for row in rows] == [
            ("encrypted", None, None)
        ] * 3
        decoded = [json.loads(row["json"]) for row in rows_of(place, "decoded")]
        assert {"__encrypted__": "rot"}.items() <= decoded[0].items()


def test_no_class_is_imported_and_unknown_extensions_keep_tag_and_bytes() -> None:
    hostile = ormsgpack.packb(
        ormsgpack.Ext(2, ormsgpack.packb(["no_such_module_of_mine", "Bomb", {"content": "boom", "type": "ai"}, "method"]))
    )  # fmt: skip
    foreign = ormsgpack.packb(ormsgpack.Ext(77, b"\x01\x02"))

    class Raw:
        def dumps_typed(self, value: Any) -> tuple[str, bytes]:
            return "msgpack", value if isinstance(value, bytes) else ormsgpack.packb(value)

        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            return ormsgpack.unpackb(data[1])

    with memory_place() as place:
        saver = place.saver(serde=Raw())
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": hostile, "x": foreign}
        checkpoint["channel_versions"] = {"messages": "1", "x": "1"}
        metadata: Any = {"source": "input", "step": -1}
        saver.put(thread("t", ""), checkpoint, metadata, {"messages": "1", "x": "1"})
        (row,) = rows_of(place)
        assert (row["role"], row["text"]) == ("assistant", "boom")
        decoded = {r["channel"]: json.loads(r["json"]) for r in rows_of(place, "decoded")}
    assert decoded["x"] == {"__ext__": 77, "data": {"__bytes__": 2, "base64": "AQI="}}
    assert decoded["messages"]["__class__"] == "no_such_module_of_mine.Bomb"
    assert "no_such_module_of_mine" not in sys.modules


def test_tables_of_a_directory_need_neither_langgraph_nor_duckdb() -> None:
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['langgraph.graph', 'duckdb', 'fsspec'])); "
        "from logstore import analytics; print(len(analytics.SCHEMAS))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "8", done.stderr
