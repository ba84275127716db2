"""Placeholder of the next commit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnostic:
    exit_code: int = 78
    is_error: bool = True

    def as_text(self) -> str:
        return ""
