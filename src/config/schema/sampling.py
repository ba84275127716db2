"""Sampling parameters that a deployment or a model can give defaults for, with the range of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Range:
    least: float
    most: float
    is_open: bool = False  # the least itself is not allowed
    is_whole: bool = False

    def json_schema(self) -> dict[str, Any]:
        kind, least = "integer" if self.is_whole else "number", "exclusiveMinimum" if self.is_open else "minimum"
        convert = int if self.is_whole else float
        return {"type": kind, least: convert(self.least), "maximum": convert(self.most)}


RANGES = {
    "temperature": Range(0.0, 1e6),
    "top_p": Range(0.0, 1.0, is_open=True),
    "top_k": Range(-1.0, 2**31, is_whole=True),
    "min_p": Range(0.0, 1.0),
    "repetition_penalty": Range(0.0, 1e6, is_open=True),
    "presence_penalty": Range(-2.0, 2.0),
    "frequency_penalty": Range(-2.0, 2.0),
    "max_tokens": Range(1.0, 2**31, is_whole=True),
}
THEIR_NAMES = {"max_new_tokens": "max_tokens"}  # in generation_config.json -> ours, where they differ

SAMPLING_DEFAULTS = {  # JSON Schema
    "type": "object",
    "properties": {
        **{name: limits.json_schema() for name, limits in RANGES.items()},
        **{theirs: RANGES[ours].json_schema() for theirs, ours in THEIR_NAMES.items()},
    },
    "additionalProperties": False,
}
