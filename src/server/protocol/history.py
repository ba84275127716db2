"""The messages that a body of another dialect has, as chat messages, with their places in that body."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .errors import FieldError


@dataclass(slots=True)
class History:
    """
    places: of each message, where the body has it, such as `[3]` or `[3].content[0]`.
    skipped: types of the entries that were left out, because the model need not see them.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def add(self, message: dict[str, Any], place: str) -> None:
        self.messages.append(message)
        self.places.append(place)

    def skip(self, kind: str) -> None:
        if kind not in self.skipped:
            self.skipped.append(kind)


def string(entry: dict[str, Any], name: str, place: str) -> str:
    """Raises FieldError."""
    value = entry.get(name)
    if not isinstance(value, str):
        raise FieldError("must be a text", code="invalid_type", place=f"{place}.{name}")
    return value


def kind_of(part: Any) -> str | None:
    """The type of a block or item, and None without one. A type that is not a text is quoted."""
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if kind is None or isinstance(kind, str) else repr(kind)[:50]
