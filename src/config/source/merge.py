"""Merges the layers: for every option, its value in each layer and the effective one.

pydantic-settings merges: each tree of a layer is a source of `MergedLayers`, in order of strength. Mapping options are
merged key by key, everything else is replaced. What is merged are nodes, so a value keeps its place, and types are
checked afterwards (../load.py): a wrong value is reported with its line, together with all others, and also where a
stronger layer overrides it. A null unsets: weaker layers have no effect, and the default is used. Inside a mapping
option null is a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from ..schema.options import options_of, sections
from .node import Node, Tree

State = dict[Any, Any]  # nested mappings whose leaves are nodes
_END = object()  # as a key of a mapping: weaker layers have no effect in it


@dataclass(slots=True)
class Written:
    """One option over all layers: `nodes` weakest first, `effective` is the merged value, None if it is unset."""

    nodes: list[Node] = field(default_factory=list)
    effective: Node | None = None
    origin: Node | None = None  # the strongest node that `effective` is made of


class MergedLayers(BaseSettings):
    """All layers of a deployment; its extra fields are the sections and header keys."""

    model_config = SettingsConfigDict(extra="allow")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: Any,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only the layers, strongest first; variables are one of them and are read in environment.py."""
        return tuple(_TreeSource(cls, tree) for tree in reversed(init_settings.init_kwargs["trees"]))


class _TreeSource(PydanticBaseSettingsSource):
    """One tree of a layer. `current_state` is the merge of the stronger ones."""

    def __init__(self, settings_cls: type[BaseSettings], tree: Tree) -> None:
        super().__init__(settings_cls)
        self._tree = tree

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self().get(field_name), field_name, False

    def __call__(self) -> State:
        return _under(self.current_state, _state(self._tree))


def _under(stronger: State, state: State) -> State:
    """The part of `state` that has an effect under `stronger`.

    The library merges mappings whatever is between them, so a null or a scalar under a mapping leaves `_END` in it, and
    weaker layers add nothing there. Items of a list go in front of items that a stronger layer appends.
    """
    found: State = {}
    for key, value in state.items():
        over = stronger.get(key)
        if isinstance(over, dict):
            if _END not in over:
                found[key] = _under(over, value) if isinstance(value, dict) else {_END: value}
            continue
        found[key] = value
        if over is not None and over.appends and isinstance(value, Node):
            items = value.value if isinstance(value.value, list) else [] if value.is_null else [value]
            over.value, over.appends = [*items, *over.value], value.appends
    return found


def _state(tree: Tree) -> State:
    """Sections and mapping options as mappings, everything else as nodes."""
    found: State = {}
    for name, node in tree.items():
        if name in sections() and isinstance(node.value, dict):
            mappings = {option.name for option in options_of(name) if option.kind == "mapping"}
            found[name] = {key: _nested(child, key in mappings) for key, child in node.value.items()}
        else:
            found[name] = _nested(node, False)
    return found


def _nested(node: Node, is_mapping: bool) -> Any:
    if is_mapping and isinstance(node.value, dict):
        return {key: _nested(child, True) for key, child in node.value.items()}
    return replace(node) if node.appends else node  # a copy, since weaker items are added to it


def merge(layers: Iterable[Sequence[Tree]]) -> dict[str, Written]:
    """Every option that a layer has a value for, by path. `layers` are weakest first, each with its trees."""
    every: list[Tree] = []
    written: dict[str, Written] = {}
    said: dict[str, list[Node]] = {}  # by every tree, strongest first
    for trees in layers:
        latest: dict[str, Node] = {}
        for tree in trees:
            every.append(tree)
            found = _by_path(tree, {*written, *latest})
            latest |= found
            for path, node in found.items():
                said.setdefault(path, []).insert(0, node)
        for path, node in latest.items():
            written.setdefault(path, Written()).nodes.append(node)
    merged: State = MergedLayers(trees=every).model_extra or {}
    for path, entry in written.items():
        section, _, name = path.rpartition(".")
        home = merged[section] if section else merged
        state = home.get(name) if isinstance(home, dict) else home
        if state is None or (isinstance(state, Node) and state.is_null):
            continue
        entry.effective = _node(state, said[path])
        entry.origin = entry.nodes[-1]
    return written


def _by_path(tree: Tree, known: Iterable[str]) -> dict[str, Node]:
    """Nodes by the paths of their options. A section that is null unsets its known options."""
    found: dict[str, Node] = {}
    for name, node in tree.items():
        if name not in sections():
            found[name] = node
        elif isinstance(node.value, dict):
            found |= {f"{name}.{key}": child for key, child in node.value.items()}
        else:
            found |= {option.path: node for option in options_of(name) if option.path in known}
    return found


def _node(state: Any, said: Sequence[Node]) -> Node:
    """A merged value with its places; a mapping's place is where the strongest layer writes it."""
    if isinstance(state, Node):
        return state
    mappings = [(node, node.value) for node in said if isinstance(node.value, dict)]
    children = {
        key: _node(child, [tree[key] for _, tree in mappings if key in tree])
        for key, child in state.items()
        if key is not _END and not (isinstance(child, Node) and child.unsets)
    }
    return replace(mappings[0][0], value=children)
