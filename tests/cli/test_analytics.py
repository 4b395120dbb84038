"""`logstore sql`, `messages`, `tail` and `export`, as people and programs use them."""

from __future__ import annotations

import csv
import io
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from logstore import analytics
from logstore.cli.folder import ParquetFolder
from tests.cli.conftest import Stocked, error_line, run, run_json
from tests.cli.test_readme import blocks
from tests.helpers import Place, Script


def counts(stock: Stocked) -> dict[str, int]:
    """How many messages of each role are in the conversations of a store without its fork."""
    roles = [m["role"] for c in stock.conversations[1:] for m in c["messages"]]
    return {role: roles.count(role) for role in sorted(set(roles))}


@pytest.fixture(params=["stocked", "compacted"])
def stock(request: pytest.FixtureRequest) -> Stocked:
    """The store before and after compaction."""
    found: Stocked = request.getfixturevalue(request.param)
    return found


def test_sql_gives_the_same_rows_in_every_form(stock: Stocked, tmp_path: Path) -> None:
    query = f"SELECT role, count(*) AS n FROM messages WHERE thread_id <> '{stock.forked}' GROUP BY role ORDER BY 1"
    expected = counts(stock)
    rows = json.loads(run("sql", stock.uri, query, "--json").stdout)
    assert {row["role"]: row["n"] for row in rows} == expected
    lines = csv.DictReader(io.StringIO(run("sql", stock.uri, query, "--csv").stdout))
    assert {line["role"]: int(line["n"]) for line in lines} == expected
    path = tmp_path / "roles.parquet"
    assert "rows, " in run("sql", stock.uri, query, "--parquet", path).stdout
    assert {r["role"]: r["n"] for r in pq.read_table(path).to_pylist()} == expected
    assert [p.name for p in tmp_path.iterdir()] == ["roles.parquet"]
    shown = run("sql", stock.uri, query).stdout.splitlines()
    assert [line.split() for line in shown[1:]] == [[r, str(n)] for r, n in expected.items()]


def test_sql_says_what_is_wrong(stocked: Stocked, tmp_path: Path) -> None:
    wrong = run("sql", stocked.uri, "SELECT nope FROM messages")
    assert wrong.exit_code == 2
    assert "nope" in error_line(wrong)
    misspelt = error_line(run("sql", stocked.uri, "SELECT\n1 FROM mesages"))
    assert 'Did you mean "messages"' in misspelt
    assert "SHOW TABLES" in misspelt
    assert "LINE 1" not in error_line(run("sql", stocked.uri, "SELEC 1"))
    for form in (["--json"], ["--parquet", tmp_path / "twins.parquet"]):
        twins = run("sql", stocked.uri, "SELECT 1 AS a, 2 AS a", *form)
        assert "more than one column 'a'" in error_line(twins)
        assert twins.exit_code == 2
    path = tmp_path / "no" / "file.parquet"
    unwritable = error_line(run("sql", stocked.uri, "SELECT 1", "--parquet", path))
    assert unwritable.endswith("no is no directory")
    both = run("sql", stocked.uri, "SELECT 1", "--csv", "--json")
    assert "choose one" in error_line(both)
    nowhere = run("sql", (tmp_path / "no").as_uri(), "SELECT 1")
    assert nowhere.exit_code == 1
    assert "no store at" in error_line(nowhere)
    assert not (tmp_path / "no").exists()
    assert run("sql", stocked.uri, "SELECT 1 WHERE false").stdout == "no rows\n"
    assert json.loads(run("sql", stocked.uri, "SELECT 1 WHERE false", "--json").stdout) == []


def test_sql_lists_the_documented_tables_and_takes_one_statement(stocked: Stocked) -> None:
    rows = json.loads(run("sql", stocked.uri, "SHOW TABLES", "--json").stdout)
    assert [row["name"] for row in rows] == sorted([*analytics.SCHEMAS, "records"])
    assert run("sql", stocked.uri, "SELECT 'a;b' AS a; -- one").stdout.split() == ["a", "a;b"]
    for query in ("SELECT 1; SELECT 2", ""):
        refused = run("sql", stocked.uri, query)
        assert refused.exit_code == 2
        assert "statement" in error_line(refused)


def test_a_large_value_is_never_exported_as_a_reference_in_silence(tmp_path: Path) -> None:
    place = Place((tmp_path / "store").as_uri()).create(partitions=1)
    text = "".join(random.Random(1).choices("abcdefgh", k=1_000_000))
    script = Script([place.saver()])
    script.write(script.put(), text)
    place.saver().flush()
    for compacted in (False, True):
        if compacted:
            place.compact()
        shown = run("export", place.uri, tmp_path / f"writes-{compacted}", "--what", "writes")
        (row,) = ds.dataset(tmp_path / f"writes-{compacted}").to_table().to_pylist()
        assert row["encoding"] == ("object" if compacted else "raw")
        assert (row["value"] is None) == compacted == ("--what decoded" in shown.stderr)
        run("export", place.uri, tmp_path / f"decoded-{compacted}", "--what", "decoded")
        whole = ds.dataset(tmp_path / f"decoded-{compacted}").to_table().to_pylist()
        assert text in json.dumps([json.loads(row["json"]) for row in whole])


