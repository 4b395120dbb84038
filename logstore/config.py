"""The application's `config.yaml`, as DeerFlow's operators know it: its section `database`.

::

    database:
      checkpoint_channel_mode: delta      # full | delta
      checkpoint_delta:
        snapshot_frequency: 10            # K; ignored in full mode
      checkpoint_cache:
        max_entries: 128                  # 0 disables
      backend: logstore
      logstore_uri: s3://bucket/prefix    # or $NAME, of an environment variable

Other sections, and keys of this one that are not known here, belong to the application and
are passed over. Mode and cadence need a restart to change, see `logstore.modes`.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from logstore.errors import InvalidOptionError, ReducerImportError

logger = logging.getLogger(__name__)

ChannelMode = Literal["full", "delta"]
DEFAULT_SNAPSHOT_FREQUENCY = 10
DEFAULT_HISTORY_ENTRIES = 128

_LEGACY_KEY = "checkpoint_delta_snapshot_frequency"


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"expected a whole number, not {str(value).lower()}")
    return value


_Count = Annotated[int, BeforeValidator(_no_truth_value)]


class CheckpointDeltaConfig(BaseModel):
    """How the messages are kept in `delta` mode; ignored in `full` mode."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    snapshot_frequency: _Count = Field(default=DEFAULT_SNAPSHOT_FREQUENCY, ge=1)
    """K: a snapshot at every K-th update of the channel. All processes that write one store
    need the same, because it is compiled into their graphs and stored nowhere."""


class CheckpointCacheConfig(BaseModel):
    """The cache of delta histories; processes may differ in it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    max_entries: _Count = Field(default=DEFAULT_HISTORY_ENTRIES, ge=0)
    """How many histories a process keeps in memory; 0 keeps none."""


class DatabaseConfig(BaseModel):
    """The section `database`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    checkpoint_channel_mode: ChannelMode = "full"
    checkpoint_delta: CheckpointDeltaConfig = Field(default_factory=CheckpointDeltaConfig)
    checkpoint_cache: CheckpointCacheConfig = Field(default_factory=CheckpointCacheConfig)
    backend: str = "logstore"
    logstore_uri: str | None = None
    """Where the store is; None if the application says it elsewhere."""

    @property
    def snapshot_frequency(self) -> int | None:
        """K if it counts: None in full mode."""
        if self.checkpoint_channel_mode == "full":
            return None
        return self.checkpoint_delta.snapshot_frequency

    def require_uri(self) -> str:
        """Where the store is, for a process that cannot do without.

        Raises:
            InvalidOptionError: checkpoints go to another backend, or the place is not given.
        """
        if self.backend != "logstore":
            raise InvalidOptionError(
                f"database.backend is {self.backend!r}, and only 'logstore' keeps checkpoints in "
                "an object store; set it to logstore, or build the saver of that backend"
            )
        if self.logstore_uri is None:
            raise InvalidOptionError(
                "database.logstore_uri is not set; give the store's place, like s3://bucket/prefix"
            )
        return self.logstore_uri

    @model_validator(mode="before")
    @classmethod
    def _carry_legacy_frequency(cls, data: Any) -> Any:
        """Carry the old flat key over; the nested one always wins."""
        if not isinstance(data, Mapping):
            return data
        given = {k: v for k, v in data.items() if k not in _SECTIONS or v is not None}
        if _LEGACY_KEY not in given:
            return given
        legacy, nested = given.pop(_LEGACY_KEY), given.get("checkpoint_delta", {})
        if not isinstance(nested, Mapping):
            logger.warning(
                "Ignoring deprecated database.checkpoint_delta_snapshot_frequency because "
                "database.checkpoint_delta is already set."
            )
        elif "snapshot_frequency" in nested:
            logger.warning(
                "Both database.checkpoint_delta_snapshot_frequency (deprecated) and "
                "database.checkpoint_delta.snapshot_frequency are set; the nested key wins."
            )
        else:
            given["checkpoint_delta"] = {**nested, "snapshot_frequency": legacy}
            logger.warning(
                "database.checkpoint_delta_snapshot_frequency is deprecated; use "
                "database.checkpoint_delta.snapshot_frequency instead. Carried the legacy value "
                "(%r) forward.",
                legacy,
            )
        return given

    @field_validator("logstore_uri")
    @classmethod
    def _from_environment(cls, value: str | None) -> str | None:
        if value is None or not value.startswith("$"):
            return value
        name = value[1:].strip("{}")
        if name not in os.environ:
            raise ValueError(f"the environment variable {name} is not set")
        return os.environ[name]


_SECTIONS = ("checkpoint_delta", "checkpoint_cache")
"""Sections that may stand in the file with nothing below them."""


class Config(BaseModel):
    """What this package reads of the application's configuration."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    database: DatabaseConfig = Field(default_factory=DatabaseConfig)


def load_config(path: str | Path) -> Config:
    """Read the application's `config.yaml`.

    Args:
        path: a YAML file. One without a section `database` gives the defaults.

    Raises:
        InvalidOptionError: it cannot be read, is no YAML, or has a value that is not allowed.
    """
    try:
        doc = yaml.safe_load(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOptionError(f"the configuration {path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise InvalidOptionError(f"the configuration {path} is not valid YAML: {error}") from error
    if doc is not None and not isinstance(doc, dict):
        raise InvalidOptionError(
            f"the configuration {path} is a {type(doc).__name__}; write it as sections, the first "
            "of them `database:`"
        )
    sections = {name: found for name, found in (doc or {}).items() if found is not None}
    try:
        return Config.model_validate(sections)
    except ValidationError as error:
        raise InvalidOptionError(f"the configuration {path}: {_mistakes(error)}") from error


def _mistakes(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, one['loc']))}: {one['msg']}"
        for one in error.errors(include_url=False, include_input=False)
    )


def load_object(path: str) -> Any:
    """What an operator's `module:attribute` names.

    Raises:
        ReducerImportError: it does not resolve.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ReducerImportError(
            f"{path!r} is no import path; write it as module:attribute, like my_app.agent:graph"
        )
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # importing runs the operator's code, which may raise anything
        raise ReducerImportError(
            f"{path!r} cannot be imported ({type(error).__name__}: {error}); run the command "
            "where your application is installed, or add its folder to PYTHONPATH"
        ) from error
    return found
