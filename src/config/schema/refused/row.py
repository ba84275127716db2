"""One refused option."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from ..section import Notation


@dataclass(frozen=True, slots=True)
class Refused:
    """One option of a section. `reason` says what this build does instead; `same` are values like the default."""

    name: str
    type: Any
    default: Any
    meaning: str
    _: KW_ONLY
    reason: str
    same: tuple[Any, ...] = ()
    aliases: tuple[str, ...] = ()
    notation: Notation | None = None
