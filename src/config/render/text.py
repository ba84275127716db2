"""Records as YAML that other programs read, the same bytes every time, with comments where they are wanted.

Texts are quoted unless no YAML, old or new, reads them as anything but a text; several lines become a block.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*(:[A-Za-z0-9_./-]+)*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_BLOCK = re.compile(r"[\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]*")


@dataclass(frozen=True, slots=True)
class Noted:
    """A value with a comment above its key."""

    value: Any
    comment: str


def comments(*lines: str) -> str:
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def document(record: Mapping[str, Any]) -> str:
    return "\n".join(_mapping(record, "")) + "\n"


def _mapping(record: Mapping[str, Any], indent: str) -> list[str]:
    lines: list[str] = []
    for key, value in record.items():
        if isinstance(value, Noted):
            lines += [f"{indent}# {line}" for line in value.comment.split("\n")]
            value = value.value
        lines += _entry(f"{indent}{scalar(key)}:", value, indent)
    return lines


def _entry(head: str, value: Any, indent: str) -> list[str]:
    """`head` is what stands before the value, `key:` or `-`."""
    if isinstance(value, Mapping) and value:
        return [head, *_mapping(value, f"{indent}  ")]
    if isinstance(value, list | tuple) and value:
        if all(isinstance(item, str) for item in value):
            return [f"{head} [{', '.join(json.dumps(item, ensure_ascii=False) for item in value)}]"]
        return [head, *_list(value, f"{indent}  ")]
    if isinstance(value, str) and "\n" in value and (block := _block(value, f"{indent}  ")):
        return [f"{head} {block[0]}", *block[1:]]
    return [f"{head} {scalar(value)}"]


def _list(items: Iterable[Any], indent: str) -> list[str]:
    lines: list[str] = []
    for item in items:
        assert isinstance(item, Mapping)
        first, *rest = _mapping(item, f"{indent}  ")
        lines += [f"{indent}- {first.lstrip()}", *rest]
    return lines


def _block(text: str, indent: str) -> list[str] | None:
    """A text of several lines as a literal block; None if it holds what a block cannot."""
    body = text.rstrip("\n")
    if not _BLOCK.fullmatch(text) or not body or body[0] in " \t\n":
        return None
    ends = len(text) - len(body)
    lines = [f"{indent}{line}" if line else "" for line in body.split("\n")]
    return ["|" + {0: "-", 1: ""}.get(ends, "+"), *lines, *[""] * (ends - 1)]


def scalar(value: Any) -> str:
    """On one line. JSON is YAML."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)
