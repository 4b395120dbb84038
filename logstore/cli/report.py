"""`logstore report`: a page with plots of a store."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Annotated

import typer

from logstore.analytics.charts import Line, bars, histogram, lines, nothing
from logstore.analytics.report import Figures, figures
from logstore.cli.common import CommandError, console, human_bytes, notes, os_reason
from logstore.cli.inventory import KindSize, measure
from logstore.cli.options import Uri, existing_store
from logstore.cli.snapshots import snapshot_of

Html = Annotated[
    Path,
    typer.Option(
        "--html",
        metavar="FILE",
        help="The page to write, in place of what is there.",
        show_default=False,
    ),
]

_TAILS = 12
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #66707f; --paper: #f5f6f8;
  --card: #ffffff; --grid: #dfe3e8; --a: #2f6fb3; --b: #d1603d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #98a2b1; --paper: #14181e;
  --card: #1d232b; --grid: #343c47; --a: #6aa5e0; --b: #e88a69; } }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif; }
main { max-width: 1280px; margin: 0 auto; padding: 24px 16px 48px; }
h1 { font-size: 22px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 2px; }
p { margin: 0 0 12px; color: var(--soft); }
dl { display: flex; flex-wrap: wrap; gap: 8px 32px; margin: 16px 0 24px; }
dt { color: var(--soft); font-size: 13px; }
dd { margin: 0; font-size: 20px; font-variant-numeric: tabular-nums; }
.cards { display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 380px), 1fr)); }
section { background: var(--card); border-radius: 8px; padding: 16px; min-width: 0; }
svg { width: 100%; height: auto; display: block; }
text { fill: var(--ink); font-size: 12px; }
.unit, .nothing { fill: var(--soft); color: var(--soft); }
.grid { stroke: var(--grid); stroke-width: 1; }
.a { fill: var(--a); } .b { fill: var(--b); }
.line { fill: none; stroke-width: 2; } .line.a { stroke: var(--a); } .line.b { stroke: var(--b); }
"""


def report(uri: Uri, html: Html) -> None:
    """Write a page with plots of a store, which opens from a file and loads nothing.

    It shows what takes the space, growth by step against whole values at every step, how many
    writes a read replays, the distance of snapshots, the log's length, tokens and tools.

    Examples:

        logstore report file:///var/lib/agents --html report.html
    """
    with notes.status("reading"):
        with existing_store(uri) as store:
            sizes = measure(store.objects)
        with snapshot_of(uri) as snapshot:
            found = figures(snapshot)
    try:
        html.write_text(_page(uri, found, sizes), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{html} cannot be written: {os_reason(error)}") from error
    console.print(f"{html}: {found.threads} threads, {found.messages} messages", markup=False)


def _page(uri: str, found: Figures, sizes: dict[str, KindSize]) -> str:
    cards = "\n".join(
        f"<section><h2>{escape(title)}</h2><p>{escape(about)}</p>{chart}</section>"
        for title, about, chart in _cards(found, sizes)
    )
    facts = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in _facts(found))
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(uri)}</title><style>{_STYLE}</style></head>
<body><main><h1>{escape(uri)}</h1><p>as of {now}{escape(_span(found))}</p><dl>{facts}</dl>
<div class="cards">
{cards}
</div></main></body></html>
"""


def _facts(found: Figures) -> list[tuple[str, str]]:
    return [
        ("threads", f"{found.threads:,}"),
        ("checkpoints", f"{found.checkpoints:,}"),
        ("writes", f"{found.writes:,}"),
        ("messages", f"{found.messages:,}"),
        ("tool calls", f"{found.tool_calls:,}"),
    ]


def _span(found: Figures) -> str:
    if found.first_ts is None:
        return ""
    return f"; checkpoints from {found.first_ts:%Y-%m-%d %H:%M} to {found.last_ts:%Y-%m-%d %H:%M}"


def _cards(found: Figures, sizes: dict[str, KindSize]) -> list[tuple[str, str, str]]:
    growth = [
        Line("stored, before compression", [(s, stored) for s, stored, _ in found.growth], "a"),
        Line("whole values at every step", [(s, whole) for s, _, whole in found.growth], "b"),
    ]
    return [
        (
            "Storage by kind",
            "Bytes in the bucket. The log is what waits for compaction, or for its deletion.",
            bars([(kind, size.bytes) for kind, size in sizes.items() if size.bytes], human_bytes)
            or nothing("nothing is stored yet"),
        ),
        (
            "Growth by step",
            "All threads together, until each of them ends. Whole values at every step grow with "
            "the square of the steps.",
            lines(growth, _axis_bytes, "step", base=1024) or nothing("no thread has two steps yet"),
        ),
        (
            "Replay depth",
            "How many writes a read of a thread's head replays, by delta channel.",
            histogram(found.replay_depth, _whole, "writes since the latest snapshot", "channels")
            or nothing("no delta channel has writes to replay"),
        ),
        (
            "Snapshot spacing",
            "Steps from one snapshot of a channel to the next.",
            histogram(found.snapshot_spacing, _whole, "steps", "snapshots")
            or nothing("no channel has two snapshots; compaction makes them"),
        ),
        (
            "Tail length",
            "Segments that no compaction has merged, of the partitions with the most. A long tail "
            "makes reads slow.",
            bars(_longest(found.tail), _whole)
            or nothing("no segment waits: compaction is up to date"),
        ),
        (
            "Messages a thread",
            "As of each thread's head.",
            histogram(found.messages_a_thread, _whole, "messages", "threads")
            or nothing("no channel holds messages"),
        ),
        (
            "Tokens a thread",
            "Input and output, of threads whose messages tell.",
            histogram(found.tokens_a_thread, _short, "tokens", "threads")
            or nothing("no message tells its tokens"),
        ),
        (
            "Tools",
            "Calls; what failed is marked.",
            bars(
                [(name, calls) for name, calls, _ in found.tools],
                _whole,
                [failed for _, _, failed in found.tools],
            )
            or nothing("no tool was called"),
        ),
        (
            "Slowest tools",
            "Median time from the checkpoint with the call to the one with the result.",
            bars(found.slowest, _seconds) or nothing("no call of a tool has a result"),
        ),
    ]


def _longest(tails: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The partitions with the longest tails."""
    waiting = sorted((tail for tail in tails if tail[1]), key=lambda tail: -tail[1])
    return waiting[:_TAILS]


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _short(value: float) -> str:
    return f"{value / 1000:.0f}k" if value >= 10_000 else f"{value:.0f}"


def _axis_bytes(value: float) -> str:
    return human_bytes(value).replace(".0 ", " ")


def _seconds(value: float) -> str:
    if value < 0.001:
        return "under 1 ms"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
