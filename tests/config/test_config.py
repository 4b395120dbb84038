"""The section `database` of config.yaml: keys, defaults, the old key, and what is refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from logstore import LogStoreSaver
from logstore.config import (
    CheckpointDeltaConfig,
    Config,
    DatabaseConfig,
    load_config,
    load_object,
)
from logstore.errors import InvalidOptionError, ReducerImportError, UsageError

BOTH = (
    "Both database.checkpoint_delta_snapshot_frequency (deprecated) and "
    "database.checkpoint_delta.snapshot_frequency are set; the nested key wins."
)
IGNORED = (
    "Ignoring deprecated database.checkpoint_delta_snapshot_frequency because "
    "database.checkpoint_delta is already set."
)
CARRIED = (
    "database.checkpoint_delta_snapshot_frequency is deprecated; use "
    "database.checkpoint_delta.snapshot_frequency instead. Carried the legacy value (25) forward."
)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text, "utf-8")
    return path


def test_every_key_is_read(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
database:
  checkpoint_channel_mode: delta
  checkpoint_delta:
    snapshot_frequency: 7
  checkpoint_cache:
    max_entries: 0
  backend: logstore
  logstore_uri: s3://bucket/prefix
""",
    )
    database = load_config(path).database
    assert database.checkpoint_channel_mode == "delta"
    assert database.checkpoint_delta.snapshot_frequency == database.snapshot_frequency == 7
    assert database.checkpoint_cache.max_entries == 0
    assert database.backend == "logstore"
    assert database.logstore_uri == "s3://bucket/prefix"


@pytest.mark.parametrize(
    "text",
    ["", "models: []\n", "database:\n", "database: {}\n", "database:\n  checkpoint_delta:\n"],
    ids=["empty", "other sections", "nothing below", "empty section", "nothing below a key"],
)
def test_what_is_left_out_has_its_default(tmp_path: Path, text: str) -> None:
    database = load_config(written(tmp_path, text)).database
    assert database.checkpoint_channel_mode == "full"
    assert database.checkpoint_delta.snapshot_frequency == 10
    assert database.checkpoint_cache.max_entries == 128
    assert database.logstore_uri is None


def test_unknown_keys_belong_to_the_application(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "log_level: info\ndatabase:\n  postgres_url: $DATABASE_URL\n  checkpoint_graph_cache:\n"
        "    accessor_graph_max: 64\n  checkpoint_cache:\n    type: memory\n",
    )
    assert load_config(path) == Config()


def test_the_cadence_is_ignored_in_full_mode() -> None:
    database = DatabaseConfig.model_validate({"checkpoint_delta": {"snapshot_frequency": 3}})
    assert database.checkpoint_channel_mode == "full"
    assert database.snapshot_frequency is None


def test_the_uri_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, "database:\n  logstore_uri: $AGENTS_URI\n")
    monkeypatch.setenv("AGENTS_URI", "file:///var/lib/agents")
    assert load_config(path).database.logstore_uri == "file:///var/lib/agents"
    monkeypatch.delenv("AGENTS_URI")
    with pytest.raises(InvalidOptionError, match="AGENTS_URI is not set"):
        load_config(path)


# -- the old flat key ------------------------------------------------------------------


def legacy(**database: Any) -> DatabaseConfig:
    return DatabaseConfig.model_validate({"checkpoint_delta_snapshot_frequency": 25, **database})


@pytest.mark.parametrize(
    ("database", "expected", "warning"),
    [
        ({}, 25, CARRIED),
        ({"checkpoint_delta": None}, 25, CARRIED),
        ({"checkpoint_delta": {}}, 25, CARRIED),
        ({"checkpoint_delta": {"snapshot_frequency": 4}}, 4, BOTH),
        ({"checkpoint_delta": CheckpointDeltaConfig(snapshot_frequency=4)}, 4, IGNORED),
        ({"checkpoint_delta": CheckpointDeltaConfig()}, 10, IGNORED),
    ],
    ids=["alone", "null", "nested is empty", "both", "an object", "an object with the default"],
)
def test_the_old_key_is_carried_over_and_the_nested_one_wins(
    caplog: pytest.LogCaptureFixture, database: dict[str, Any], expected: int, warning: str
) -> None:
    with caplog.at_level(logging.WARNING, "logstore.config"):
        found = legacy(**database)
    assert found.checkpoint_delta.snapshot_frequency == expected
    assert [record.getMessage() for record in caplog.records] == [warning]


