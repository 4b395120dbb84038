"""Small agents for the tests of modes: the same graph, built as a process of each mode would."""

# No `from __future__ import annotations`: LangGraph evaluates the annotations of states,
# which name things that only the function around them knows.

from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from logstore.channels import delta_messages, messages_channel
from logstore.config import ChannelMode
from logstore.guard import with_mode
from logstore.modes import unfreeze_for_tests
from tests.helpers import append, concat, thread

Saver = BaseCheckpointSaver[Any]


def agent_graph(channel: Any, saver: Saver | None, **compiled: Any) -> Any:
    """`START -> agent -> rest -> END`; the agent answers what was said, `rest` writes nothing.

    Args:
        channel: what makes the field of messages a channel.
        saver: where it saves.
        compiled: options of `compile`.
    """

    class State(TypedDict, total=False):
        messages: Annotated[list[AnyMessage], channel]
        notes: Annotated[list, DeltaChannel(append, snapshot_frequency=3)]
        asked: str

    def agent(state: State) -> dict[str, Any]:
        number = len(state["messages"])
        asked = state["messages"][-1].content
        return {"messages": [AIMessage(f"answer to {asked}", id=f"ai-{number}")], "asked": asked}

    def rest(state: State) -> dict[str, Any]:
        if state["asked"] == "wait":
            return {"asked": interrupt("go on?")}
        return {"notes": [len(state["messages"])]}

    builder = StateGraph(State)
    builder.add_node("agent", agent)
    builder.add_node("rest", rest)
    builder.add_edge(START, "agent")
    builder.add_edge("agent", "rest")
    builder.add_edge("rest", END)
    return builder.compile(checkpointer=saver, **compiled)


def saying_graph(channel: Any, saver: Saver | None, answers: list[Any]) -> Any:
    """`START -> a node for each answer, at once -> END`."""

    class State(TypedDict):
        messages: Annotated[list[AnyMessage], channel]

    def says(answer: Any) -> Any:
        return lambda state: {"messages": answer}

    builder = StateGraph(State)
    for number, answer in enumerate(answers):
        builder.add_node(f"n{number}", says(answer))
        builder.add_edge(START, f"n{number}")
        builder.add_edge(f"n{number}", END)
    return builder.compile(checkpointer=saver)


def waiting_graph(channel: Any, saver: Saver | None, ran: list[str]) -> Any:
    """`START -> fast and slow -> END`: one says something, the other waits for an answer."""

    class State(TypedDict):
        messages: Annotated[list[AnyMessage], channel]

    def fast(state: State) -> dict[str, Any]:
        ran.append("fast")
        return {"messages": [HumanMessage("from fast", id="fast")]}

    def slow(state: State) -> dict[str, Any]:
        return {"messages": [HumanMessage(interrupt("go on?"), id="slow")]}

    builder = StateGraph(State)
    for name, node in (("fast", fast), ("slow", slow)):
        builder.add_node(name, node)
        builder.add_edge(START, name)
    return builder.compile(checkpointer=saver)


def nested_graph(channel: Any, saver: Saver | None) -> Any:
    """A graph whose subgraph keeps its own messages from turn to turn."""

    class Inner(TypedDict):
        messages: Annotated[list[AnyMessage], channel]

    class Outer(Inner):
        seen: Annotated[list, concat]

    def inside(state: Inner) -> dict[str, Any]:
        return {"messages": [HumanMessage("inside", id=f"inside-{len(state['messages'])}")]}

    inner = StateGraph(Inner)
    inner.add_node("inside", inside)
    inner.add_edge(START, "inside")
    inner.add_edge("inside", END)
    sub = inner.compile(checkpointer=True)

    def call(state: Outer) -> dict[str, Any]:
        found = sub.invoke({"messages": state["messages"][-1:]})
        return {"seen": [len(found["messages"])]}

    outer = StateGraph(Outer)
    outer.add_node("call", call)
    outer.add_edge(START, "call")
    outer.add_edge("call", END)
    return outer.compile(checkpointer=saver)


def process(saver: Saver, mode: ChannelMode, k: int | None = None, **compiled: Any) -> Any:
    """The graph as a new process of that mode builds it, on a guarded saver."""
    unfreeze_for_tests()
    return agent_graph(messages_channel(mode, k), with_mode(saver, mode), **compiled)


def operator_graph(k: int) -> Any:
    """The graph as the compactor imports it."""
    return agent_graph(delta_messages(k), None)


def say(graph: Any, *texts: str, thread_id: str = "t", **config: Any) -> Any:
    """One turn for each text; the last result."""
    result = None
    for text in texts:
        message = HumanMessage(text, id=f"human-{text}")
        result = graph.invoke({"messages": [message]}, {**thread(thread_id), **config})
    return result


def contents(messages: list[BaseMessage]) -> list[Any]:
    """What was said."""
    return [message.content for message in messages]
