"""Stored values as plain data, without importing or constructing a class of the user's.

A saver's serde writes a value as a type tag and bytes. LangGraph's own serde writes
MessagePack in which every object is an extension: the name of a class and what to call it
with (`langgraph.checkpoint.serde.jsonplus`). Reading it in the usual way imports that class.
Here the names stay names, so a value can be read where its code is missing, and one that
names a hostile module does nothing.

What becomes of what:

* an object with fields: a dict of the fields, and its class under ``"__class__"`` (with more
  underscores at the end if the object has a field of that name);
* another object: ``{"__class__": …, "value": …}`` or ``{"__class__": …, "args": […]}``;
* the standard library's dates, UUIDs, decimals, paths and the like: text, a time difference
  its seconds, sets and deques lists;
* an array of numpy: its dtype, shape and size; a secret of pydantic: asterisks;
* any other extension: ``{"__ext__": code, "data": bytes}``;
* a value that is encrypted or in a form unknown here: a dict that says so, with its size.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgpack

from logstore.errors import CorruptObjectError, FormatError

MAX_DEPTH = 128
"""How deep containers and extensions may be nested in each other."""

CLASS = "__class__"
DELTA_SNAPSHOT = "langgraph.checkpoint.serde.types._DeltaSnapshot"

_SINGLE_ARG = 0
_POSITIONAL_ARGS = 1
_KEYWORD_ARGS = 2
_METHOD_SINGLE_ARG = 3
_PYDANTIC_V1 = 4
_PYDANTIC_V2 = 5
_NUMPY_ARRAY = 6
_DELTA_SNAPSHOT = 7


class _Object(NamedTuple):
    """An extension's payload: a class, and what its object was made of."""

    module: str
    name: str
    payload: Any

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"


class _Pairs(list[tuple[Any, Any]]):
    """A map as it was read: its keys may not be hashable."""


def decode(type_: str, data: bytes) -> Any:
    """A stored value as plain data: dicts, lists, strings, numbers, bytes, None.

    Args:
        type_: the serde's tag.
        data: the serde's bytes.

    Raises:
        CorruptObjectError: the bytes are not what the tag says.
        FormatError: the value is nested deeper than `MAX_DEPTH`.
    """
    if "+" in type_:
        inner, cipher = type_.split("+", 1)
        return {"__encrypted__": cipher, "type": inner, "bytes": len(data)}
    match type_:
        case "null" | "empty":
            return None
        case "bytes" | "bytearray":
            return bytes(data)
        case "msgpack":
            return _fast(data)
        case "json":
            return _plain(_parse_json(data), 0)
        case _:
            return {"__opaque__": type_, "bytes": len(data)}


def is_delta_snapshot(value: Any) -> bool:
    """Whether a decoded value is what LangGraph stores as a delta channel's snapshot."""
    return isinstance(value, dict) and value.get(CLASS) == DELTA_SNAPSHOT


def _unpack(data: bytes) -> Any:
    try:
        return msgpack.unpackb(
            data,
            ext_hook=msgpack.ExtType,
            object_pairs_hook=_Pairs,
            strict_map_key=False,
            timestamp=1,
        )
    except msgpack.StackError as error:
        raise _too_deep() from error
    except (msgpack.UnpackException, ValueError) as error:
        raise CorruptObjectError(
            f"a value of {len(data)} bytes is marked as msgpack and cannot be read as such "
            f"({error or type(error).__name__}); it was damaged before it was stored"
        ) from error


def _parse_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise CorruptObjectError(
            f"a value of {len(data)} bytes is marked as json and cannot be read as such "
            f"({error}); it was damaged before it was stored"
        ) from error


def _too_deep() -> FormatError:
    return FormatError(
        f"a value is nested deeper than {MAX_DEPTH} levels and is not decoded here; "
        "the saver itself may still be able to read it"
    )


def _fast(data: bytes) -> Any:
    """What almost every value allows: plain data straight from the decoder.

    Keys that are not hashable need the careful way, which keeps maps as pairs.
    """
    try:
        value = _unpack_plain(data, 0)
        _check_depth(value, MAX_DEPTH - 1)
    except (TypeError, ValueError, msgpack.UnpackException, FormatError):
        return _plain(_unpack(data), 0)
    return value


