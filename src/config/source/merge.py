"""Layers into one: for every option, what each layer says about it and what is left in the end.

Mapping options are merged key by key, everything else is replaced. null unsets: weaker layers do not show through, and
the default holds. Inside a mapping option null is a value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ..schema.options import options, options_of, sections
from .node import Node, Tree


@dataclass(slots=True)
class Written:
    """One option over all layers: `nodes` weakest first, `effective` what counts, None if nothing is left."""

    nodes: list[Node] = field(default_factory=list)
    effective: Node | None = None
    origin: Node | None = None  # the strongest node that `effective` is made of


def merge(trees: Iterable[Tree]) -> dict[str, Written]:
    """Every option that some layer speaks about, by path. `trees` are weakest first."""
    merged: dict[str, Written] = {}
    for tree in trees:
        for name, node in tree.items():
            if name not in sections():
                _add(merged, name, node)
            elif isinstance(node.value, dict):
                for key, child in node.value.items():
                    _add(merged, f"{name}.{key}", child)
            else:  # null: unsets every option of the section
                for option in options_of(name):
                    if option.path in merged:
                        _add(merged, option.path, node)
    return merged


def _add(merged: dict[str, Written], path: str, node: Node) -> None:
    written = merged.setdefault(path, Written())
    written.nodes.append(node)
    if node.is_null:
        written.effective = written.origin = None
        return
    is_joined = node.appends or options()[path].kind == "mapping"
    written.effective = merge_nodes(written.effective if is_joined else None, node)
    written.origin = node


def merge_nodes(below: Node | None, above: Node, keep_unsets: bool = False) -> Node:
    """`above` on top of `below`: mappings key by key, lists after each other where `above` appends.

    keep_unsets: both are parts of one layer, and keys that it unsets are still to be taken out of weaker ones.
    """
    if below is None or below.is_null or above.replaces:
        below = None
    if isinstance(above.value, dict):
        tree = dict(below.value) if below is not None and isinstance(below.value, dict) else {}
        for key, node in above.value.items():
            if node.unsets and not keep_unsets:
                tree.pop(key, None)
            else:
                tree[key] = merge_nodes(tree.get(key), node, keep_unsets)
        return replace(above, value=tree)
    if below is not None and above.appends and isinstance(above.value, list):
        items = below.value if isinstance(below.value, list) else [below]
        return replace(above, value=[*items, *above.value], appends=below.appends)
    return above
