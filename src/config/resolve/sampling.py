"""Default sampling parameters in a model's generation_config.json: names there and here, and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..schema.sampling import RANGES, THEIR_NAMES
from ..suggest import close, did_you_mean


def our_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values under this project's names."""
    return {THEIR_NAMES.get(name, name): value for name, value in values.items()}


def from_generation_config(content: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters in a generation_config.json; its other keys are ignored."""
    if content.get("do_sample") is False:
        return {"temperature": 0.0}
    named = our_names(content)
    return {name: named[name] for name in RANGES if named.get(name) is not None}


def problem(values: Mapping[str, Any]) -> str:
    """The first error in default sampling parameters; empty if there is none."""
    for name, value in values.items():
        if name not in RANGES:
            hint = did_you_mean(close(name, RANGES)) or f"known are {', '.join(RANGES)}"
            return f"no sampling parameter `{name}`; {hint}"
        limits = RANGES[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"`{name}` is {value!r}, which is not a number"
        is_above = limits.least < value if limits.is_open else limits.least <= value
        if not (is_above and value <= limits.most):
            bound = "more than" if limits.is_open else "at least"
            return f"`{name}` is {value}; allowed: {bound} {limits.least:g}, at most {limits.most:g}"
        if limits.is_whole and value != int(value):
            return f"`{name}` is {value}, which is not a whole number"
    return ""
