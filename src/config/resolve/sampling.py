"""Default sampling parameters of a deployment: their names in a model's file and here, and what each may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..suggest import close, did_you_mean


@dataclass(frozen=True, slots=True)
class Range:
    least: float
    most: float
    is_open: bool = False  # the least itself is not allowed
    is_whole: bool = False


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
_THEIR_NAMES = {"max_new_tokens": "max_tokens"}  # in generation_config.json -> ours, where they differ


def our_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values under this project's names."""
    return {_THEIR_NAMES.get(name, name): value for name, value in values.items()}


def from_generation_config(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a generation_config.json says about sampling; everything else in it is for other programs."""
    if content.get("do_sample") is False:
        return {"temperature": 0.0}
    named = our_names(content)
    return {name: named[name] for name in RANGES if named.get(name) is not None}


def problem(values: Mapping[str, Any]) -> str:
    """What is wrong with default sampling parameters, in words; empty if nothing is."""
    for name, value in values.items():
        if name not in RANGES:
            hint = did_you_mean(close(name, RANGES)) or f"known are {', '.join(RANGES)}"
            return f"no sampling parameter `{name}`; {hint}"
        limits = RANGES[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"`{name}` is {value!r}, which is no number"
        is_above = limits.least < value if limits.is_open else limits.least <= value
        if not (is_above and value <= limits.most):
            bound = "more than" if limits.is_open else "at least"
            return f"`{name}` is {value}; allowed: {bound} {limits.least:g}, at most {limits.most:g}"
        if limits.is_whole and value != int(value):
            return f"`{name}` is {value}, which is no whole number"
    return ""
