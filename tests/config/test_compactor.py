"""`compactor run --config config.yaml`: the application's own configuration answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from compactor.commands.cli import app
from tests.config.apps import process, say
from tests.helpers import Place

TURNS = "abcdefgh"
"""Two updates each."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(f"file://{tmp_path}/store").create(partitions=1)
    say(process(place.saver(), "delta", 1000), *TURNS)
    yield place
    place.close()


def configured(tmp_path: Path, **database: Any) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps({"database": database}))
    return str(path)


def messages(place: Place) -> int:
    """How many snapshots of the messages the compactor has made."""
    return sum(channel == "messages" for *_, channel in place.snapshots())


@pytest.mark.parametrize("named", ["argument", "configuration"])
@pytest.mark.parametrize(("k", "made"), [(4, 4), (10, 1)])
def test_the_configuration_names_the_cadence_and_the_store(
    tmp_path: Path, place: Place, named: str, k: int, made: int
) -> None:
    config = configured(
        tmp_path,
        checkpoint_channel_mode="delta",
        checkpoint_delta={"snapshot_frequency": k},
        logstore_uri=place.uri if named == "configuration" else "file:///elsewhere",
    )
    uri = [place.uri] if named == "argument" else []
    done = CliRunner().invoke(app, ["run", *uri, "--config", config])
    assert done.exit_code == 0, done.output
    assert messages(place) == made


def test_in_full_mode_nothing_is_folded(tmp_path: Path, place: Place) -> None:
    config = configured(
        tmp_path, checkpoint_delta={"snapshot_frequency": 2}, logstore_uri=place.uri
    )
    assert CliRunner().invoke(app, ["run", "--config", config]).exit_code == 0
    assert messages(place) == 0


@pytest.mark.parametrize(
    ("database", "told"),
    [
        (None, "which store"),
        ({}, "database.logstore_uri is not set"),
        ({"backend": "sqlite", "logstore_uri": "file:///x"}, "database.backend is 'sqlite'"),
    ],
)
def test_without_a_store_the_command_line_is_wrong(
    tmp_path: Path, database: dict[str, Any] | None, told: str
) -> None:
    config = [] if database is None else ["--config", configured(tmp_path, **database)]
    done = CliRunner().invoke(app, ["run", *config])
    assert done.exit_code == 2
    assert told in " ".join(done.output.split())
