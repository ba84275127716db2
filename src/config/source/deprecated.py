"""Replaces the deprecated options of a layer by the current ones, with a warning for each.

This happens before layers are merged, so an old name is exactly as strong as the new one in its place would be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..diagnostics import Diagnostic, Label
from ..schema.options import Option, option_and_keys, options
from .check import check, problems
from .layer import place
from .node import Node, Tree
from .values import json_node


def modernise(trees: list[Tree], env: Mapping[str, str], found: list[Diagnostic]) -> None:
    """Take deprecated options out of a layer's trees and put what they become into them."""
    written = [(section, home) for tree in trees for section, home in tree.items() if isinstance(home.value, dict)]
    for section, home in written:
        assert isinstance(home.value, dict)
        for name in list(home.value):
            option = options().get(f"{section}.{name}")
            if option is not None and option.status == "deprecated":
                _replace(trees, option, home.value.pop(name), env, found)


def _replace(trees: list[Tree], option: Option, node: Node, env: Mapping[str, str], found: list[Diagnostic]) -> None:
    found.append(_warning(option, node))
    if node.is_null:
        return
    if unknown := problems(node):
        found += unknown
        return
    before = len(found)
    value = check(option, node, env, found)
    if len(found) > before:
        return
    try:
        values = option.becomes(value)
    except ValueError as error:
        message = f"`{option.path}: {node.text}` has nothing that stands for it"
        found.append(Diagnostic(code="C118", message=message, path=option.path, labels=(Label(node.span, str(error)),)))
        return
    for path, new in values.items():
        _put(trees, option, path, _as_written(node, value, new), found)


def _as_written(node: Node, value: Any, new: Any) -> Node:
    """The same node where the value stays the same, so that `0123` stays the text it is."""
    return node if new is value else json_node(new, node.span)


def _put(trees: list[Tree], old: Option, path: str, node: Node, found: list[Diagnostic]) -> None:
    option, keys = option_and_keys(path)
    for key in reversed(keys):
        node = Node({key: node}, node.span)
    homes = [home.value for tree in trees if (home := tree.get(option.section)) is not None]
    there = next((home[option.name] for home in homes if isinstance(home, dict) and option.name in home), None)
    if there is not None and not keys and there.plain() != node.plain():
        labels = (Label(node.span, "the old name"), Label(there.span, "the new one"))
        message = f"`{old.path}` and `{option.path}` mean the same and say different things"
        found.append(Diagnostic(code="C124", message=message, path=old.path, labels=labels))
        return
    place(trees, option, node)


def _warning(option: Option, node: Node) -> Diagnostic:
    return Diagnostic(
        code="C123",
        severity="warning",
        message=f"`{option.path}` is deprecated",
        path=option.path,
        labels=(Label(node.key or node.span, option.reason),),
        suggestions=option.replaced_by,
    )
