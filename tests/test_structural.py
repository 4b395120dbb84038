"""Stored values as plain data: against LangGraph's own serialiser, and against hostile bytes."""

import dataclasses
import datetime
import decimal
import enum
import ipaddress
import json
import math
import pathlib
import re
import subprocess
import sys
import uuid
import zoneinfo
from collections import deque
from typing import Any, NamedTuple

import msgpack
import pytest
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.store.base import Item
from langgraph.types import Command, Interrupt, Send
from pydantic import BaseModel, SecretStr
from pydantic.v1 import BaseModel as BaseModelV1

from logstore.errors import CorruptObjectError, FormatError
from logstore.structural import CLASS, MAX_DEPTH, decode, is_delta_snapshot, to_json

HERE = __name__


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Point:
    x: int
    labels: list[str]


class Pair(NamedTuple):
    left: int
    right: "Pair | None"


class Address(BaseModel):
    street: str
    secret: SecretStr | None = None


class Person(BaseModel):
    name: str
    address: Address


class Old(BaseModelV1):
    name: str


def plain(value: Any) -> Any:
    return decode(*JsonPlusSerializer().dumps_typed(value))


def ext(code: int, *payload: Any) -> bytes:
    """A value that is one extension, as LangGraph lays it out."""
    return bytes(msgpack.packb(msgpack.ExtType(code, msgpack.packb(payload))))


# -- what LangGraph writes -----------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -(2**63), 2**64 - 1, 1.5, "", "süß 🏮\0", [], [1, [2]], {}, {"a": {"b": None}}],
)
def test_plain_values_stay_as_they_are(value: Any) -> None:
    assert plain(value) == value
    assert type(plain(value)) is type(value)


@pytest.mark.parametrize("value", [b"", b"\x00\xff", bytearray(b"abc")])
def test_bytes_stay_bytes(value: bytes) -> None:
    assert plain(value) == bytes(value)
    assert plain({"in": bytes(value)}) == {"in": bytes(value)}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (uuid.UUID("12345678123456781234567812345678"), "12345678-1234-5678-1234-567812345678"),
        (datetime.datetime(2024, 5, 1, 12, 0, 0, 7), "2024-05-01T12:00:00.000007"),
        (datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC), "2024-05-01T00:00:00+00:00"),
        (datetime.date(2024, 5, 1), "2024-05-01"),
        (datetime.time(1, 2, 3), "01:02:03"),
        (datetime.time(1, 2, 3, 4, tzinfo=datetime.UTC), "01:02:03.000004 +00:00"),
        (datetime.timedelta(days=-1, seconds=5), -86_395),
        (datetime.timedelta(microseconds=1), 0.000001),
        (datetime.timezone(-datetime.timedelta(hours=3, minutes=30)), "-03:30"),
        (datetime.timezone(datetime.timedelta(hours=2), "CEST"), "CEST"),
        (zoneinfo.ZoneInfo("Europe/Berlin"), "Europe/Berlin"),
        (decimal.Decimal("1.10"), "1.10"),
        (pathlib.Path("/a/b c"), "/a/b c"),
        (pathlib.Path("a/b"), "a/b"),
        (pathlib.Path(), "."),
        (ipaddress.ip_address("::1"), "::1"),
        (ipaddress.ip_network("10.0.0.0/8"), "10.0.0.0/8"),
        ({3}, [3]),
        (frozenset([b"x"]), [b"x"]),
        (deque([1, 2], maxlen=5), [1, 2]),
        ((1, "a"), [1, "a"]),
        (Colour.RED, {CLASS: f"{HERE}.Colour", "value": "red"}),
        (Level.HIGH, {CLASS: f"{HERE}.Level", "value": 3}),
        (Point(1, ["a"]), {CLASS: f"{HERE}.Point", "x": 1, "labels": ["a"]}),
        (
            Pair(1, Pair(2, None)),
            {
                CLASS: f"{HERE}.Pair",
                "left": 1,
                "right": {CLASS: f"{HERE}.Pair", "left": 2, "right": None},
            },
        ),
        (Old(name="a"), {CLASS: f"{HERE}.Old", "name": "a"}),
        (re.compile("a+", re.I), {CLASS: "re.Pattern", "pattern": "a+", "flags": 34}),
        (ValueError("no"), "ValueError('no')"),
    ],
)
def test_what_a_value_becomes(value: Any, expected: Any) -> None:
    assert plain(value) == expected
    assert plain([{"in": value}]) == [{"in": expected}]


