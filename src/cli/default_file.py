"""The deployment of a command line that names none: deploy.yaml in the current folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..config.source.environment import EnvironmentSource
from ..config.source.merge import merge
from ..config.source.overrides import command_line

NAMES = ("deploy.yaml", "deploy.yml")


def default_files(overrides: Sequence[str]) -> list[str]:
    """A list of one file; empty if there is none, or if overrides or the environment already name a model or a file."""
    found = [name for name in NAMES if Path(name).is_file()]
    if not found:
        return []
    named = merge(source.trees for source in (EnvironmentSource(os.environ), command_line(overrides, [])))
    return [] if {"model.model", "config"} & named.keys() else found[:1]
