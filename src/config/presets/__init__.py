"""Presets of the package: one YAML file each, read by source/presets.py."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path


@cache
def preset_names() -> tuple[str, ...]:
    entries = (Path(entry.name) for entry in files(__name__).iterdir())
    return tuple(sorted(entry.stem for entry in entries if entry.suffix == ".yaml"))
