"""The demo's agent: a graph that says again what an agent once said.

``agent <-> tools``, with the messages in a `DeltaChannel`. Its nodes take
the next recorded message from the run's context, so that the state holds nothing but the
conversation so far, as it would with a model that thinks.
"""

# No `from __future__ import annotations`: LangGraph evaluates the annotations of `State`,
# which name things that only `build_graph` knows.

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime

COMPACTED_FREQUENCY = 10
"""After how many updates the compactor is to make a snapshot."""
INLINE_FREQUENCY = 1000
"""After how many updates LangGraph itself would write one, in line: hardly ever."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The context of a run: the whole recorded conversation."""

    messages: Sequence[BaseMessage]

    def answer(self, position: int) -> list[BaseMessage]:
        """The agent's message at a position; none where somebody else spoke."""
        return [m for m in self.messages[position : position + 1] if isinstance(m, AIMessage)]

    def results(self, position: int) -> list[BaseMessage]:
        """The tool results from a position on."""
        return self._from(position, tools=True)

    def inputs(self, position: int) -> list[BaseMessage]:
        """What came from outside, from a position on: the user's and the system's messages."""
        return self._from(position, tools=False)

    def _from(self, position: int, *, tools: bool) -> list[BaseMessage]:
        found: list[BaseMessage] = []
        for message in self.messages[position:]:
            if isinstance(message, AIMessage) or isinstance(message, ToolMessage) != tools:
                break
            found.append(message)
        return found


def append_by_id(state: list[BaseMessage], writes: Sequence[Any]) -> list[BaseMessage]:
    """The reducer of the messages: a new id is appended, a known one replaces.

    It depends on its arguments alone, and two batches one after the other give what both
    at once give. `DeltaChannel` replays writes in other batches than they came in.
    """
    merged = {message.id: message for message in state}
    for write in writes:
        for message in write if isinstance(write, list) else [write]:
            merged[message.id] = message
    return list(merged.values())


def build_graph(
    checkpointer: BaseCheckpointSaver[Any] | None = None,
    *,
    snapshot_frequency: int = COMPACTED_FREQUENCY,
    channel: Any = None,
) -> CompiledStateGraph[Any, Recording, Any, Any]:
    """The agent's graph.

    Args:
        checkpointer: where it saves its checkpoints.
        snapshot_frequency: the `DeltaChannel`'s.
        channel: the messages' reducer or channel, instead of that `DeltaChannel`.
    """
    kind = channel or DeltaChannel(append_by_id, snapshot_frequency=snapshot_frequency)

    class State(TypedDict):
        messages: Annotated[list[AnyMessage], kind]

    def agent(state: State, runtime: Runtime[Recording]) -> dict[str, Any]:
        return {"messages": runtime.context.answer(len(state["messages"]))}

    def tools(state: State, runtime: Runtime[Recording]) -> dict[str, Any]:
        return {"messages": runtime.context.results(len(state["messages"]))}

    def following(state: State, runtime: Runtime[Recording]) -> str:
        return _following(runtime.context, len(state["messages"]))

    builder = StateGraph(State, context_schema=Recording)
    builder.add_node("agent", agent)
    builder.add_node("tools", tools)
    for node in (START, "agent", "tools"):
        builder.add_conditional_edges(node, following, ["agent", "tools", END])
    return builder.compile(checkpointer=checkpointer)


def _following(recording: Recording, position: int) -> str:
    if recording.results(position):
        return "tools"
    return "agent" if recording.answer(position) else END


graph = build_graph()
"""What the compactor imports: its channels, with their reducers."""
