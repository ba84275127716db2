"""The content of config.json, or of what takes its place, before and after `model.hf_overrides`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...model.params_json import config_of
from ..checkpoint.gguf_files import read_config as read_gguf_config
from ..checkpoint.model_files import PARAMS_JSON, is_gguf, read_json, read_json_if_any

QUANTIZE_CONFIG = "quantize_config.json"  # of old GPTQ checkpoints
HF_QUANT_CONFIG = "hf_quant_config.json"  # of modelopt's, which older versions do not write into config.json


def is_consolidated(path: Path) -> bool:
    """Whether a file of `config_path` describes weights of Mistral AI's own format."""
    return path.name == PARAMS_JSON


def read_values(path: Path) -> dict[str, Any]:
    """The content of config.json, or of params.json or a GGUF header in its terms.

    Raises ModelConfigError for one that cannot be translated.
    """
    if is_gguf(path):
        return read_gguf_config(path)
    content = read_json(path)
    if is_consolidated(path):
        return config_of(content)
    if content.get("quantization_config"):
        return content
    if found := read_json_if_any(path.parent / QUANTIZE_CONFIG):
        content["quantization_config"] = {"quant_method": "gptq", **found}
    elif found := read_json_if_any(path.parent / HF_QUANT_CONFIG):
        own = found.get("quantization")
        content["quantization_config"] = {"quant_method": "modelopt", **(own if isinstance(own, dict) else found)}
    return content


def merge_deep(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` on top; mappings are merged key by key, all else is replaced."""
    merged = dict(base)
    for key, value in changes.items():
        below = merged.get(key)
        merged[key] = merge_deep(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def apply_overrides(written: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """hf_overrides on top; the old names of rope keys count where the file uses the new ones."""
    merged = merge_deep(written, overrides)
    rope = merged.get("rope_parameters")
    if "rope_parameters" in overrides and "rope_scaling" not in overrides:
        merged.pop("rope_scaling", None)  # of the file; beside the new name the old one would count
    if isinstance(rope, dict) and "rope_parameters" not in overrides:
        rope = dict(rope)
        if isinstance(overrides.get("rope_scaling"), Mapping):
            rope = {"rope_theta": rope.get("rope_theta"), **overrides["rope_scaling"]}
        if "rope_theta" in overrides:
            rope["rope_theta"] = overrides["rope_theta"]
        merged["rope_parameters"] = rope
    return merged


def used_for_rope(merged: Mapping[str, Any]) -> tuple[str, ...]:
    """Old names of rope keys that `apply_overrides` has put under the new ones."""
    return ("rope_theta", "rope_scaling") if isinstance(merged.get("rope_parameters"), Mapping) else ()
