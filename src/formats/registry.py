"""All formats by name, and the names that other servers give them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from .declarations import DECLARATIONS
from .format import Format

FORMATS: Mapping[str, Format] = {format.name: format for format in DECLARATIONS}

# Names in vLLM and SGLang that are not the name here; `-` and `_` are the same.
ALIASES: Mapping[str, str] = {"qwen": "hermes", "qwen25": "hermes", "qwen3": "hermes", "granite4": "hermes"}


class UnknownFormat(ValueError):
    """No format has this name."""

    def __init__(self, name: str, near: tuple[str, ...]) -> None:
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        super().__init__(f"no format is named {name!r}{hint}")
        self.name = name
        self.near = near


def find(name: str) -> Format:
    """The format of this name, here or in vLLM or SGLang. Raises UnknownFormat."""
    plain = name.lower().replace("-", "_")
    format = FORMATS.get(ALIASES.get(plain, plain))
    if format is None:
        raise UnknownFormat(name, tuple(difflib.get_close_matches(plain, [*FORMATS, *ALIASES], n=3)))
    return format
