"""Decoded values in a few words, for people."""

from __future__ import annotations

import json
from typing import Any

from logstore.cli.common import human_bytes, one_line
from logstore.structural import CLASS, to_json

_MESSAGE_MODULES = ("langchain_core.messages.",)
_SHOWN_BYTES = 24
_ITEMS = 3


def preview(value: Any, width: int = 100) -> str:
    """A value on one line of about `width` characters."""
    return _shortened(_words(value, width), width)


def _words(value: Any, width: int) -> str:
    if isinstance(value, bytes):
        return f"{human_bytes(len(value))} of bytes"
    if isinstance(value, str):
        return one_line(value[: 2 * width])
    if isinstance(value, list):
        return _list(value, width)
    if isinstance(value, dict):
        return _mapping(value, width)
    return json.dumps(to_json(value))


def _list(value: list[Any], width: int) -> str:
    """The items, or the first and the last of them."""
    if not value:
        return "[]"
    if len(value) <= _ITEMS:
        return f"[{' · '.join(preview(item, width // len(value)) for item in value)}]"
    first, last = (preview(item, width // 3) for item in (value[0], value[-1]))
    return f"[{first} · … {len(value) - 2} more … · {last}]"


def _mapping(value: dict[Any, Any], width: int) -> str:
    class_path = value.get(CLASS)
    if isinstance(class_path, str):
        name = class_path.rpartition(".")[2]
        if class_path.startswith(_MESSAGE_MODULES):
            return _message(name, value, width)
        if set(value) == {CLASS, "value"}:
            return f"{name}({preview(value['value'], width)})"
        fields = ", ".join(f"{k}={preview(v, width // 2)}" for k, v in value.items() if k != CLASS)
        return f"{name}({fields})"
    if "__encrypted__" in value:
        return f"encrypted with {value['__encrypted__']}, {human_bytes(value['bytes'])}"
    if "__opaque__" in value:
        return f"in the form {value['__opaque__']!r}, {human_bytes(value['bytes'])}"
    return one_line(json.dumps(to_json(value, max_bytes=_SHOWN_BYTES), ensure_ascii=False))


def _message(name: str, value: dict[Any, Any], width: int) -> str:
    parts = []
    content = value.get("content")
    if content:
        parts.append(preview(content, width))
    for call in value.get("tool_calls") or ():
        if isinstance(call, dict):
            parts.append(f"→ {call.get('name')}({preview(call.get('args'), width)})")
    return f"{name}: {' '.join(parts)}"


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
