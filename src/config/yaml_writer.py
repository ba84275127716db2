"""Writes YAML: values on one line, nested blocks, comments. All YAML that Stoker writes comes from here.

A scalar reads back as the same value under the core schema of YAML 1.2, which manifests are read with, and under
YAML 1.1, which other programs read with.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .yaml_scalars import resolve_plain

WIDTH = 112  # of comments

_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./+-]*(:[A-Za-z0-9_./+-]+)*")
_OLD_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})  # not text in YAML 1.1
_OLD_NUMBERS = re.compile(
    r"[0-9_]*\.?[0-9_]*([eE][-+]?[0-9]+)?"  # 1_000, 0755, 1e3, 1.5
    r"|0[bx][0-9a-fA-F_]+"
    r"|[0-9_]+(:[0-9_]+)+(\.[0-9_]*)?"  # 12:30 is 750
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*"  # dates
)
_BLOCK = re.compile(r"[\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]*")


@dataclass(frozen=True, slots=True)
class Commented:
    """A value with a comment above its key."""

    value: Any
    comment: str


@dataclass(frozen=True, slots=True)
class Verbatim:
    """A scalar that is written as its text says: `32k`, `0.90`, `${PORT}`."""

    text: str


def inline(value: Any) -> str:
    """A value on one line: a plain or quoted scalar, `[...]` or `{...}`."""
    if isinstance(value, str) and _is_plain(value):
        return value
    return _flow(value)


def _is_plain(text: str) -> bool:
    return bool(
        _PLAIN.fullmatch(text)
        and resolve_plain(text) == text
        and text.lower() not in _OLD_WORDS
        and not _OLD_NUMBERS.fullmatch(text)
    )


def _flow(value: Any) -> str:
    """Value in the syntax of JSON, which is YAML; keys need no quotes where they are plain."""
    if isinstance(value, Verbatim):
        return value.text
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{inline(str(key))}: {_flow(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float):
        return _float(value)
    return json.dumps(value)


def _quoted(text: str) -> str:
    return "".join(map(_character, json.dumps(text, ensure_ascii=False)))


def _character(char: str) -> str:
    """Escaped if YAML reads it as a line break, does not allow it, or a reader could not see it."""
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if ord(char) <= 0xFFFF else f"\\U{ord(char):08x}"


def _float(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    mantissa, e, exponent = repr(value).partition("e")
    return mantissa if not e else f"{mantissa}{'' if '.' in mantissa else '.0'}e{exponent}"  # YAML 1.1 needs the dot


def entry(key: str, value: Any, indent: str = "") -> list[str]:
    """The lines of `key: value`: mappings and lists of mappings as blocks, a text of several lines as a literal."""
    return _entry(f"{indent}{inline(key)}:", value, indent)


def document(record: Mapping[str, Any]) -> str:
    """A whole file."""
    return "\n".join(_mapping(record, "")) + "\n"


def _mapping(record: Mapping[str, Any], indent: str) -> list[str]:
    lines: list[str] = []
    for key, value in record.items():
        if isinstance(value, Commented):
            lines += [f"{indent}# {line}" for line in value.comment.split("\n")]
            value = value.value
        lines += entry(str(key), value, indent)
    return lines


def _entry(head: str, value: Any, indent: str) -> list[str]:
    """`head` is what precedes the value, `key:` or `-`."""
    if isinstance(value, Mapping) and value:
        return [head, *_mapping(value, f"{indent}  ")]
    if isinstance(value, list | tuple) and value and all(isinstance(item, Mapping) and item for item in value):
        return [head, *_list(value, f"{indent}  ")]
    if isinstance(value, str) and "\n" in value and (block := _block(value, f"{indent}  ")):
        return [f"{head} {block[0]}", *block[1:]]
    return [f"{head} {inline(value)}"]


def _list(items: Iterable[Mapping[str, Any]], indent: str) -> list[str]:
    lines: list[str] = []
    for item in items:
        first, *rest = _mapping(item, f"{indent}  ")
        lines += [f"{indent}- {first.lstrip()}", *rest]
    return lines


def _block(text: str, indent: str) -> list[str] | None:
    """A text of several lines as a literal block; None if it contains what a block cannot."""
    body = text.rstrip("\n")
    if not _BLOCK.fullmatch(text) or not body or body[0] in " \t\n":
        return None
    ends = len(text) - len(body)
    lines = [f"{indent}{line}" if line else "" for line in body.split("\n")]
    return ["|" + {0: "-", 1: ""}.get(ends, "+"), *lines, *[""] * (ends - 1)]


def comment(text: str, indent: str = "", start: str = "# ", hang: str = "") -> list[str]:
    """A text as comment lines of at most WIDTH columns that begin with `start`; `hang` indents all but the first."""
    printable = "".join(char if char.isprintable() else " " for char in text)
    lines = textwrap.wrap(
        " ".join(printable.split()),
        WIDTH,
        initial_indent=indent + start,
        subsequent_indent=indent + start + hang,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [(indent + start).rstrip()]


def heading(*lines: str) -> str:
    """The comments at the head of a file, a line each."""
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)