def test_a_message_becomes_its_fields() -> None:
    call = {"name": "look", "args": {"id": 7}, "id": "c1", "type": "tool_call"}
    messages = [
        HumanMessage("hi", id="1"),
        AIMessage(
            [{"type": "text", "text": "ok"}],
            id="2",
            tool_calls=[call],
            usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        ),
        ToolMessage("7", tool_call_id="c1", name="look", artifact={"raw": b"\x00"}, id="3"),
        RemoveMessage(id="1"),
    ]
    for message, found in zip(messages, plain(messages), strict=True):
        kind = type(message)
        assert found.pop(CLASS) == f"{kind.__module__}.{kind.__name__}"
        assert found == message.model_dump()


def test_pydantic_models_nest_and_hide_their_secrets() -> None:
    person = Person(name="A", address=Address(street="B", secret=SecretStr("hush")))
    found = plain(person)
    assert found[CLASS] == f"{HERE}.Person"
    assert found["address"] == {"street": "B", "secret": "**********"}
    assert "hush" not in json.dumps(to_json(found))


def test_what_steers_a_graph() -> None:
    sends = [Send("node", {"a": Point(1, [])}), Send("other", None)]
    assert plain(sends) == [
        {
            CLASS: "langgraph.types.Send",
            "node": "node",
            "arg": {"a": {CLASS: f"{HERE}.Point", "x": 1, "labels": []}},
        },
        {CLASS: "langgraph.types.Send", "node": "other", "arg": None},
    ]
    command = plain(Command(update={"x": 1}, goto="node"))
    assert command[CLASS] == "langgraph.types.Command"
    assert (command["update"], command["goto"]) == ({"x": 1}, "node")
    interrupt = plain([Interrupt(value="sure?", id="i1")])[0]
    assert interrupt[CLASS] == "langgraph.types.Interrupt"
    assert (interrupt["value"], interrupt["id"]) == ("sure?", "i1")
    now = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    item = Item(value={"a": 1}, key="k", namespace=("n",), created_at=now, updated_at=now)
    assert plain(item)["namespace"] == ["n"]


def test_a_delta_snapshot_is_marked_and_holds_its_value() -> None:
    found = plain(_DeltaSnapshot([HumanMessage("hi", id="1")]))
    assert is_delta_snapshot(found)
    assert found["value"][0]["content"] == "hi"
    assert not is_delta_snapshot(plain({"value": 1}))


def test_an_array_is_told_by_its_shape() -> None:
    expected = {
        CLASS: "numpy.ndarray",
        "dtype": "<f8",
        "shape": [2, 3],
        "order": "C",
        "bytes": 48,
    }
    assert decode("msgpack", ext(6, "<f8", [2, 3], "C", bytes(48))) == expected
    numpy = pytest.importorskip("numpy", reason="numpy is not installed; its layout was tested")
    assert plain(numpy.zeros((2, 3))) == expected


def test_a_field_that_is_named_like_the_mark_keeps_its_name() -> None:
    found = decode("msgpack", ext(2, "m", "N", {CLASS: "mine", "__class___": 1}))
    assert found == {"__class____": "m.N", CLASS: "mine", "__class___": 1}


def test_keys_of_every_kind() -> None:
    value = {1: "a", None: "b", (1, (2,)): "c", 1.5: "d", b"e": "e"}
    assert plain(value) == value
    with_a_map_as_key = b"\x81" + msgpack.packb({"x": 1}) + b"\x01"
    assert decode("msgpack", with_a_map_as_key) == {'{"x": 1}': 1}


# -- other serialisers ---------------------------------------------------------------


def test_other_forms() -> None:
    assert decode("null", b"") is None
    assert decode("json", b'{"lc": 2, "type": "constructor", "id": ["os", "system"]}') == {
        "lc": 2,
        "type": "constructor",
        "id": ["os", "system"],
    }
    assert decode("msgpack+aes", b"12345") == {
        "__encrypted__": "aes",
        "type": "msgpack",
        "bytes": 5,
    }
    assert decode("pickle", b"cos\nsystem\n.") == {"__opaque__": "pickle", "bytes": 12}


