"""What the readers of YAML documents share: children of nodes, variables, and text in the form of a manifest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ..source.node import Node, Tree
from .words import literal

_READ = {"image", "command", "args", "entrypoint", "environment", "env", "envFrom", "env_file", "name", "envs"}


def child_of(node: Node, key: str) -> object:
    """The value under a key; None if the node is not a mapping, or does not have it."""
    child = node.value.get(key) if isinstance(node.value, dict) else None
    return child.value if child else None


def items_of(node: Node | None) -> list[Node]:
    """The items of a list; nothing for other nodes."""
    return node.value if node and isinstance(node.value, list) else []


def assignments(items: list[Node], convert: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Names and values of `NAME=value`. Without a value, it is that of the environment in which the launch runs."""
    for item in items:
        name, equals, value = (item.text or "").partition("=")
        yield name, convert(value) if equals else f"${{{name}}}"


def path_of(node: Node) -> str:
    """A reference as one line: `secretKeyRef name=x key=y`."""
    if isinstance(node.value, dict):
        parts = [
            f"{name} {path_of(child)}" if isinstance(child.value, dict) else f"{name}={child.text}"
            for name, child in node.value.items()
        ]
        return " ".join(parts)
    return node.text or ""


def replaced(pattern: re.Pattern[str], replace: Callable[[re.Match[str]], str], text: str) -> str:
    """The text in the form of a manifest, with what the pattern finds replaced."""
    done, at = "", 0
    for match in pattern.finditer(text):
        done += literal(text[at : match.start()]) + replace(match)
        at = match.end()
    return done + literal(text[at:])


def other_keys(kind: str, tree: Tree) -> list[str]:
    """A note on the keys that are not read, if there are any."""
    others = [f"`{key}`" for key in tree if key not in _READ]
    return [f"Keys of the {kind} that are not part of a manifest: {', '.join(others)}."] if others else []


def is_read(key: str) -> bool:
    return key in _READ
