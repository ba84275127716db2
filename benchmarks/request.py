"""One request of a workload. Only the standard library: every peer's environment imports it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    prompt: list[int]
    output: int  # tokens to generate, no more and no fewer
