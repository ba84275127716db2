"""Hides the values of secrets and of keys that look like secrets, also in text that is not valid YAML."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ..origin import Layer
from ..schema.options import options
from ..source_text import SourceText, Span
from ..suggest import close
from .interpolate import NAME, names_only
from .node import Node

_SECRET_NAMES = tuple(dict.fromkeys(option.name for option in options().values() if option.is_secret))
_KEY = re.compile(r"""(?:^|[\s{,\[])(["']?)([\w-]+)\1\s*:(?=$|[\s"'\[{])""")
_JSON_KEY = re.compile(r"""([\w-]{3,})["']?\s*[:=]""")
_PLACE = re.compile(r"""(-\s+)?\[?(\{\s*(env:\s*[A-Za-z_]\w*|file:\s*[\w./~-]+)\s*\}|\$\{[A-Za-z_]\w*\})\]?[\s},]*""")
_OPENS = re.compile(r"[|>&!?#]\S*")  # may precede a value that begins on the next line
_MAX_OPEN = 4096  # characters after which an unclosed bracket is taken as text


@cache
def looks_secret(name: str) -> bool:
    """Whether a key names a secret, or is similar to one."""
    return bool(close(name[:100], _SECRET_NAMES, 0.6))


def mentions_secret(text: str) -> bool:
    """Whether a text that should be JSON contains something like the key of a secret."""
    return any(map(looks_secret, _JSON_KEY.findall(text[:_MAX_OPEN])))


def take_as_secret(node: Node) -> None:
    """A secret is a text whatever it looks like: an empty `${VAR}` must not unset it and open the server."""
    hide_secret(node)
    for item in node.value if isinstance(node.value, list) else [node]:
        if item.text:
            item.is_plain = False


def hide_secret(node: Node) -> None:
    """Hide what is written here, except the names in {env: NAME} and {file: path} and bare `${VAR}` forms."""
    if isinstance(node.value, list):
        for child in node.value:
            hide_secret(child)
    elif not _names_a_place(node):
        hide(node)


def reference_to(node: Node) -> Any:
    """Reference to the place that a secret is read from, as in a manifest; None if it, or one of a list, is written
    out."""
    if isinstance(node.value, list):
        found = [reference_to(child) for child in node.value]
        return None if None in found else found
    if isinstance(node.value, dict):
        ((kind, child),) = node.value.items()
        path = node.span.source.folder / Path(os.path.expanduser(child.text or ""))
        return {kind: child.text if kind == "env" else os.path.abspath(path)}
    source, variable = node.span.source, node.variable
    if source.layer is Layer.ENVIRONMENT and source.lines == [f"{source.name}={node.text}"]:
        variable = source.name
    return {"env": variable} if variable else None


def variables_of(node: Node) -> set[str]:
    """The environment variables that a secret, or a part of it, is read from."""
    if isinstance(node.value, list):
        return {name for child in node.value for name in variables_of(child)}
    if isinstance(node.value, dict):
        ((kind, child),) = node.value.items()
        return {child.text} if kind == "env" and child.text else set()
    source = node.span.source
    return {*node.variables, *([source.name] if source.layer is Layer.ENVIRONMENT else [])}


def hide_look_alikes(node: Node) -> None:
    """Hide the values of all keys in it that look like secrets: a section's name may be misspelt."""
    if isinstance(node.value, list):
        for child in node.value:
            hide_look_alikes(child)
    elif isinstance(node.value, dict):
        for name, child in node.value.items():
            if looks_secret(name):
                hide_secret(child)
            else:
                hide_look_alikes(child)


def hide(node: Node) -> None:
    """Hide every scalar and key in it."""
    if isinstance(node.value, dict):
        for child in node.value.values():
            _hide_span(child.key)
            hide(child)
    elif isinstance(node.value, list):
        for child in node.value:
            hide(child)
    else:
        _hide_span(node.span)
        _hide_span(node.anchor)


def hide_named(text: SourceText) -> None:
    """Hide what follows the keys of secrets in a text that could not be parsed, so the keys are found by pattern.

    More is hidden rather than less: the rest of the line, and all below it that is indented more or still open.
    """
    inside = -1  # indentation of the key whose value goes on; -1 outside
    value = ""  # the text after that key so far, while it may continue
    for number, line in enumerate(text.lines, 1):
        bare = line.lstrip(" \t")
        indent = len(line) - len(bare)
        is_below = indent > inside or (indent == inside and bare.startswith("-"))
        if inside >= 0 and (not bare or is_below or _is_open(value)):
            if not _PLACE.fullmatch(bare):
                text.hide(Span(text, number, indent + 1, number, len(line) + 1))
            value += bare if len(value) < _MAX_OPEN else ""
            continue
        inside = -1
        key = next((match for match in _KEY.finditer(line) if looks_secret(match[2])), None)
        if key is not None:
            inside, value = indent, line[key.end() :].lstrip()
            if value and not _PLACE.fullmatch(value):
                text.hide(Span(text, number, key.end() + 1, number, len(line) + 1))


def _is_open(value: str) -> bool:
    """Whether a value goes on in the next line, as far as its form shows."""
    return (
        not value
        or bool(_OPENS.fullmatch(value))
        or sum(map(value.count, "[{")) > sum(map(value.count, "]}"))
        or any(value.startswith(quote) and value.count(quote) % 2 for quote in "\"'")
    ) and len(value) < _MAX_OPEN


def _names_a_place(node: Node) -> bool:
    if isinstance(node.value, Mapping):
        if len(node.value) != 1:
            return False
        ((kind, child),) = node.value.items()
        if kind == "env":
            return bool(child.text) and bool(NAME.fullmatch(child.text or "") or names_only(child.text or ""))
        return kind == "file" and bool(child.text)
    return names_only(node.text or "")


def _hide_span(span: Span | None) -> None:
    if span is not None:
        span.source.hide(span)
