"""One refused option."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..section import Notation


@dataclass(frozen=True, slots=True)
class Refused:
    """One option. `reason` says what this build does instead; `same` are values that mean the same as the default."""

    path: str
    type: Any
    default: Any
    reason: str
    meaning: str
    same: tuple[Any, ...] = ()
    aliases: tuple[str, ...] = ()
    notation: Notation | None = None
