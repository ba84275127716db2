"""The method of a quantised checkpoint, as its config.json names it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def read_quantisation(config: Mapping[str, Any], text: Mapping[str, Any]) -> tuple[str | None, int]:
    """Method and bits per weight of a quantised checkpoint, as its config names them."""
    found = config.get("quantization_config") or text.get("quantization_config") or config.get("compression_config")
    if not isinstance(found, Mapping):
        return None, 16
    named = found.get("quant_method") or found.get("quant_algo")
    method = named if isinstance(named, str) else "unknown"
    if method == "bitsandbytes":
        return method, 4 if found.get("load_in_4bit") else 8
    if method == "mxfp4":
        return method, 4
    if (bits := _bits(found.get("bits"))) is not None:
        return method, bits
    groups = found.get("config_groups")
    if isinstance(groups, Mapping):
        for group in groups.values():
            weights = group.get("weights") if isinstance(group, Mapping) else None
            if isinstance(weights, Mapping) and (bits := _bits(weights.get("num_bits"))) is not None:
                return method, bits
    return method, 4 if "4" in method else 8


def _bits(value: Any) -> int | None:
    return value if isinstance(value, int) and 1 <= value <= 64 else None
