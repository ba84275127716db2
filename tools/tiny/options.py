"""The options in the training data of builtin:tiny."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

UNSET = "unset"


@dataclass(frozen=True)
class Option:
    name: str
    flag: str
    section: str | None  # None: Stoker has no section for this option
    status: str  # current, deprecated, removed
    default: str  # as written in YAML; UNSET if there is none
    meaning: str  # one sentence, without the final period
    choices: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name


def _written(value: Any) -> str:
    if value is None or value == "":
        return UNSET
    return value if isinstance(value, str) else json.dumps(value)


def read_options() -> list[Option]:
    entries = yaml.safe_load((Path(__file__).parent / "options.yaml").read_text())
    return [
        Option(
            name=entry["name"],
            flag=entry["flag"],
            section=entry.get("section"),
            status=entry["status"],
            default=_written(entry.get("default")),
            meaning=entry["meaning"],
            choices=tuple(entry.get("choices", ())),
        )
        for entry in entries
    ]
