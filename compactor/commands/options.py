"""Options that several of the compactor's commands take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from compactor.commands.config import Operation, is_of_application, load_operation
from logstore.config import load_config
from logstore.errors import InvalidOptionError

StoreUri = Annotated[
    str | None,
    typer.Argument(
        metavar="[URI]",
        help="The store: file:///dir or s3://bucket/prefix?endpoint_url=…&region=…; without it "
        "the logstore_uri of --config.",
        show_default=False,
    ),
]
Graph = Annotated[
    str | None,
    typer.Option(metavar="MODULE:ATTR", help="A compiled graph; its delta channels are folded."),
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A TOML file with [channels.<name>] tables, or the application's config.yaml.",
    ),
]
Serde = Annotated[
    str | None, typer.Option(metavar="MODULE:ATTR", help="The saver's serde, if not LangGraph's.")
]
Frequency = Annotated[
    int | None,
    typer.Option(
        "--snapshot-frequency", metavar="K", min=1, help="K for all channels, not their own."
    ),
]
SnapshotRetention = Annotated[
    str | None,
    typer.Option(
        "--retention",
        metavar="POLICY",
        help="Which snapshots stay: 'all', 'newest N' or 'powers of two'.",
        show_default="all",
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="How much memory the job may take besides the interpreter and its libraries, such as "
        "512MB or 2GB; at least 256MB. A thread's index and manifest, and single values, must fit.",
        show_default="512MB",
    ),
]
Keep = Annotated[
    str | None,
    typer.Option(
        metavar="TABLES",
        help="Tables to keep for analytics: messages, tool_calls, or both with a comma between.",
    ),
]
Partitions = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="Only these partitions, for example 0,3-5."),
]
Threads = Annotated[
    list[str] | None,
    typer.Argument(metavar="[THREAD]...", help="Only these threads.", show_default=False),
]


def parse_partitions(text: str | None) -> list[int] | None:
    """The partitions of a list such as `0,3-5`.

    Raises:
        InvalidOptionError: it is none.
    """
    if text is None:
        return None
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise InvalidOptionError(
                f"--partitions takes numbers and ranges, for example 0,3-5, not {text!r}"
            )
        found.update(range(first, last + 1))
    return sorted(found)


def uri_of(uri: str | None, config: Path | None) -> str:
    """Where the store is: the argument, or what the application's configuration says.

    Raises:
        InvalidOptionError: neither tells.
    """
    if uri is not None:
        return uri
    if config is None or not is_of_application(config):
        raise InvalidOptionError(
            "which store? Name its URI, or pass --config with an application's config.yaml that "
            "has database.logstore_uri"
        )
    return load_config(config).database.require_uri()


def operation_of(
    graph: str | None,
    config: Path | None,
    serde: str | None,
    frequency: int | None,
    retention: str | None = None,
    memory: str | None = None,
    keep: str | None = None,
) -> Operation:
    """What the options and the configuration file name.

    Raises:
        InvalidOptionError: an option or the file has a mistake.
        ReducerImportError: an import path does not resolve.
    """
    if frequency is not None and graph is None and config is None:
        raise InvalidOptionError(
            "--snapshot-frequency needs --graph or --config, which name the channels to fold"
        )
    return load_operation(
        graph=graph,
        config=config,
        serde=serde,
        frequency=frequency,
        retention=retention,
        memory=memory,
        keep=None if keep is None else [name.strip() for name in keep.split(",")],
    )
