"""Loading a deployment: all layers, merged and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .origin import Origin
from .schema.cache import CacheConfig
from .schema.deployment import DeploymentConfig
from .schema.device import DeviceConfig
from .schema.load import LoadConfig
from .schema.model import ModelConfig
from .schema.scheduler import SchedulerConfig
from .schema.server import ServerConfig


@dataclass(frozen=True)
class Deployment:
    """What was written, typed and merged; `auto` still stands where it was written."""

    config: DeploymentConfig
    origins: Mapping[str, Origin] = field(default_factory=dict)

    @property
    def model(self) -> ModelConfig:
        return self.config.model

    @property
    def load(self) -> LoadConfig:
        return self.config.load

    @property
    def cache(self) -> CacheConfig:
        return self.config.cache

    @property
    def scheduler(self) -> SchedulerConfig:
        return self.config.scheduler

    @property
    def device(self) -> DeviceConfig:
        return self.config.device

    @property
    def server(self) -> ServerConfig:
        return self.config.server


def load_deployment(
    files: Sequence[Path | str], overrides: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> Deployment:
    values: dict[str, Any] = {}
    for file in files:
        for section, content in yaml.safe_load(Path(file).read_text()).items():
            if isinstance(content, dict):
                values.setdefault(section, {}).update(content)
            else:
                values[section] = content
    flat = {name: section for section, field_ in DeploymentConfig.model_fields.items()
            if hasattr(field_.annotation, "model_fields") for name in field_.annotation.model_fields}
    words = iter(overrides)
    for word in words:
        name, _, value = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        value = value or next(words)
        section, _, key = name.rpartition(".")
        values.setdefault(section or flat[key], {})[key] = yaml.safe_load(value)
    return Deployment(DeploymentConfig.model_validate(values))
