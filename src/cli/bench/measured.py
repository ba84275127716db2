"""What every kind of measurement gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """config_hash: of `engine config --hash`; None for a server elsewhere. facts: further parts of the record."""

    model: str
    results: dict[str, Any]
    config_hash: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)  # message -> how many requests


class BenchError(Exception):
    """Nothing can be measured; the message is one line for the user."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
