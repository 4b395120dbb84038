"""What is stored of large values, before, between and after compactions."""

# No `from __future__ import annotations`: LangGraph evaluates the annotations of states,
# which name things that only the function around them knows.

import asyncio
import base64
import random
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph

from logstore.channels import messages_channel
from logstore.config import ChannelMode
from logstore.guard import with_mode
from logstore.modes import unfreeze_for_tests
from tests.config.apps import operator_graph
from tests.helpers import Place, memory_place, thread

IMAGE_BYTES = 5 << 20
RANDOM_BYTES = IMAGE_BYTES * 3 // 4
"""What no compression takes away of its base64 text."""
MODES: list[tuple[ChannelMode, int | None]] = [
    ("full", None), ("delta", 1), ("delta", 10), ("delta", 1000),
]  # fmt: skip


@pytest.fixture
def place() -> Iterator[Place]:
    with memory_place(short_grace_s=0, long_grace_s=0) as place:
        yield place


def chat(place: Place, mode: ChannelMode, k: int | None) -> Any:
    """A process that answers, with a side channel that is written once."""
    unfreeze_for_tests()
    channel = messages_channel(mode, k)

    class State(TypedDict, total=False):
        messages: Annotated[list[AnyMessage], channel]
        side: bytes

    def answer(state: State) -> dict[str, Any]:
        number = len(state["messages"])
        return {"messages": [AIMessage(words(number), id=f"ai-{number}")]}

    builder = StateGraph(State)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=with_mode(place.saver(), mode))


def words(seed: int) -> str:
    rng = random.Random(seed)
    return " ".join(f"word{rng.randrange(3000)}" for _ in range(50))


def a_message(number: int) -> HumanMessage:
    return HumanMessage(words(-number - 1), id=f"human-{number}")


def say(graph: Any, number: int, **more: Any) -> Any:
    return graph.invoke({"messages": [a_message(number)], **more}, thread())


def stored_bytes(place: Place) -> int:
    with place.store() as store:
        return sum(info.size for page in store.objects.list("") for info in page.objects)


def an_image() -> HumanMessage:
    data = base64.b64encode(random.Random(7).randbytes(RANDOM_BYTES)).decode()
    return HumanMessage([{"type": "image", "base64": data}], id="image")


@pytest.mark.parametrize("in_loop", [False, True])
@pytest.mark.parametrize(("mode", "k"), MODES)
def test_writers_store_an_image_in_a_message_once(
    mode: ChannelMode, k: int | None, in_loop: bool
) -> None:
    with memory_place() as place:
        graph = chat(place, mode, k)

        async def in_a_loop() -> Any:
            await graph.ainvoke({"messages": [an_image()]}, thread())
            for number in range(20):
                live = await graph.ainvoke({"messages": [a_message(number)]}, thread())
            return live["messages"]

        if in_loop:
            live = asyncio.run(in_a_loop())
        else:
            graph.invoke({"messages": [an_image()]}, thread())
            live = [say(graph, number)["messages"] for number in range(20)][-1]
        assert stored_bytes(place) < 1.2 * RANDOM_BYTES
        assert chat(place, mode, k).get_state(thread()).values["messages"] == live


@pytest.mark.parametrize(("mode", "k"), MODES)
def test_compaction_stores_an_image_in_a_message_once(
    place: Place, mode: ChannelMode, k: int | None
) -> None:
    graph = chat(place, mode, k)
    graph.invoke({"messages": [an_image()]}, thread())
    for number in range(20):
        say(graph, number)
    for number in range(20, 24):
        place.compact(graph=operator_graph(k or 10))
        live = say(graph, number)["messages"]
    for _ in range(3):
        place.compact(graph=operator_graph(k or 10))
    assert stored_bytes(place) < 1.1 * RANDOM_BYTES, "after the graces"
    assert len(place.keys("values/")) == 1
    assert chat(place, mode, k).get_state(thread()).values["messages"] == live


@pytest.mark.parametrize(("mode", "k"), MODES)
def test_a_head_that_moves_does_not_write_a_large_value_anew(
    place: Place, mode: ChannelMode, k: int | None
) -> None:
    graph = chat(place, mode, k)
    say(graph, 0, side=random.Random(1).randbytes(1 << 20))
    place.compact(graph=operator_graph(k or 10))
    written = 0
    for number in range(1, 20):
        say(graph, number)
        written += place.compact(graph=operator_graph(k or 10)).total("bytes_written")
    # Written for the first time before the jobs that are counted, and never again.
    assert written < 1 << 20
    assert stored_bytes(place) < 1.2 * (1 << 20)
    assert len(place.keys("values/")) == 1


@pytest.mark.parametrize(("mode", "k"), MODES)
def test_four_times_the_turns_take_less_than_five_times_the_bytes(
    mode: ChannelMode, k: int | None
) -> None:
    sizes = []
    for turns in (50, 200):
        with memory_place(short_grace_s=0, long_grace_s=0) as place:
            graph = chat(place, mode, k)
            for number in range(turns):
                say(graph, number)
            before = stored_bytes(place)
            for _ in range(2):
                place.compact(graph=operator_graph(k or 10))
            sizes.append((before, stored_bytes(place)))
    (few_before, few_after), (many_before, many_after) = sizes
    assert many_before < 5 * few_before
    assert many_after < 5 * few_after
