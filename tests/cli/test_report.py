"""`logstore report`: a page of plots that opens from a file."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from langchain_core.messages import AIMessage, HumanMessage

from logstore import LogStoreSaver, analytics
from logstore.analytics.charts import Line, bars, histogram, lines
from logstore.analytics.report import figures
from tests.cli.conftest import Stocked, error_line, run
from tests.helpers import Place, Script

CARDS = (
    "Storage by kind",
    "Growth by step",
    "Replay depth",
    "Snapshot spacing",
    "Tail length",
    "Messages a thread",
    "Tokens a thread",
    "Tools",
    "Slowest tools",
)


class Page(HTMLParser):
    """The headings and the elements of a page; void elements aside, all must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.headings: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


def test_the_page_stands_alone_and_has_every_plot(compacted: Stocked, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    shown = run("report", compacted.uri, "--html", path)
    assert shown.exit_code == 0, shown.stderr
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert not page.open
    assert tuple(page.headings) == CARDS
    assert page.tags.count("svg") >= 6
    assert not re.search(r"https?://|src=|@import|<script|url\(", text)
    assert "prefers-color-scheme" in text


def test_figures_are_those_of_the_store(compacted: Stocked) -> None:
    with analytics.open(compacted.uri) as snapshot:
        found = figures(snapshot)
        messages = snapshot.scan("messages").read_all().num_rows
    assert found.threads == 3
    assert found.messages == sum(found.messages_a_thread) == messages
    assert found.tool_calls == sum(calls for _, calls, _ in found.tools)
    steps, stored, whole = zip(*found.growth, strict=True)
    assert list(steps) == sorted(steps)
    assert list(stored) == sorted(stored)
    assert whole[-1] > stored[-1] / 4
    assert max(found.replay_depth) <= 10 + 1
    assert all(gap >= 10 for gap in found.snapshot_spacing)
    assert {count for _, count in found.tail} == {0}


def test_tokens_show_where_messages_tell_them(tmp_path: Path) -> None:
    uri = (tmp_path / "store").as_uri()
    usage = {"input_tokens": 5, "output_tokens": 6, "total_tokens": 11}
    with LogStoreSaver.from_conn_string(uri, compaction="off") as saver:
        script = Script([saver])
        said = [HumanMessage("q", id="q"), AIMessage("a", id="a", usage_metadata=usage)]
        script.put(updates=["messages"], values={"messages": said})
    with analytics.open(uri) as snapshot:
        assert figures(snapshot).tokens_a_thread == [11]
        assert sum(count for _, count in figures(snapshot).tail) == 1


def test_an_empty_store_gives_a_page_too(tmp_path: Path) -> None:
    place = Place((tmp_path / "store").as_uri()).create()
    path = tmp_path / "report.html"
    assert run("report", place.uri, "--html", path).exit_code == 0
    assert "no tool was called" in path.read_text(encoding="utf-8")
    failed = run("report", place.uri, "--html", tmp_path / "no" / "report.html")
    assert "cannot be written" in error_line(failed)


def test_names_from_a_store_are_text_and_never_markup() -> None:
    hostile = "<script>alert(1)</script>"
    drawn = bars([(hostile, 1.0)], str)
    assert "<script" not in drawn
    assert "&lt;script" in drawn


def test_charts_draw_what_they_are_given() -> None:
    assert histogram([1, 1, 2, 30], str, "n", "m").count("<rect") == 15
    assert histogram([], str, "n", "m") == bars([], str) == lines([], str, "n") == ""
    drawn = lines([Line("a", [(0, 0), (75, 35 << 20)], "a")], str, "n", base=1024)
    assert drawn.count("<polyline") == 1
    assert all(f">{n * 10 << 20}.0<" in drawn for n in (1, 2, 3))
    assert all(f">{n}<" in drawn for n in (20, 40, 60))
    assert bars([("x", 0.0)], str).count("<rect") == 1
