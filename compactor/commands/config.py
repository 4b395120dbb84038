"""The operator's configuration file: which channels to fold, and with what.

::

    graph = "my_app.agent:graph"          # the delta channels of a compiled graph, and/or
    serde = "my_app.storage:serde"        # the saver's serde, if it is not LangGraph's own
    snapshot_frequency = 10               # K for all channels, instead of their own
    memory = "512MB"                      # what a job may hold, see `MemoryBudget`

    [snapshots]
    retention = "all"                     # or "newest 20", or "powers of two"

    [channels.messages]                   # single channels
    reducer = "my_app.state:merge_messages"
    type = "builtins:list"
    snapshot_frequency = 10
    namespace = ""                        # a pattern; "" is the root graph
    thread_prefix = ""

    [analytics]
    keep = ["messages", "tool_calls"]     # tables that are kept, so that no reader decodes them

    [retention]                           # what is not kept for ever; without it all is
    max_age = "90d"                       # threads that nobody wrote to for so long are deleted
    newest = 50                           # so many checkpoints of each namespace are kept
    [[retention.threads]]                 # instead, for threads whose id starts so
    prefix = "scratch-"
    max_age = "1d"

A file that ends in `.yaml` is the application's own configuration (`logstore.config`): its
section `database` names the channel mode, the cadence of the messages, and the store.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from compactor.cleaning.retention import RetentionPolicy, only_keys
from compactor.folding.channels import (
    ChannelRule,
    ChannelSpec,
    ChannelTable,
    default_serde,
    graph_rules,
)
from compactor.folding.policy import Retention
from compactor.job import Job
from compactor.keeping.tables import check_keep
from compactor.memory import MemoryBudget
from logstore.channels import delta_messages
from logstore.config import load_config, load_object
from logstore.errors import InvalidOptionError
from logstore.modes import MESSAGES
from logstore.store import LogStore

_TOP_KEYS = {
    *("graph", "serde", "snapshot_frequency", "memory"),
    *("channels", "snapshots", "analytics", "retention"),
}
_CHANNEL_KEYS = {"reducer", "type", "snapshot_frequency", "namespace", "thread_prefix"}


@dataclass(frozen=True)
class Operation:
    """What a job needs from the operator."""

    table: ChannelTable
    serde: SerializerProtocol
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    memory: MemoryBudget = field(default_factory=MemoryBudget)
    keep: frozenset[str] = frozenset()
    """The tables to keep for analytics."""

    def job(
        self, store: LogStore, *, max_runtime_s: float | None = None, purge: bool = False
    ) -> Job:
        """A job of this operation in a store. See `Job`."""
        return Job(
            store,
            self.table,
            self.serde,
            max_runtime_s=max_runtime_s,
            purge=purge,
            memory=self.memory,
            keep=self.keep,
        )


def load_operation(
    *,
    graph: str | None = None,
    config: Path | None = None,
    serde: str | None = None,
    frequency: int | None = None,
    retention: str | None = None,
    memory: str | None = None,
    keep: Collection[str] | None = None,
) -> Operation:
    """Read the command's options and the configuration file; an option wins over the file.

    Raises:
        InvalidOptionError: the file has a mistake.
        ReducerImportError: an import path does not resolve.
    """
    if config is not None and is_of_application(config):
        return _of_application(config, graph, serde, frequency, retention, memory, keep)
    doc = _read(config) if config is not None else {}
    frequency = frequency if frequency is not None else _positive(doc, "snapshot_frequency", config)
    graph = graph or doc.get("graph")
    serde = serde or doc.get("serde")
    rules = [
        _channel_rule(name, table, frequency, config)
        for name, table in doc.get("channels", {}).items()
    ]
    compiled = None
    if graph is not None:
        compiled = load_object(graph)
        rules += graph_rules(compiled, frequency)
    chosen = default_serde(compiled) if serde is None else load_object(serde)
    thinning = Retention.parse(retention or _snapshot_retention(doc, config))
    policy = RetentionPolicy.parse(doc.get("retention", {}), f"{config}")
    size = memory or doc.get("memory")
    budget = MemoryBudget() if size is None else MemoryBudget.parse(f"{size}")
    kept = check_keep(_kept(doc, config) if keep is None else keep)
    return Operation(ChannelTable(rules, thinning), chosen, policy, budget, kept)


def is_of_application(path: Path) -> bool:
    """Whether a configuration file is the application's own, and not the operator's."""
    return path.suffix in (".yaml", ".yml")


def _of_application(
    path: Path,
    graph: str | None,
    serde: str | None,
    frequency: int | None,
    retention: str | None,
    memory: str | None,
    keep: Collection[str] | None,
) -> Operation:
    """The application's own config.yaml: in delta mode its messages are folded at its cadence."""
    found = load_operation(
        graph=graph,
        serde=serde,
        frequency=frequency,
        retention=retention,
        memory=memory,
        keep=keep,
    )
    k = load_config(path).database.snapshot_frequency
    if k is None:
        return found
    k = frequency or k
    rule = ChannelRule(ChannelSpec(MESSAGES, delta_messages(k), k, f"{path}"))
    return replace(found, table=found.table.after(rule))