def test_the_carried_value_is_shown_as_it_was_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, "database:\n  checkpoint_delta_snapshot_frequency: '30'\n")
    assert load_config(path).database.checkpoint_delta.snapshot_frequency == 30
    assert caplog.messages == [CARRIED.replace("(25)", "('30')")]


def test_without_the_old_key_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    DatabaseConfig.model_validate({"checkpoint_delta": {"snapshot_frequency": 4}})
    assert caplog.messages == []


def test_the_given_mapping_is_not_changed() -> None:
    given = {"checkpoint_delta_snapshot_frequency": 25, "checkpoint_delta": {}}
    DatabaseConfig.model_validate(given)
    assert given == {"checkpoint_delta_snapshot_frequency": 25, "checkpoint_delta": {}}


# -- what is refused --------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, "ten", 1.5, True, None])
def test_a_cadence_is_a_whole_number_of_at_least_one(value: Any) -> None:
    with pytest.raises(ValidationError):
        DatabaseConfig.model_validate({"checkpoint_delta": {"snapshot_frequency": value}})
    with pytest.raises(ValidationError):
        legacy(checkpoint_delta_snapshot_frequency=value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("database: [", "not valid YAML"),
        ("- database", "is a list"),
        ("database: 3", "database: "),
        ("database:\n  checkpoint_channel_mode: deltas\n", "database.checkpoint_channel_mode: "),
        (
            "database:\n  checkpoint_delta:\n    snapshot_frequency: 0\n",
            "database.checkpoint_delta.snapshot_frequency: Input should be greater than or equal",
        ),
        (
            "database:\n  checkpoint_delta:\n    snapshot_frequency: yes\n",
            "expected a whole number, not true",
        ),
        ("database:\n  checkpoint_cache:\n    max_entries: -1\n", "max_entries"),
    ],
)
def test_a_mistake_names_the_file_and_the_key(tmp_path: Path, text: str, told: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidOptionError) as caught:
        load_config(path)
    assert str(path) in str(caught.value)
    assert told in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="cannot be read"):
        load_config(tmp_path / "none.yaml")


def test_a_tag_that_would_run_code_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "database: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(InvalidOptionError, match="not valid YAML"):
        load_config(path)


@pytest.mark.parametrize("path", ["nothing", "a:", ":b", "no.such.module:x", "json:no_such.thing"])
def test_an_import_path_that_does_not_resolve_is_refused(path: str) -> None:
    with pytest.raises(ReducerImportError, match="import"):
        load_object(path)


def test_an_import_path_may_name_an_attribute_of_an_attribute() -> None:
    assert load_object("logstore.config:DatabaseConfig.model_validate") is not None


# -- the saver that it makes ------------------------------------------------------------------


def configured(tmp_path: Path, **database: Any) -> Config:
    given = {"logstore_uri": f"file://{tmp_path}/store", **database}
    return Config(database=DatabaseConfig.model_validate(given))


@pytest.mark.parametrize("how", ["path", "text", "config"])
def test_a_saver_is_made_from_the_configuration(tmp_path: Path, how: str) -> None:
    uri = f"file://{tmp_path}/store"
    path = written(tmp_path, f"database: {{logstore_uri: '{uri}', backend: logstore}}")
    given: dict[str, Any] = {"path": path, "text": str(path), "config": load_config(path)}
    with LogStoreSaver.from_config(given[how]) as saver:
        assert saver.uri == uri
        assert saver.store.options.history_entries == 128


def test_the_saver_keeps_as_many_histories_as_the_configuration_says(tmp_path: Path) -> None:
    for entries in (0, 7):
        config = configured(tmp_path, checkpoint_cache={"max_entries": entries})
        with LogStoreSaver.from_config(config, compaction="off") as saver:
            assert saver.store.options.history_entries == entries


def test_an_option_of_the_call_wins_over_the_configuration(tmp_path: Path) -> None:
    options: dict[str, Any] = {"durability": "buffered", "history_entries": 2}
    with LogStoreSaver.from_config(configured(tmp_path), compaction="off", **options) as saver:
        assert saver.durability == "buffered"
        assert saver.store.options.history_entries == 2


@pytest.mark.parametrize(
    ("database", "message"),
    [
        ({"backend": "postgres"}, "database.backend is 'postgres'"),
        ({"logstore_uri": None}, "database.logstore_uri is not set"),
        ({"logstore_uri": "gopher://somewhere"}, "gopher"),
    ],
)
def test_a_configuration_that_names_no_store_of_ours_makes_no_saver(
    tmp_path: Path, database: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        LogStoreSaver.from_config(configured(tmp_path, **database))
