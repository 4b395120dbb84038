"""The process's channel mode, frozen at the first graph, and the mode of a checkpoint.

In `full` mode each checkpoint holds the whole list of messages, in `delta` mode what was
written to it. A delta checkpoint's metadata is marked, see `logstore.guard`; the cadence K is
compiled into graphs and marked nowhere. Neither is taken from a request's config.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast, get_args

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from logstore.config import DEFAULT_SNAPSHOT_FREQUENCY, ChannelMode
from logstore.errors import CheckpointModeReconfigurationError, InvalidOptionError
from logstore.forks import fork_safe_lock

MODE_KEY = "deerflow_checkpoint_channel_mode"
"""Where a delta checkpoint's metadata says so; absence means full."""
MESSAGES = "messages"
"""The channel that the mode is about."""
COUNTERS = "counters_since_delta_snapshot"


class FrozenMode(NamedTuple):
    """What the process's graphs are built with."""

    mode: ChannelMode
    snapshot_frequency: int | None
    """K; None in full mode."""


class _Process:
    lock = fork_safe_lock()
    mode: ChannelMode | None = None
    snapshot_frequency: int | None = None


def freeze(mode: ChannelMode | None = None, snapshot_frequency: int | None = None) -> FrozenMode:
    """Fix the process's mode and cadence, or make sure that they are the fixed ones.

    Args:
        mode: what the application's configuration says; None takes what is frozen, or `full`.
        snapshot_frequency: K; None takes what is frozen, or 10. Ignored in full mode.

    Raises:
        CheckpointModeReconfigurationError: another mode or cadence is frozen.
        ValueError: K is not positive.
        InvalidOptionError: there is no such mode.
    """
    with _Process.lock:
        wanted: ChannelMode = mode or _Process.mode or "full"
        if wanted not in get_args(ChannelMode):
            raise InvalidOptionError(f"the channel mode is 'full' or 'delta', not {mode!r}")
        if _Process.mode not in (None, wanted):
            raise CheckpointModeReconfigurationError(
                "checkpoint_channel_mode is restart-required and cannot change in a running process"
            )
        if wanted == "full":
            _Process.mode = wanted
            return FrozenMode(wanted, None)
        k = resolve_snapshot_frequency(snapshot_frequency)
        if _Process.snapshot_frequency not in (None, k):
            raise CheckpointModeReconfigurationError(
                "checkpoint_delta.snapshot_frequency is restart-required and cannot change in a "
                "running process"
            )
        _Process.mode, _Process.snapshot_frequency = wanted, k
        return FrozenMode(wanted, k)


def frozen_mode() -> ChannelMode | None:
    """The mode that the process's graphs are built with; None before the first."""
    return _Process.mode


def resolve_snapshot_frequency(snapshot_frequency: int | None = None) -> int:
    """K: the argument, or else what is frozen, or else 10.

    Raises:
        ValueError: it is not positive.
    """
    if snapshot_frequency is None:
        return _Process.snapshot_frequency or DEFAULT_SNAPSHOT_FREQUENCY
    if snapshot_frequency < 1:
        raise InvalidOptionError("snapshot frequency must be positive")
    return snapshot_frequency


def unfreeze_for_tests() -> None:
    """Forget mode and cadence, as a new process would. For tests only."""
    with _Process.lock:
        _Process.mode = _Process.snapshot_frequency = None


def is_delta(checkpoint: CheckpointTuple) -> bool:
    """Whether a checkpoint was written in delta mode.

    The marker says so. Without one, messages that are counted as a delta channel's, or
    stored as its snapshot, were written by a graph that bypassed the guard.
    """
    metadata = cast("Mapping[str, Any]", checkpoint.metadata or {})
    return (
        metadata.get(MODE_KEY) == "delta"
        or MESSAGES in (metadata.get(COUNTERS) or {})
        or isinstance(checkpoint.checkpoint["channel_values"].get(MESSAGES), _DeltaSnapshot)
    )
