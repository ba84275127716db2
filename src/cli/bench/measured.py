"""The result of a measurement of any kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """config_hash: of `engine config --hash`; None for a running server. details: further parts of the record."""

    model: str
    results: dict[str, Any]
    config_hash: str | None = None
    details: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)  # message -> how many requests


class BenchError(Exception):
    """The measurement is not possible; the message is one line for the user."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
