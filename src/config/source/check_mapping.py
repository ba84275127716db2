"""Checks the value of a mapping option against its declared JSON Schema: findings at the keys at fault."""

from __future__ import annotations

from collections.abc import Iterator

from ..diagnostics import Diagnostic, Label
from ..json_schema import Place, Violation, violations
from ..schema.options import Option
from ..source_text import Span
from ..yaml_writer import inline
from .node import Node
from .secrets import looks_secret

_MAX_SHOWN = 60  # characters of a value in a message
_CODES = {"unknown key": "C103", "missing key": "C105", "type": "C104", "value": "C107"}


def check_mapping(option: Option, node: Node, *, is_part: bool) -> Iterator[Diagnostic]:
    """Findings on a mapping. A part, which other layers complete, may lack keys."""
    if not node.value or not option.has_known_keys:
        return
    for violation in violations(option.json_schema, node.plain()):
        if not (is_part and violation.kind == "missing key"):
            yield _finding(option, node, violation)


def _finding(option: Option, node: Node, violation: Violation) -> Diagnostic:
    path = violation.path(option.path)
    at = _node_at(node, violation.place)
    span: Span = (at.key if violation.kind == "unknown key" else None) or at.span
    match violation.kind:
        case "unknown key":
            message = f"no such key `{path}`"
        case "missing key":
            message = f"`{path}` is missing"
        case _:
            message = f"`{path}` is {_shown(at, violation.place)}"
    said = violation.allowed
    if violation.kind != "unknown key" and said:
        said = f"allowed: {said}"
    return Diagnostic(
        code=_CODES[violation.kind],
        message=message,
        path=path,
        labels=(Label(span, said),),
        suggestions=violation.suggestions,
    )


def _node_at(node: Node, place: Place) -> Node:
    """The node at a place; the mapping around it for a key that is missing."""
    for part in place:
        inner = None
        if isinstance(node.value, dict):
            inner = node.value.get(str(part))
        elif isinstance(node.value, list) and isinstance(part, int):
            inner = node.value[part]
        if inner is None:
            return node
        node = inner
    return node


def _shown(node: Node, place: Place) -> str:
    if isinstance(node.value, dict | list):
        return "a mapping" if isinstance(node.value, dict) else "a list"
    if isinstance(node.value, str) and any(isinstance(part, str) and looks_secret(part) for part in place):
        return "not allowed"
    text = inline(node.value)[:_MAX_SHOWN]
    return f'"{text}"' if isinstance(node.value, str) and not text.startswith('"') else text
