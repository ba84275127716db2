"""Presets: named values with a reason each. The weakest layer above the defaults."""

from __future__ import annotations

from importlib.resources import files

from ..errors import ConfigError
from ..origin import Layer
from ..source_text import SourceText
from .keys import known_part
from .layer import LayerSource
from .node import Node, Tree
from .yaml import lines_of, parse

_PACKAGE = __name__.rpartition(".source")[0] + ".presets"


class PresetSource(LayerSource):
    """One preset of the package. `title` says what it is for; every value carries the reason why it is set."""

    def __init__(self, name: str) -> None:
        super().__init__()
        content = (files(_PACKAGE) / f"{name}.yaml").read_text()
        self.text = SourceText(Layer.PRESET, name, lines_of(content))
        root = parse(content, self.text, self.found)
        assert root is not None
        assert isinstance(root.value, dict), f"preset {name}: the top level must be a mapping"
        self.title = str(root.value.pop("title").value)
        self.tree: Tree = known_part(root, self.found)
        for section in self.tree.values():
            assert isinstance(section.value, dict)
            section.value = {key: _reasoned(node) for key, node in section.value.items()}
        if self.found:
            raise ConfigError(self.found)


def _reasoned(node: Node) -> Node:
    """`{value: 64, why: ...}` as a node with its reason."""
    assert isinstance(node.value, dict)
    value, why = node.value["value"], node.value["why"]
    value.key, value.reason = node.key, str(why.value)
    return value
