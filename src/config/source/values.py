"""Values that come as text or as Python objects - from variables, flags and keyword arguments - as nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace

from ..diagnostics import Diagnostic, Label
from ..schema.options import Option
from ..source_text import Span
from ..yaml_scalars import resolve_plain
from .keys import known_part
from .node import Node

_PAIRS = re.compile(r"\s*\w+\s*=\s*[0-9]{1,9}\s*(,\s*\w+\s*=\s*[0-9]{1,9}\s*)*")


def read_text(option: Option, text: str, span: Span, separator: str | None = None) -> Node:
    """What a variable's or a flag's text means for an option.

    Empty and None unset, except that a secret is never empty. Mappings are JSON;
    lists are JSON or parts between separators. ValueError for broken JSON.
    """
    if text == "None" or (not text and not option.is_secret):
        return Node(None, span, text="null")
    if option.kind == "mapping" and text not in option.choices:
        if option.notation == "pairs" and _PAIRS.fullmatch(text):
            pairs = (pair.split("=") for pair in text.split(","))
            return json_node({name.strip(): int(count) for name, count in pairs}, span)
        node = json_node(load_json(text), span)
        if not isinstance(node.value, dict) and node.value is not None:
            raise ValueError("not an object")
        return node
    if option.is_list:
        if text.startswith("["):
            listed = json_node(load_json(text), span)
            return _with_objects_as_texts(listed) if option.notation == "objects" else listed
        separator = separator or ("," if option.notation == "commas" else None)
        parts = text.split(separator) if separator else [text]
        return Node([list_item(option, part.strip(), span) for part in parts], span)
    return Node(text if option.is_secret else resolve_plain(text), span, text=text, is_plain=True)


def _with_objects_as_texts(node: Node) -> Node:
    """A list whose items may be JSON objects, with their text in place of each."""
    assert isinstance(node.value, list)
    texts = [
        replace(child, value=json.dumps(child.plain()), text=json.dumps(child.plain()))
        if isinstance(child.value, dict)
        else child
        for child in node.value
    ]
    return replace(node, value=texts)


def list_item(option: Option, text: str, span: Span) -> Node:
    """One item of a list in a variable or a flag."""
    value = text if option.kind == "texts" else resolve_plain(text)
    return Node(value, span, text=text, is_plain=option.kind != "texts")


def section_node(section: str, node: Node, spelling: str, found: list[Diagnostic]) -> Node | None:
    """A whole section given as one value; a bare number is the level of `compilation`. None after a finding."""
    if isinstance(node.value, int) and section == "compilation":
        node = Node({"level": node}, node.span)
    if not isinstance(node.value, dict):
        label = Label(node.span, "allowed: a JSON object")
        message = f"`{spelling}` takes the keys of `{section}`"
        found.append(Diagnostic(code="C121", message=message, path=section, labels=(label,)))
        return None
    return known_part(Node({section: node}, node.span), found)[section]


def load_json(text: str) -> object:
    """Raises ValueError, with the position, for invalid JSON."""
    try:
        value: object = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg.lower()} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def json_or_text(text: str, span: Span) -> Node:
    """A JSON value where the text is one, else the text."""
    try:
        return json_node(load_json(text), span)
    except ValueError:
        return Node(text, span, text=text)


def json_node(value: object, span: Span) -> Node:
    """A decoded JSON or Python value as nodes that all have the same place."""
    if isinstance(value, Mapping):
        return Node({str(key): json_node(item, span) for key, item in value.items()}, span)
    if isinstance(value, list | tuple):
        return Node([json_node(item, span) for item in value], span)
    if value is None or isinstance(value, bool):
        return Node(value, span, text={None: "null", True: "true", False: "false"}[value])
    if isinstance(value, int | float | str):
        return Node(value, span, text=str(value))
    return Node(str(value), span, text=str(value))
