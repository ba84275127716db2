"""A layer of a deployment as a pydantic-settings source that remembers where each value stands."""

from __future__ import annotations

from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from ..diagnostics import Diagnostic
from ..schema.deployment import DeploymentConfig
from .node import Node, Tree


class DeploymentSettings(DeploymentConfig, BaseSettings):  # type: ignore[misc]  # each has settings of its own
    """The deployment as the settings class that layers are sources of."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Nothing is read behind one's back: the layers are read and merged by load.py."""
        return (init_settings,)


class LayerSource(PydanticBaseSettingsSource):
    """What one file, the environment, a preset or a command line says.

    Attributes:
        tree: sections, or header keys, by name; the leaves know their places.
        found: what is wrong with the layer itself, such as keys that no option has.
    """

    def __init__(self) -> None:
        super().__init__(DeploymentSettings)
        self.tree: Tree = {}
        self.found: list[Diagnostic] = []

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The layer's plain value of a section or header key, None if it says nothing."""
        node = self.tree.get(field_name)
        return (node.plain() if isinstance(node, Node) else None), field_name, isinstance(node and node.value, dict)

    def __call__(self) -> dict[str, Any]:
        return {name: node.plain() for name, node in self.tree.items()}
