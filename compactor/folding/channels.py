"""Which channels may be folded, and how: what the operator says, never what the data says."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from compactor.folding.fingerprint import fingerprint, import_path
from compactor.folding.policy import Retention
from logstore.errors import InvalidOptionError
from logstore.records import Record

_MAX_SUPERSTEPS = "LANGGRAPH_DELTA_MAX_SUPERSTEPS_SINCE_SNAPSHOT"


@dataclass(frozen=True)
class ChannelSpec:
    """One delta channel of an application."""

    name: str
    channel: Any
    """A `DeltaChannel` without a value."""
    frequency: int
    """K: the compactor makes a snapshot at every K-th update."""
    origin: str
    """Where the operator named it, for reports."""

    @property
    def label(self) -> str:
        """The channel's name in reports."""
        return f"{self.origin}: {self.name}"

    @cached_property
    def reducer(self) -> str:
        """The import path of its reducer."""
        return import_path(self.channel.reducer)

    @cached_property
    def fingerprint(self) -> str:
        """Of the code of its reducer, and of the type that it starts from."""
        return fingerprint(self.channel.reducer, import_path(self.channel.typ))

    def made(self, snapshot: Record) -> bool:
        """Whether this very reducer made a snapshot."""
        cover = json.loads(snapshot.cover or "{}")
        maker = (cover.get("reducer"), cover.get("fingerprint"))
        return maker == (self.reducer, self.fingerprint)


@dataclass(frozen=True)
class ChannelRule:
    """A row of the operator's table: where a channel's definition applies."""

    spec: ChannelSpec
    thread_prefix: str = ""
    namespace: str = ""
    """A pattern (`*`, `?`) for the namespace without its task ids; "" is the root graph."""


class ChannelTable:
    """The delta channels that may be folded, by thread, namespace and name."""

    def __init__(self, rules: Sequence[ChannelRule], retention: Retention | None = None) -> None:
        """Use the first rule that matches; `retention` says which snapshots stay."""
        self._rules = rules
        self.retention = retention or Retention()

    def after(self, *rules: ChannelRule) -> ChannelTable:
        """The table with rules that come before its own."""
        return ChannelTable([*rules, *self._rules], self.retention)

    def spec(self, thread_id: str, ns: str, channel: str) -> ChannelSpec | None:
        """The definition of a channel, if the operator gave one."""
        return self.specs(thread_id, ns).get(channel)

    def specs(self, thread_id: str, ns: str) -> Mapping[str, ChannelSpec]:
        """The definitions that hold in a namespace of a thread, by channel."""
        path = namespace_path(ns)
        found: dict[str, ChannelSpec] = {}
        for rule in self._rules:
            if thread_id.startswith(rule.thread_prefix) and fnmatchcase(path, rule.namespace):
                found.setdefault(rule.spec.name, rule.spec)
        return found

    @cached_property
    def max_supersteps(self) -> int:
        """A snapshot is due after so many supersteps, even of a channel without writes."""
        return int(os.environ.get(_MAX_SUPERSTEPS, "5000"))


def namespace_path(ns: str) -> str:
    """A namespace without task ids: `a:1234|b:5678` is the subgraph `a|b`."""
    return "|".join(part.split(":")[0] for part in ns.split("|") if not part.isdigit())


def table_of(
    *,
    graph: Any = None,
    channels: Mapping[str, Any] | None = None,
    frequency: int | None = None,
    retention: str = "all",
) -> ChannelTable:
    """The table for a compiled graph, or for single channels of the root graph.

    Args:
        graph: a compiled LangGraph graph; its subgraphs' namespaces are resolved too.
        channels: `DeltaChannel`s by name, for every thread's root namespace.
        frequency: K for all of them, instead of their own `snapshot_frequency`.
        retention: which snapshots stay: `all`, `newest N` or `powers of two`.

    Raises:
        InvalidOptionError: something is no delta channel, K is not positive, or the policy is
            unknown.
    """
    if frequency is not None and frequency < 1:
        raise InvalidOptionError(f"the snapshot frequency is at least 1, not {frequency}")
    rules: list[ChannelRule] = []
    for name, channel in (channels or {}).items():
        if not _is_delta(channel):
            raise InvalidOptionError(
                f"channel {name!r} is a {type(channel).__name__}; pass a DeltaChannel, whose "
                "reducer can be folded"
            )
        rules.append(ChannelRule(_spec(name, channel, frequency, "channels")))
    if graph is not None:
        rules += graph_rules(graph, frequency)
    return ChannelTable(rules, Retention.parse(retention))


def graph_rules(graph: Any, frequency: int | None) -> list[ChannelRule]:
    """A rule for each delta channel of a compiled graph and its subgraphs.

    Raises:
        InvalidOptionError: it is no compiled graph.
    """
    if not hasattr(graph, "channels") or not hasattr(graph, "get_subgraphs"):
        raise InvalidOptionError(
            f"{graph!r} is no compiled LangGraph graph; pass what `builder.compile()` gives"
        )
    rules = []
    for path, sub in [("", graph), *graph.get_subgraphs(recurse=True)]:
        name = getattr(graph, "name", None) or "graph"
        for channel_name, channel in getattr(sub, "channels", {}).items():
            if _is_delta(channel):
                spec = _spec(channel_name, channel, frequency, f"{name}/{path}" if path else name)
                rules.append(ChannelRule(spec, namespace=path))
    return rules


def _is_delta(channel: Any) -> bool:
    return hasattr(channel, "replay_writes") and hasattr(channel, "snapshot_frequency")


def _spec(name: str, channel: Any, frequency: int | None, origin: str) -> ChannelSpec:
    empty = channel.from_checkpoint(None)
    return ChannelSpec(name, empty, frequency or channel.snapshot_frequency, origin)


def default_serde(graph: Any = None) -> SerializerProtocol:
    """LangGraph's own serde, with the allowlist of the graph if it has one."""
    serde = JsonPlusSerializer()
    allowlist = getattr(graph, "_serde_allowlist", None)
    return serde if allowlist is None else serde.with_msgpack_allowlist(allowlist)