def _read(path: Path) -> dict[str, Any]:
    try:
        doc = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidOptionError(f"the configuration {path} cannot be read: {error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidOptionError(f"the configuration {path} is not valid TOML: {error}") from error
    only_keys(doc, _TOP_KEYS, f"{path}")
    if not isinstance(doc.get("channels", {}), dict):
        raise InvalidOptionError(f"{path}: write channels as tables, [channels.<name>]")
    if not isinstance(doc.get("retention", {}), dict):
        raise InvalidOptionError(f"{path}: write retention as a table, [retention]")
    return doc


def _snapshot_retention(doc: Mapping[str, Any], path: Path | None) -> str:
    table = doc.get("snapshots", {})
    if not isinstance(table, dict):
        raise InvalidOptionError(f"{path}: write the policy for snapshots as a table, [snapshots]")
    only_keys(table, {"retention"}, f"{path}, [snapshots]")
    return str(table.get("retention", "all"))


def _kept(doc: Mapping[str, Any], path: Path | None) -> list[str]:
    table = doc.get("analytics", {})
    if not isinstance(table, dict):
        raise InvalidOptionError(f"{path}: write what analytics keep as a table, [analytics]")
    only_keys(table, {"keep"}, f"{path}, [analytics]")
    names = table.get("keep", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidOptionError(f"{path}, [analytics]: keep is a list of names, not {names!r}")
    return names


def _positive(doc: Mapping[str, Any], key: str, where: object) -> int | None:
    value = doc.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidOptionError(f"{where}: {key} is a whole number of at least 1, not {value!r}")
    return value


def _channel_rule(
    name: str, table: Mapping[str, Any], frequency: int | None, path: Path | None
) -> ChannelRule:
    where = f"{path}, [channels.{name}]"
    only_keys(table, _CHANNEL_KEYS, where)
    if "reducer" not in table:
        raise InvalidOptionError(f'{where} needs a reducer = "module:function"')
    reducer = load_object(table["reducer"])
    type_ = load_object(table.get("type", "builtins:list"))
    own = _positive(table, "snapshot_frequency", where)
    k = frequency or own
    channel = _delta_channel()(reducer, type_, **({} if k is None else {"snapshot_frequency": k}))
    spec = ChannelSpec(name, channel, channel.snapshot_frequency, f"{path}")
    return ChannelRule(spec, table.get("thread_prefix", ""), table.get("namespace", ""))


def _delta_channel() -> Any:
    try:
        from langgraph.channels.delta import DeltaChannel
    except ImportError as error:
        raise InvalidOptionError(
            "folding channels needs langgraph; install langgraph-checkpoint-logstore[langgraph]"
        ) from error
    return DeltaChannel
