"""The configuration as written: every layer merged and typed, before `auto` is replaced."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .diagnostics import Diagnostic
from .origin import DEFAULT, Origin, Overridden
from .schema.cache import CacheConfig
from .schema.deployment import DeploymentConfig
from .schema.device import DeviceConfig
from .schema.load import LoadConfig
from .schema.model import ModelConfig
from .schema.options import options
from .schema.scheduler import SchedulerConfig
from .schema.server import ServerConfig
from .source_text import SourceText, Span


@dataclass(frozen=True)
class Deployment:
    """What was written, typed and merged; `auto` is not replaced yet.

    Attributes:
        config: every option.
        origins: where each written option comes from, by path; keys of mapping options have their own.
        overridden: what stronger layers replaced, strongest first.
        spans: the place of each written option, for messages.
        references: where secrets are read from, in the form of a manifest; without secrets that were written out.
        secret_variables: names of the environment variables that secrets are read from.
        folders: what relative paths in an option are relative to; the working directory where none is named.
        warnings: findings that do not stop anything.
        sources: the text of the preset and of every file read, weakest first.
    """

    config: DeploymentConfig
    origins: Mapping[str, Origin] = field(default_factory=dict)
    overridden: Mapping[str, tuple[Overridden, ...]] = field(default_factory=dict)
    spans: Mapping[str, Span] = field(default_factory=dict)
    references: Mapping[str, Any] = field(default_factory=dict)
    secret_variables: frozenset[str] = frozenset()
    folders: Mapping[str, Path] = field(default_factory=dict)
    warnings: tuple[Diagnostic, ...] = ()
    sources: tuple[SourceText, ...] = ()

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

    def origin(self, path: str) -> Origin:
        return self.origins.get(path, DEFAULT)

    def absolute(self, path: str, file_name: str) -> str:
        """A file or folder that the value of this option names, relative to the file that wrote it."""
        return os.path.abspath(self.folders.get(path, Path()) / Path(os.path.expanduser(file_name)))

    def located(self, path: str) -> str:
        """The text of an option that names a file or folder, relative to the file that wrote it.

        A model's name is left as it is unless it begins like a path or is a folder there.
        """
        section, _, name = path.partition(".")
        value: str = getattr(getattr(self.config, section), name)
        if value in options()[path].choices:
            return value  # a word such as `auto`
        place = self.folders.get(path, Path()) / Path(os.path.expanduser(value))
        if options()[path].path_kind == "path" or value.startswith((".", "/", "~")) or os.path.exists(place):
            return os.path.abspath(place)  # never mistaken for a hub id
        return value