def test_a_value_that_names_a_module_imports_nothing(tmp_path: pathlib.Path) -> None:
    (tmp_path / "hostile.py").write_text("raise SystemExit('imported')\n")
    values = [
        ext(0, "hostile", "Bomb", 1),
        ext(1, "hostile", "Bomb", [1]),
        ext(2, "hostile", "Bomb", {"a": 1}),
        ext(3, "hostile", "Bomb", 1, "run"),
        ext(4, "hostile", "Bomb", {"a": 1}),
        ext(5, "hostile", "Bomb", {"a": 1}, "model_validate_json"),
        ext(7, ["hostile", "Bomb", 1]),
    ]
    program = (
        "import sys; from logstore.structural import decode\n"
        f"found = [decode('msgpack', value) for value in {values!r}]\n"
        "assert 'hostile' not in sys.modules\n"
        "print(found[2])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
    )
    assert done.stderr == ""
    assert done.stdout == "{'__class__': 'hostile.Bomb', 'a': 1}\n"


@pytest.mark.parametrize(
    "data",
    [
        ext(99, "m", "n", 1),
        ext(0, "m"),
        ext(0, 1, 2, 3),
        ext(1, "m", "n", "not a list"),
        ext(5, "m", "n", "not a map"),
        ext(6, "<f8"),
        ext(0, "uuid", "UUID", 5),
        ext(1, "datetime", "date", ["a"]),
        ext(2, "datetime", "time", {}),
        bytes(msgpack.packb(msgpack.ExtType(0, b""))),
        bytes(msgpack.packb(msgpack.ExtType(5, b"\xc1"))),
    ],
)
def test_an_extension_of_somebody_else_keeps_its_bytes(data: bytes) -> None:
    found = decode("msgpack", data)
    assert set(found) == {"__ext__", "data"}
    assert isinstance(found["data"], bytes)


# -- damage and depth ----------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\xc0\xc0", b"\xa2\xff\xff", b"\xdd\xff\xff\xff\xff", b"\x92\x01"]
)
def test_damaged_msgpack_is_an_error(data: bytes) -> None:
    with pytest.raises(CorruptObjectError, match="marked as msgpack"):
        decode("msgpack", data)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[1] 2"])
def test_damaged_json_is_an_error(data: bytes) -> None:
    with pytest.raises(CorruptObjectError, match="marked as json"):
        decode("json", data)


def nested_extensions(depth: int) -> bytes:
    data = b"\xc0"
    for _ in range(depth):
        data = bytes(msgpack.packb(msgpack.ExtType(7, data)))
    return data


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 2000, 100_000])
@pytest.mark.parametrize("form", ["arrays", "maps", "json"])
def test_what_is_nested_too_deep_is_an_error_and_no_crash(depth: int, form: str) -> None:
    data = {
        "arrays": b"\x91" * depth + b"\xc0",
        "maps": b"\x81\xa1a" * depth + b"\xc0",
        "json": b"[" * (depth + 1) + b"]" * (depth + 1),
    }[form]
    with pytest.raises(FormatError, match="nested deeper"):
        decode("json" if form == "json" else "msgpack", data)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 3000])
def test_extensions_that_are_nested_too_deep_are_an_error(depth: int) -> None:
    with pytest.raises(FormatError, match="nested deeper"):
        decode("msgpack", nested_extensions(depth))


def test_what_is_just_not_too_deep_is_read_and_rendered() -> None:
    assert json.dumps(to_json(decode("msgpack", b"\x91" * MAX_DEPTH + b"\xc0")))
    assert json.dumps(to_json(decode("msgpack", nested_extensions(MAX_DEPTH))))


# -- JSON ----------------------------------------------------------------------------


def test_json_holds_what_it_can_and_marks_the_rest() -> None:
    value = {
        "b": b"\x00\x01",
        "nan": math.nan,
        "inf": [math.inf, -math.inf],
        "text": "lone \ud83d surrogate",
        3: "three",
        None: "none",
        (1, "a"): "pair",
    }
    assert to_json(value) == {
        "b": {"__bytes__": 2, "base64": "AAE="},
        "nan": "NaN",
        "inf": ["Infinity", "-Infinity"],
        "text": "lone ? surrogate",
        "3": "three",
        "null": "none",
        '[1, "a"]': "pair",
    }
    json.dumps(to_json(value), allow_nan=False).encode()


def test_long_bytes_can_be_cut() -> None:
    assert to_json(b"abcdef", max_bytes=3) == {
        "__bytes__": 6,
        "base64": "YWJj",
        "truncated": True,
    }


def test_keys_that_would_become_one_stay_apart() -> None:
    assert to_json({1: "number", "1": "text"}) == {"__map__": [[1, "number"], ["1", "text"]]}


def test_only_plain_data_becomes_json() -> None:
    with pytest.raises(TypeError, match="not plain data"):
        to_json({"a": object()})
