"""The public surface: every error of the tree has its place in the root and in the drawn tree."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import logstore
from logstore import errors

ROOT = Path(logstore.__file__).parents[1]
INTERNAL = {"ConditionFailedError", "ObjectNotFoundError"}
"""What only who writes an object store of his own has to do with."""


def every_error() -> dict[str, type[errors.LogStoreError]]:
    return {
        name: kind
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.LogStoreError)
    }


def test_the_root_names_the_saver_and_every_error_that_a_caller_may_meet() -> None:
    assert set(logstore.__all__) == {"LogStoreSaver", *every_error()} - INTERNAL
    assert sorted(logstore.__all__) == logstore.__all__
    for name in logstore.__all__:
        assert getattr(logstore, name).__module__.startswith("logstore")


@pytest.mark.parametrize("name", sorted(every_error()))
def test_every_error_stands_in_the_drawn_tree_below_its_parent(name: str) -> None:
    kind = every_error()[name]
    lines = (errors.__doc__ or "").splitlines()
    depth = {
        line.lstrip(" │├└─").split()[0]: len(line) - len(line.lstrip(" │├└─"))
        for line in lines
        if "Error" in line
    }
    assert name in depth
    parents = [base.__name__ for base in kind.__bases__ if base.__name__ in depth]
    assert all(depth[parent] < depth[name] for parent in parents)


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_logstore_never_imports_the_compactor() -> None:
    for path in (ROOT / "logstore").rglob("*.py"):
        assert not {m for m in imports_of(path) if m.split(".")[0] == "compactor"}, path


def test_only_the_object_stores_know_a_storage_sdk() -> None:
    for path in [*(ROOT / "logstore").rglob("*.py"), *(ROOT / "compactor").rglob("*.py")]:
        if path.parent.name in ("objects", "testing"):
            continue
        assert not {m for m in imports_of(path) if m.split(".")[0] in ("boto3", "botocore")}, path


def test_no_module_is_longer_than_700_lines() -> None:
    for folder in ("logstore", "compactor", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            assert len(path.read_text("utf-8").splitlines()) <= 700, path
