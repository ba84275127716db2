"""Checks the keys of a layer against the declared options, and hides its secrets."""

from __future__ import annotations

import unicodedata

from ..diagnostics import MAX_FINDINGS, Diagnostic, Label
from ..schema.options import FREE_PREFIX, Option, options, sections
from ..suggest import did_you_mean, normal, paths_like
from .node import Node, Tree
from .secrets import hide, hide_look_alikes, looks_secret, take_as_secret

_UNSEEN = ("Zs", "Cf")  # categories of characters: spaces, and marks of text that a page was copied with


def known_part(root: Node, found: list[Diagnostic]) -> Tree:
    """The keys of a manifest that are options. All others are reported in `found`; `x-` keys are dropped."""
    assert isinstance(root.value, dict)
    tree: Tree = {}
    for name, node in root.value.items():
        if name.startswith(FREE_PREFIX):
            hide_look_alikes(node)
            continue
        if name in sections():
            if node.is_empty:
                continue  # a section without keys is ignored; a written null unsets it
            if node.is_null:
                tree[name] = node
            elif isinstance(node.value, dict):
                tree[name] = Node(_known_keys(name, node.value, found), node.span, key=node.key, anchor=node.anchor)
            else:
                found.append(_no_section(name, node))
        elif name in options():
            tree[name] = node
        else:
            found.append(_unknown("", name, node, len(found) < MAX_FINDINGS))
    return tree


def _no_section(name: str, node: Node) -> Diagnostic:
    """A value where a section's keys belong; for `model: NAME` it is clear what was meant."""
    said = f"write the keys of `{name}` below it, indented"
    key, colon, _ = (node.text or "").partition(":")
    if colon and f"{name}.{key}" in options():
        said = f"write a space after `{key}:`"
        hide(node)  # it may be a secret
    elif f"{name}.{name}" in options() and node.text:
        said = f"write `{name}: {{{name}: {node.text}}}`"
    else:
        hide(node)
    message = f"`{name}` is a section and holds keys"
    return Diagnostic(code="C104", message=message, path=name, labels=(Label(node.span, said),))


def _known_keys(section: str, written: Tree, found: list[Diagnostic]) -> Tree:
    known: Tree = {}
    for name, node in written.items():
        option = options().get(f"{section}.{name}")
        if option is None:
            found.append(_unknown(section, name, node, len(found) < MAX_FINDINGS))
            continue
        if option.is_secret:
            take_as_secret(node)
        known[name] = node
    return known


def _unknown(section: str, name: str, node: Node, is_shown: bool) -> Diagnostic:
    """A key that no option has. Its value is not shown where it may be a misplaced secret.

    is_shown: whether the finding is shown; searching for similar names takes a while.
    """
    suggestions = paths_like(section, name) if is_shown else []
    path = f"{section}.{name}" if section else name
    if not is_shown or looks_secret(name) or any(_is_secret(options().get(suggestion)) for suggestion in suggestions):
        hide(node)
    hide_look_alikes(node)
    label = Label(node.key or node.span, _said(section, name, suggestions))
    return Diagnostic(
        code="C103",
        message=f"no such key `{path}`",
        path=path,
        labels=(label,),
        suggestions=tuple(suggestions),
    )


def _is_secret(option: Option | None) -> bool:
    return option is not None and option.is_secret


def _said(section: str, name: str, suggestions: list[str]) -> str:
    hidden = next((char for char in name if not char.isascii() and unicodedata.category(char) in _UNSEEN), "")
    if hidden:
        return (
            f"it has the character U+{ord(hidden):04X} {unicodedata.name(hidden, '')}: write a plain space, or nothing"
        )
    if len(suggestions) == 1:
        (path,) = suggestions
        home, _, key = path.rpartition(".")
        if key == normal(name) and home != section:
            return f"this key exists under `{home}.`: `{path}`"
    if suggestions:
        return did_you_mean(suggestions)
    keys = [path.partition(".")[2] for path in options() if section and path.startswith(f"{section}.")]
    if section and not keys:
        return f"`{section}` has no options in this build"
    return ""
