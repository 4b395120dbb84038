"""Reducers are told apart by their code, and snapshots of two of them are never mixed."""

from __future__ import annotations

import functools
import importlib.util
import operator
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver

from compactor.commands.status import read_status
from compactor.folding.fingerprint import fingerprint, import_path
from logstore.channels import merge_message_writes
from tests.helpers import Place, Script, append, assert_same_tuple, rebuilt, thread

SOURCE = """
import json
LIMIT = 3
def helper(x):
    return x + 1
def merge(state, writes):
    return state + [helper(i) for w in writes for i in w][:LIMIT]
def outer(n):
    return lambda state, writes: state + [n for w in writes]
class Merger:
    def __init__(self, n): self.n = n
    def __call__(self, state, writes): return state + [self.n]
first, second = outer(1), outer(2)
one, two = Merger(1), Merger(2)
"""


def load(folder: Path, source: str = SOURCE, name: str = "reducers") -> Any:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "change",
    [
        ("def merge(state, writes):\n", 'def merge(state, writes):\n    """Says more."""\n'),
        ("state + [helper(i)", "(state\n        + [helper(i)"),
        ("def merge(state, writes)", "def merge(state: list, writes: list) -> list"),
        ("import json\n", "import json, os  # a comment\n\n"),
        ("self.n = n", "self.n = n + 0"),
    ],
)
def test_what_does_not_change_the_code_leaves_the_fingerprint(
    tmp_path: Path, change: tuple[str, str]
) -> None:
    source = SOURCE.replace(*change)
    if "(state\n" in change[1]:
        source = source.replace("[:LIMIT]", "[:LIMIT])")
    assert source != SOURCE
    before, after = load(tmp_path / "a"), load(tmp_path / "b", source)
    assert fingerprint(before.merge) == fingerprint(after.merge)


@pytest.mark.parametrize(
    "change",
    [
        ("state + [helper", "state + state + [helper"),
        ("return x + 1", "return x + 2"),
        ("LIMIT = 3", "LIMIT = 4"),
        ("def merge(state, writes)", "def merge(state, writes, flag=True)"),
    ],
)
def test_a_change_of_the_code_or_of_what_it_calls_changes_it(
    tmp_path: Path, change: tuple[str, str]
) -> None:
    before, after = load(tmp_path / "a"), load(tmp_path / "b", SOURCE.replace(*change))
    assert fingerprint(before.merge) != fingerprint(after.merge)


def test_closures_objects_and_partials_count_with_what_they_hold(tmp_path: Path) -> None:
    module = load(tmp_path)
    kinds = [
        module.first,
        module.second,
        module.one,
        module.two,
        module.one.__call__,
        functools.partial(module.merge, writes=[[1]]),
        functools.partial(module.merge, writes=[[2]]),
        operator.add,
        operator.mul,
        merge_message_writes,
    ]
    assert len({fingerprint(kind) for kind in kinds}) == len(kinds)
    again = load(tmp_path)
    assert fingerprint(again.one) == fingerprint(module.one)
    assert import_path(kinds[5]) == "reducers:merge"


def test_lambdas_that_share_a_line_are_told_apart() -> None:
    pair = (lambda s, w: s + w, lambda s, w: w + s)
    assert fingerprint(pair[0]) != fingerprint(pair[1])


def test_it_is_the_same_in_every_process() -> None:
    program = (
        "from compactor.folding.fingerprint import fingerprint\n"
        "from logstore.channels import merge_message_writes\n"
        "from langgraph.graph.message import add_messages\n"
        "from tests.helpers import append\n"
        "print(*map(fingerprint, (merge_message_writes, add_messages, append)))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1
    assert fingerprint(append) == answers.pop().split()[2]


# -- in a store ------------------------------------------------------------------------


def reversing(state: list[Any], writes: Sequence[Any]) -> list[Any]:
    return [item for write in reversed(writes) for item in write] + state


def channels(reducer: Callable[..., Any]) -> dict[str, Any]:
    return {"d": DeltaChannel(reducer, list, snapshot_frequency=2)}


def test_a_changed_reducers_snapshots_are_reported_and_not_built_on(place: Place) -> None:
    saver, model = place.saver(), InMemorySaver()
    script = Script([saver, model])
    last = script.chain(6)[-1]
    assert not place.compact(channels=channels(append)).changed
    for _ in range(4):
        script.write(last, "more")
        last = script.put(last)
    report = place.compact(channels=channels(reversing))
    (reason,) = report.changed.values()
    assert "tests.helpers:append" in reason
    assert f"{__name__}:reversing" in reason
    with place.store() as store:
        assert read_status(store).partitions[0].changed == report.changed
    # What was folded now is LangGraph's own fold with the reducer of now.
    with place.fresh() as fresh:
        assert_same_tuple(fresh.get_tuple(thread()), model.get_tuple(thread()))
        wanted = rebuilt(model, thread(), channels(reversing))
        assert rebuilt(fresh, thread(), channels(reversing)) == wanted
