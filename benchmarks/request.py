"""One request of a workload. Imports only the standard library, because the environment of every peer imports it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    prompt: list[int]
    output: int  # exact number of tokens to generate
