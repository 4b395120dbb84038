"""`compactor publish`: Iceberg tables say what the store says, to engines of other people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from pyiceberg.catalog import Catalog
from typer.testing import CliRunner

from compactor.commands.cli import app
from compactor.iceberg import open_catalog, publish
from logstore import analytics
from logstore.errors import UsageError
from logstore.testing.servers import iceberg_seaweedfs
from tests.helpers import Place, Script, memory_place
from tests.iceberg.engines import ENGINES, RestCatalog

TABLE = "agents.support"
COLUMNS = {
    "checkpoints": ("thread_id", "checkpoint_id", "step", "ts"),
    "messages": ("thread_id", "message_id", "position", "role", "text", "ts"),
}
TABLES = {"checkpoints": "checkpoint_id", "messages": "message_id"}

# pyiceberg, SQLAlchemy and polars warn of things that are theirs to mend.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """A catalog in SQLite."""
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    database = f"sqlite:///{tmp_path}/catalog.db"
    return open_catalog("local", {"type": "sql", "uri": database, "warehouse": warehouse.as_uri()})


@pytest.fixture
def place() -> Iterator[Place]:
    """A store of two partitions."""
    with memory_place(partitions=2) as found:
        for number in range(4):
            say(found, f"thread-{number}", "hello", "how are you?")
        yield found


def say(place: Place, thread_id: str, *texts: str, serial: int = 0) -> Script:
    """A thread whose messages are stored as a value."""
    script = Script([place.saver()], thread_id, _serial=serial)
    parent = None
    said: list[Any] = []
    for number, text in enumerate(texts):
        kind = HumanMessage if number % 2 == 0 else AIMessage
        said = [*said, kind(text, id=f"m{number}")]
        parent = script.put(parent, updates=["messages"], values={"messages": said})
    return script


def bring_up_to_date(place: Place, catalog: Catalog) -> dict[str, Any]:
    """Publish, and compare the tables with the store."""
    with analytics.open(place.uri, **place.backend) as snapshot:
        done = {one.table: one for one in publish(snapshot, catalog, TABLE)}
        for name, key in TABLES.items():
            table = catalog.load_table(f"{TABLE}_{name}")
            published = table.scan().to_arrow().select(["thread_id", key]).to_pylist()
            shown = snapshot.scan(name, ["thread_id", key]).read_all().to_pylist()
            assert sorted(map(repr, published)) == sorted(map(repr, shown))
    return {name: done[f"{TABLE}_{name}"] for name in TABLES}


def test_tables_follow_the_store_through_writes_compactions_and_deletes(
    place: Place, catalog: Catalog
) -> None:
    first = bring_up_to_date(place, catalog)
    assert (first["checkpoints"].appended, first["messages"].appended) == (8, 8)
    again = bring_up_to_date(place, catalog)
    assert again["messages"].partitions == again["messages"].appended == 0
    place.compact()
    compacted = bring_up_to_date(place, catalog)
    assert (compacted["messages"].appended, compacted["messages"].deleted) == (0, 0)
    say(place, "thread-0", "hello", "changed", "more", serial=50)
    say(place, "new", "hello")
    place.saver().delete_thread("thread-1")
    place.compact()
    changed = bring_up_to_date(place, catalog)
    assert changed["checkpoints"].appended == 4
    assert changed["checkpoints"].deleted == 2
    place.saver().prune(["thread-2"])
    pruned = bring_up_to_date(place, catalog)
    # What stays shows as a root now: it is another row.
    assert (pruned["checkpoints"].appended, pruned["checkpoints"].deleted) == (1, 2)


def test_a_publish_that_was_killed_between_tables_is_mended(
    place: Place, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(text: str) -> None:
        if "messages: partition 1" in text:
            raise KeyboardInterrupt

    with analytics.open(place.uri) as snapshot, pytest.raises(KeyboardInterrupt):
        publish(snapshot, catalog, TABLE, killed)
    mended = bring_up_to_date(place, catalog)
    assert mended["checkpoints"].appended == 0
    assert mended["messages"].partitions == 1


def test_the_command_publishes_and_tells(tmp_path: Path) -> None:
    place = Place((tmp_path / "store").as_uri()).create()
    say(place, "t", "hello")
    place.close()
    (tmp_path / "warehouse").mkdir()
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": (tmp_path / "warehouse").as_uri(),
    }
    given = [part for item in properties.items() for part in ("--property", "=".join(item))]
    command = ["publish", place.uri, "--catalog", "local", "--table", TABLE, *given]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert "agents.support_messages" in shown.stdout
    tables = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["tables"]
    assert [(one["appended"], one["deleted"]) for one in tables] == [(0, 0), (0, 0)]
    bad = CliRunner().invoke(app, [*command[:5], "nameless", *given])
    assert bad.exit_code == 2
    assert "named with its namespace" in bad.stderr
    nowhere = CliRunner().invoke(app, [*command[:3], "nowhere-at-all", "--table", TABLE])
    assert nowhere.exit_code == 2
    assert "cannot be opened" in nowhere.stderr


def test_a_catalog_that_cannot_be_opened_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="cannot be opened"):
        open_catalog("nowhere-at-all", {})


@pytest.mark.s3
def test_foreign_engines_follow_a_table_of_a_rest_catalog(tmp_path: Path) -> None:
    with iceberg_seaweedfs(tmp_path) as addresses, memory_place(partitions=2) as place:
        served = RestCatalog(*addresses)
        catalog = served.open()
        for name in ("goes", "stays", "grows"):
            say(place, name, "hello", "how are you?")
        bring_up_to_date(place, catalog)
        assert_engines_agree(served, place)
        place.saver().delete_thread("goes")
        say(place, "grows", "hello", "changed", "more", serial=50)
        say(place, "comes", "hello")
        bring_up_to_date(place, catalog)
        assert_engines_agree(served, place)


def assert_engines_agree(served: RestCatalog, place: Place) -> None:
    """Every engine finds in each table exactly the rows that the store shows."""
    with analytics.open(place.uri) as snapshot:
        for table, columns in COLUMNS.items():
            rows = snapshot.scan(table, columns).read_all().to_pylist()
            expected = sorted(tuple(row[name] for name in columns) for row in rows)
            for engine, read in ENGINES.items():
                assert read(served, f"{TABLE}_{table}", columns) == expected, engine
