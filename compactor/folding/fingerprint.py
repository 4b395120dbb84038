"""A fingerprint of a reducer's code: the same in every process that would fold the same way.

It is taken of the source, as a syntax tree without positions, comments, annotations and
docstrings, so that a reformatted file and another Python version leave it as it was. What has
no source at hand is told by its bytecode, which a Python upgrade changes. Of what a reducer
calls, the functions of its own top-level package and what its closures hold count as well;
other packages and the standard library do not.
"""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections.abc import Collection, Iterator
from hashlib import blake2b
from typing import Any

_DIGEST_BYTES = 12
_MAX_PARTS = 2000
"""More functions than any reducer calls; a bound for code that refers to everything."""
_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_IGNORED_FIELDS = frozenset(
    ("ctx", "kind", "type_comment", "type_params", "returns", "annotation", "simple")
)
_Function = types.FunctionType
_FOLLOWED = (*_PLAIN, _Function, type, functools.partial, types.MethodType)
"""What the globals that a function names may be, to count as its code."""


def import_path(function: Any) -> str:
    """Where a reducer is found: `module:name`; of a partial, that of its function."""
    while isinstance(function, functools.partial):
        function = function.func
    module = getattr(function, "__module__", None) or "?"
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return f"{module}:{name}"


def fingerprint(*parts: Any) -> str:
    """A digest of functions, callable objects, types and plain values, in hexadecimal."""
    code = _Code()
    for part in parts:
        code.add(part)
    return code.hexdigest()


class _Code:
    """Collects what code consists of, each function once."""

    def __init__(self) -> None:
        self._digest = blake2b(digest_size=_DIGEST_BYTES)
        self._seen: dict[int, Any] = {}

    def hexdigest(self) -> str:
        return self._digest.hexdigest()

    def _say(self, *words: object) -> None:
        for word in words:
            text = str(word).encode("utf-8", "surrogatepass")
            self._digest.update(len(text).to_bytes(4, "big") + text)

    def add(self, part: Any, home: str | None = None) -> None:
        """Take in a value; `home` is the package of which functions are followed."""
        if isinstance(part, _PLAIN):
            self._say("plain", type(part).__name__, repr(part))
        elif isinstance(part, tuple):
            self._add_items(part, home)
        elif id(part) in self._seen or len(self._seen) >= _MAX_PARTS:
            self._say("seen", import_path(part))
        else:
            self._seen[id(part)] = part  # held, so that its id stays its own
            self._add_once(part, home)

    def _add_items(self, items: Collection[Any], home: str | None) -> None:
        self._say(type(items).__name__, len(items))
        for item in items:
            self.add(item, home)

    def _add_once(self, part: Any, home: str | None) -> None:
        if isinstance(part, list):
            self._add_items(part, home)
        elif isinstance(part, dict):
            self._add_items(list(part.items()), home)
        elif isinstance(part, set | frozenset):
            self._say("set", sorted(fingerprint(item) for item in part))
        else:
            self._add_code(part, home)

    def _add_code(self, part: Any, home: str | None) -> None:
        if isinstance(part, functools.partial):
            self._say("partial")
            for inner in (part.func, part.args, part.keywords):
                self.add(inner, home)
        elif isinstance(part, types.MethodType):
            self._say("method")
            self.add(part.__func__, home)
            self.add(part.__self__, home)
        elif isinstance(part, _Function):
            self._add_function(part, home)
        elif isinstance(part, type):
            self._add_type(part, home)
        elif isinstance(part, types.ModuleType):
            self._say("module", part.__name__)
        elif isinstance(part, types.BuiltinFunctionType | types.MethodDescriptorType):
            self._say("builtin", import_path(part))
        else:
            self._say("object")
            self.add(type(part), home)
            self.add(getattr(part, "__dict__", {}), home)

    def _add_type(self, part: type, home: str | None) -> None:
        self._say("type", import_path(part))
        package = _package(part)
        if home is not None and package != home:
            return
        for name, value in sorted(vars(part).items()):
            function = inspect.unwrap(value) if callable(value) else value
            if isinstance(function, staticmethod | classmethod):
                function = function.__func__
            if isinstance(function, _Function):
                self._say("member", name)
                self.add(function, home or package)

    def _add_function(self, function: _Function, home: str | None) -> None:
        home = home or _package(function)
        self._say("function", function.__qualname__)
        if _package(function) != home:
            self._say(function.__module__)
            return
        node = _source_of(function)
        if node is not None:
            self._say("source", *_words(node))
        else:
            self._say("bytecode")
            self._add_bytecode(function.__code__)
        self.add(function.__defaults__ or (), home)
        self.add(function.__kwdefaults__ or {}, home)
        for name, value in _referred(function):
            self._say("refers", name)
            self.add(value, home)

    def _add_bytecode(self, code: types.CodeType) -> None:
        self._say(code.co_code.hex(), code.co_names, code.co_varnames, code.co_argcount)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add_bytecode(constant)
            else:
                self._say(repr(constant))


def _package(part: Any) -> str:
    return str(getattr(part, "__module__", None) or "?").partition(".")[0]


def _source_of(function: _Function) -> ast.AST | None:
    """The syntax tree of a function or lambda, found by its place in its module's source."""
    try:
        lines, _ = inspect.findsource(function)
        tree = ast.parse("".join(lines))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    first = function.__code__.co_firstlineno
    is_lambda = function.__name__ == "<lambda>"
    found = [node for node in ast.walk(tree) if _begins_at(node, first, is_lambda)]
    return found[0] if len(found) == 1 else None


def _begins_at(node: ast.AST, line: int, is_lambda: bool) -> bool:
    if is_lambda:
        return isinstance(node, ast.Lambda) and node.lineno == line
    if not isinstance(node, ast.FunctionDef):
        return False
    return min([node.lineno, *(d.lineno for d in node.decorator_list)]) == line


def _words(node: ast.AST) -> Iterator[str]:
    """A syntax tree as words, without what does not change what it does.

    Fields that are empty are left out, as newer Python versions add some.
    """
    yield type(node).__name__
    for name, value in ast.iter_fields(node):
        if name in _IGNORED_FIELDS or value is None or value == []:
            continue
        if name == "body" and isinstance(node, ast.FunctionDef | ast.ClassDef):
            value = _without_docstring(value)
        yield f".{name}"
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, ast.AST):
                yield from _words(item)
            else:
                yield repr(item)
    yield "end"


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    if is_text and isinstance(first.value.value, str):  # type: ignore[attr-defined]
        return body[1:]
    return body


def _referred(function: _Function) -> Iterator[tuple[str, Any]]:
    """What a function's names stand for: globals, members of modules, and its closure."""
    closure = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in closure:
        try:
            yield name, cell.cell_contents
        except ValueError:  # not bound yet
            continue
    names = sorted(_names(function.__code__))
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType):
            members = ((m, getattr(value, m, None)) for m in names)
            yield from ((m, v) for m, v in members if isinstance(v, _Function))
        elif value is not None and isinstance(value, _FOLLOWED):
            yield name, value


def _names(code: types.CodeType) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
    return found
