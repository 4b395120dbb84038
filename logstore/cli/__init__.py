"""The command `logstore`: look into a store, ask it questions, create one, fill one."""

from __future__ import annotations

import typer

from logstore.cli.advise import advise
from logstore.cli.common import Commands, run_app
from logstore.cli.convert import convert
from logstore.cli.doctor import doctor
from logstore.cli.erase import erase
from logstore.cli.export import export
from logstore.cli.history import history
from logstore.cli.ingest import ingest
from logstore.cli.messages import messages
from logstore.cli.report import report
from logstore.cli.show import show
from logstore.cli.sql import sql
from logstore.cli.stores import init, stats
from logstore.cli.tail import tail
from logstore.cli.threads import threads

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="""Look into a store of LangGraph checkpoints, create one, fill one, erase from one.

    A thread does not load? `stats` shows whether the store is whole, `threads` whether the
    thread is there, `history` its checkpoints and forks, `show` what a checkpoint holds and
    which objects it was read from.

    Exit codes: 0 done, 1 the store or the data has a problem, 2 the command line is wrong,
    130 interrupted.
    """,
)
for command in (
    *(init, threads, history, show, stats, ingest, doctor, advise, convert),
    *(sql, messages, tail, export, report, erase),
):
    app.command()(command)


def main() -> None:
    """The entry point of the command."""
    run_app(app)
