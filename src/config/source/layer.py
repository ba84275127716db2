"""One layer of a deployment: the values of a file, the environment, a preset, keyword arguments or a command line."""

from __future__ import annotations

from ..diagnostics import Diagnostic
from ..schema.options import Option
from .node import Node, Tree


class LayerSource:
    """The values of one layer.

    Attributes:
        trees: sections, or header keys, by name; the leaves have their places. A later tree is merged over the earlier
            ones: most layers need one, a command line that writes a mapping option twice needs two.
        found: what is wrong with the layer itself, such as keys that no option has.
    """

    def __init__(self) -> None:
        self.trees: list[Tree] = [{}]
        self.found: list[Diagnostic] = []

    @property
    def tree(self) -> Tree:
        """The first tree, which is the only one of files and presets."""
        return self.trees[0]

    @tree.setter
    def tree(self, tree: Tree) -> None:
        self.trees = [tree]


def place(trees: list[Tree], option: Option, node: Node) -> None:
    """Put a value at its option's path, over earlier values of the same layer: see `LayerSource.trees`."""
    is_merged = node.appends or option.kind == "mapping"
    if is_merged and _home(trees[-1], option, node).get(option.name) is not None:
        trees.append({})
    elif not is_merged:
        for tree in trees:
            _home(tree, option, node).pop(option.name, None)
    _home(trees[-1], option, node)[option.name] = node


def _home(tree: Tree, option: Option, node: Node) -> Tree:
    """The mapping of the option's section, which is made where it is missing."""
    if not option.section:
        return tree
    section = tree.setdefault(option.section, Node({}, node.span))
    assert isinstance(section.value, dict)
    return section.value