def _unpack_plain(data: bytes, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise _too_deep()
    return msgpack.unpackb(
        data,
        ext_hook=lambda code, payload: _fast_extension(code, payload, depth),
        strict_map_key=False,
        timestamp=1,
    )


def _fast_extension(code: int, data: bytes, depth: int) -> Any:
    try:
        payload = _unpack_plain(data, depth + 1)
    except msgpack.StackError:
        raise
    except (ValueError, msgpack.UnpackException):
        payload = None
    known = _known_extension(code, payload)
    return {"__ext__": code, "data": data} if known is None else known


def _check_depth(node: Any, left: int) -> None:
    if left < 0:
        raise _too_deep()
    for item in node.values() if type(node) is dict else node if type(node) is list else ():
        if type(item) is dict or type(item) is list:
            _check_depth(item, left - 1)


# -- from what msgpack gives to plain data -----------------------------------------


def _plain(node: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise _too_deep()
    if isinstance(node, msgpack.ExtType):
        return _extension(node.code, node.data, depth)
    if isinstance(node, _Pairs):
        return {_hashable(_plain(k, depth + 1)): _plain(v, depth + 1) for k, v in node}
    if isinstance(node, dict):
        return {k: _plain(v, depth + 1) for k, v in node.items()}
    if isinstance(node, list):
        return [_plain(item, depth + 1) for item in node]
    return node


def _hashable(key: Any) -> Any:
    if isinstance(key, list):
        return tuple(map(_hashable, key))
    return json.dumps(to_json(key), sort_keys=True) if isinstance(key, dict) else key


def _extension(code: int, data: bytes, depth: int) -> Any:
    try:
        payload = _plain(_unpack(data), depth + 1)
    except CorruptObjectError:
        payload = None
    known = _known_extension(code, payload)
    return {"__ext__": code, "data": data} if known is None else known


def _known_extension(code: int, payload: Any) -> Any:
    """The plain form of one of LangGraph's extensions; None if it is not one."""
    if code == _DELTA_SNAPSHOT:
        return {CLASS: DELTA_SNAPSHOT, "value": payload}
    if code == _NUMPY_ARRAY:
        return _array(payload)
    found = _object(payload)
    if found is None:
        return None
    simple = _SIMPLE.get((found.module, found.name))
    if simple is not None:
        try:
            return simple(found.payload)
        except (TypeError, ValueError, KeyError):  # not what LangGraph writes for that class
            return None
    if code in (_KEYWORD_ARGS, _PYDANTIC_V1, _PYDANTIC_V2) and isinstance(found.payload, dict):
        return _with_class(found.path, found.payload)
    if code == _POSITIONAL_ARGS and isinstance(found.payload, list):
        return _with_class(found.path, {"args": found.payload})
    if code in (_SINGLE_ARG, _METHOD_SINGLE_ARG):
        return _with_class(found.path, {"value": found.payload})
    return None


def _object(payload: Any) -> _Object | None:
    match payload:
        case [str(module), str(name), inner, *_]:
            return _Object(module, name, inner)
        case _:
            return None


def _with_class(path: str, fields: Mapping[Any, Any]) -> dict[Any, Any]:
    key = CLASS
    while key in fields:
        key += "_"
    return {key: path, **fields}


def _array(payload: Any) -> Any:
    match payload:
        case [str(dtype), list(shape), str(order), bytes(buffer)]:
            fields = {"dtype": dtype, "shape": shape, "order": order, "bytes": len(buffer)}
            return _with_class("numpy.ndarray", fields)
        case _:
            return None


def _text(payload: Any) -> str:
    if not isinstance(payload, str):
        raise TypeError(f"expected text, found {type(payload).__name__}")
    return payload


def _items(payload: Any) -> list[Any]:
    if not isinstance(payload, list):
        raise TypeError(f"expected a list, found {type(payload).__name__}")
    return payload


def _uuid(payload: Any) -> str:
    text = _text(payload)
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _date(payload: Any) -> str:
    year, month, day = payload
    return f"{year:04d}-{month:02d}-{day:02d}"


def _time(payload: Any) -> str:
    text = f"{payload['hour']:02d}:{payload['minute']:02d}:{payload['second']:02d}"
    if payload["microsecond"]:
        text += f".{payload['microsecond']:06d}"
    zone = payload["tzinfo"]
    return text if zone is None else f"{text} {_text(zone)}"


def _seconds(payload: Any) -> float:
    days, seconds, microseconds = payload
    whole: float = days * 86_400 + seconds
    return whole + microseconds / 1_000_000 if microseconds else whole


def _timezone(payload: Any) -> str:
    offset, *name = payload
    if name:
        return _text(name[0])
    minutes = round(abs(offset) / 60)
    return f"{'-' if offset < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"


def _path(payload: Any) -> str:
    parts = [_text(part) for part in _items(payload)]
    if parts and parts[0].endswith("/"):
        return parts[0] + "/".join(parts[1:])
    return "/".join(parts) or "."


def _pattern(payload: Any) -> dict[str, Any]:
    pattern, flags = payload
    return _with_class("re.Pattern", {"pattern": pattern, "flags": flags})


def _send(payload: Any) -> dict[str, Any]:
    node, arg, *timeout = payload
    fields = {"node": node, "arg": arg}
    if timeout:
        fields["timeout"] = timeout[0]
    return _with_class("langgraph.types.Send", fields)


def _secret(_: Any) -> str:
    return "**********"


_SIMPLE: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("uuid", "UUID"): _uuid,
    ("datetime", "datetime"): _text,
    ("datetime", "date"): _date,
    ("datetime", "time"): _time,
    ("datetime", "timedelta"): _seconds,
    ("datetime", "timezone"): _timezone,
    ("zoneinfo", "ZoneInfo"): _text,
    ("decimal", "Decimal"): _text,
    ("builtins", "set"): _items,
    ("builtins", "frozenset"): _items,
    ("collections", "deque"): _items,
    ("re", "compile"): _pattern,
    ("langgraph.types", "Send"): _send,
    ("pydantic.types", "SecretStr"): _secret,
    ("pydantic.types", "SecretBytes"): _secret,
    ("pathlib", "PosixPath"): _path,
    ("ipaddress", "IPv4Address"): _text,
    ("ipaddress", "IPv4Interface"): _text,
    ("ipaddress", "IPv4Network"): _text,
    ("ipaddress", "IPv6Address"): _text,
    ("ipaddress", "IPv6Interface"): _text,
    ("ipaddress", "IPv6Network"): _text,
}


# -- from plain data to JSON ---------------------------------------------------------


def to_json(value: Any, *, max_bytes: int | None = None) -> Any:
    """Plain data as what JSON can hold, every string of it valid Unicode.

    Bytes become ``{"__bytes__": length, "base64": …}``. A key that is no string becomes its
    JSON text; a dict in which two keys would then be one becomes ``{"__map__": [[key, value],
    …]}``. NaN and the infinities become strings.

    Args:
        value: what `decode` gave.
        max_bytes: of longer bytes only the beginning is kept; None keeps all.

    Raises:
        FormatError: the value is nested deeper than `MAX_DEPTH`.
    """
    return _json(value, max_bytes, 0)


def _json(value: Any, max_bytes: int | None, depth: int) -> Any:
    # One level more than `_plain` allows: keys and markers add some of their own.
    if depth > 2 * MAX_DEPTH:
        raise _too_deep()
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return _unicode(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else _non_finite(value)
    if isinstance(value, bytes):
        return _json_bytes(value, max_bytes)
    if isinstance(value, dict):
        return _json_map(value, max_bytes, depth)
    if isinstance(value, list | tuple):
        return [_json(item, max_bytes, depth + 1) for item in value]
    raise TypeError(f"{type(value).__name__} is not plain data")


def _non_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _unicode(text: str) -> str:
    return text.encode("utf-8", "replace").decode() if not text.isascii() else text


def _json_bytes(value: bytes, max_bytes: int | None) -> dict[str, Any]:
    kept = value if max_bytes is None else value[:max_bytes]
    found: dict[str, Any] = {"__bytes__": len(value), "base64": base64.b64encode(kept).decode()}
    if len(kept) < len(value):
        found["truncated"] = True
    return found


def _json_map(value: dict[Any, Any], max_bytes: int | None, depth: int) -> dict[str, Any]:
    found = {_json_key(k, depth): _json(v, max_bytes, depth + 1) for k, v in value.items()}
    if len(found) == len(value):
        return found
    pairs = [
        [_json(k, max_bytes, depth + 1), _json(v, max_bytes, depth + 1)] for k, v in value.items()
    ]
    return {"__map__": pairs}


def _json_key(key: Any, depth: int) -> str:
    if isinstance(key, str):
        return _unicode(key)
    return json.dumps(_json(key, None, depth + 1))