def test_rows_too_wide_for_a_terminal_are_shown_one_below_the_other(
    stocked: Stocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    wide = run("sql", stocked.uri, "SELECT * FROM messages LIMIT 2").stdout
    assert "row 2" in wide
    assert any("role" in line and "user" in line for line in wide.splitlines())
    narrow = run("sql", stocked.uri, "SELECT 1 AS a, 'x' AS b").stdout
    assert "row" not in narrow


def test_json_is_what_every_parser_takes(stocked: Stocked) -> None:
    query = "SELECT 'nan'::DOUBLE AS a, ['inf'::DOUBLE, 1.5] AS b, DATE '2026-01-02' AS c"
    shown = run("sql", stocked.uri, query, "--json").stdout

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    (row,) = json.loads(shown, parse_constant=refuse)
    assert row == {"a": None, "b": [None, 1.5], "c": "2026-01-02"}


def test_sql_shows_the_first_rows_and_says_that_there_are_more(stocked: Stocked) -> None:
    shown = run("sql", stocked.uri, "FROM range(9)", "--limit", 3)
    assert len(shown.stdout.splitlines()) == 4
    assert "first 3 rows" in shown.stderr
    assert len(run("sql", stocked.uri, "FROM range(9)", "--limit", 0).stdout.splitlines()) == 10


def test_messages_of_a_thread_read_as_the_conversation(stock: Stocked) -> None:
    conversation = stock.conversations[1]
    document = run_json("messages", stock.uri, stock.linear)
    assert [row["role"] for row in document["messages"]] == [
        m["role"] for m in conversation["messages"]
    ]
    shown = run("messages", stock.uri, stock.linear).stdout
    for message in conversation["messages"]:
        if isinstance(message["content"], str) and message["content"].isascii():
            assert message["content"].splitlines()[0] in shown
        for call in message.get("tool_calls") or ():
            assert f"→ {call['function']['name']}(" in shown
    missing = run("messages", stock.uri, "nobody")
    assert "has no messages" in error_line(missing)
    assert "has no messages" in error_line(run("messages", stock.uri, "nobody", "--json"))
    two = run_json("messages", stock.uri, stock.linear, "--limit", 2)
    assert two["messages"] == document["messages"][:2]
    assert two["more"]


def test_messages_of_all_threads_take_a_line_each(stock: Stocked) -> None:
    shown = run("messages", stock.uri, "--limit", 4)
    assert len(shown.stdout.splitlines()) == 5
    assert "--limit 0" in shown.stderr
    document = run_json("messages", stock.uri, "--limit", 0, "--history", "--all-branches")
    assert not document["more"]
    assert {row["thread_id"] for row in document["messages"]} == {
        c["thread_id"] for c in stock.conversations
    }


def test_export_writes_a_folder_for_each_value(stock: Stocked, tmp_path: Path) -> None:
    target = tmp_path / "out"
    report = run_json(
        "export", stock.uri, target, "--partition-by", "date", "--partition-by", "role"
    )
    table = ds.dataset(target, partitioning="hive").to_table()
    assert table.num_rows == report["rows"] > sum(counts(stock).values())
    assert len(report["files"]) == len(counts(stock))
    assert all("/date=" in name and "/role=" in name for name in report["files"])
    again = run("export", stock.uri, target)
    assert "not empty" in error_line(again)
    wrong = run("export", stock.uri, tmp_path / "new", "--partition-by", "colour")
    assert "no column 'colour'" in error_line(wrong)
    assert "no table 'letters'" in error_line(
        run("export", stock.uri, tmp_path / "new", "--what", "letters")
    )


def test_an_empty_store_gives_no_rows_and_no_error(tmp_path: Path) -> None:
    place = Place((tmp_path / "store").as_uri()).create()
    assert json.loads(run("sql", place.uri, "FROM messages", "--json").stdout) == []
    assert "no messages" in run("messages", place.uri).stdout
    place.close()


def test_a_file_in_no_directory_is_refused_before_the_query(
    stocked: Stocked, tmp_path: Path
) -> None:
    nowhere = tmp_path / "nowhere" / "x.parquet"
    refused = run("sql", stocked.uri, "FROM messages", "--parquet", str(nowhere))
    assert error_line(refused).endswith(f"{nowhere.parent} is no directory")
    assert refused.exit_code == 1


def test_an_export_that_fails_leaves_nothing(stocked: Stocked, tmp_path: Path) -> None:
    target = tmp_path / "out"
    nested = run("export", stocked.uri, target, "--partition-by", "tool_call_ids")
    assert "no names of folders" in error_line(nested)
    assert not target.exists()
    (tmp_path / "file").touch()
    inside = run("export", stocked.uri, tmp_path / "file" / "out")
    assert "cannot be written: Not a directory" in error_line(inside)
    columns = pa.schema([("a", pa.string()), ("b", pa.int64())])
    rows = pa.RecordBatch.from_pylist([{"a": "x", "b": 1}, {"a": None, "b": 2}], columns)
    with pytest.raises(ZeroDivisionError), ParquetFolder(target, columns, ["a"]) as folder:
        folder.write(rows)
        raise ZeroDivisionError
    assert not target.exists()


def test_an_export_without_rows_still_tells_its_columns(tmp_path: Path) -> None:
    place = Place((tmp_path / "store").as_uri()).create()
    report = run_json("export", place.uri, tmp_path / "out")
    assert report["rows"] == 0
    (only,) = report["files"]
    assert "text" in pq.read_schema(only).names
    assert run_json("export", place.uri, tmp_path / "dated", "--partition-by", "date")["rows"] == 0
    assert (tmp_path / "dated").is_dir()


def test_folders_keep_every_row_and_any_name(tmp_path: Path) -> None:
    columns = pa.schema([("who", pa.string()), ("n", pa.int64()), ("even", pa.bool_())])
    names = ["a/b", "c d=%", "", None, *(f"thread-{n}" for n in range(100))]
    rows = [
        {"who": names[n % len(names)], "n": n, "even": n % 2 == 0} for n in range(5 * len(names))
    ]
    with ParquetFolder(tmp_path / "out", columns, ["who", "even"]) as folder:
        for start in range(0, len(rows), 50):
            folder.write(pa.RecordBatch.from_pylist(rows[start : start + 50], columns))
    hive = pa.schema([("who", pa.string()), ("even", pa.bool_())])
    found = ds.dataset(folder.directory, partitioning=ds.partitioning(hive, flavor="hive"))
    expected = pa.Table.from_pylist(rows, columns).sort_by("n")
    assert found.to_table().select(columns.names).sort_by("n").equals(expected)


def test_large_values_are_written_as_they_come(tmp_path: Path) -> None:
    columns = pa.schema([("value", pa.binary())])
    image = bytes(3 << 20)
    with ParquetFolder(tmp_path / "out", columns, []) as folder:
        for _ in range(12):
            folder.write(pa.RecordBatch.from_pylist([{"value": image}], columns))
    (path,) = folder.files
    written = pq.ParquetFile(path).metadata
    assert written.num_rows == 12
    groups = range(written.num_row_groups)
    assert max(written.row_group(n).total_byte_size for n in groups) <= 10 << 20


def test_tail_shows_the_newest_events(stocked: Stocked) -> None:
    shown = run("tail", stocked.uri, "--limit", 2).stdout.splitlines()
    assert len(shown) == 2
    assert "gone" in shown[-1]
    assert shown[-1].endswith("deleted")
    everything = run("tail", stocked.uri, "--limit", 0).stdout
    assert "HumanMessage: " in everything
    events = [json.loads(line) for line in run("tail", stocked.uri, "--json").stdout.splitlines()]
    assert len(events) == 20
    assert events == sorted(events, key=lambda event: event["arrived"])


def test_tail_says_when_there_is_nothing(tmp_path: Path) -> None:
    place = Place((tmp_path / "store").as_uri()).create()
    shown = run("tail", place.uri)
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "no events" in shown.stderr


def test_tail_follows_what_lands(tmp_path: Path) -> None:
    place = Place((tmp_path / "store").as_uri()).create()
    program = "from logstore.cli import main; main()"
    command = [sys.executable, "-c", program, "tail", place.uri, "--follow", "--json"]
    following = subprocess.Popen(
        [*command, "--interval", "0.05"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        script = Script([place.saver()])
        (first,) = script.chain(1)
        time.sleep(0.3)
        script.write(first, "hello")
        assert following.stdout is not None
        events = [json.loads(following.stdout.readline()) for _ in range(2)]
    finally:
        following.terminate()
        following.communicate()
        place.close()
    assert [(e["kind"], e["thread_id"]) for e in events] == [("checkpoint", "t"), ("write", "t")]
    assert events[1]["text"] == "[hello]"


def test_the_queries_of_the_readme_run(compacted: Stocked) -> None:
    queries = blocks("README.md", "sql")
    assert len(queries) == 5
    for query, output in zip(queries, blocks("README.md", "text"), strict=True):
        shown = run("sql", compacted.uri, query, "--csv")
        assert shown.exit_code == 0, shown.stderr
        assert shown.stdout.splitlines()[0].split(",") == output.splitlines()[0].split()
