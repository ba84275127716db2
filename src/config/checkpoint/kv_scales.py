"""Factors of keys and values that a checkpoint has for a cache in 8 bits: which tensors they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .stored import FLOAT_DTYPES, StoredTensor

# compressed-tensors: self_attn.k_scale, earlier k_proj.output_scale, which Quark writes too. Model Optimizer:
# k_proj.k_scale. kv_scale: of both, in older files.
_NAME = re.compile(r"(?:^|.*\.)layers\.(\d+)\.(?:\w+\.)*(?:(k|v|kv)_scale|(k|v)_proj\.output_scale)")


@dataclass(frozen=True, slots=True)
class KVScaleTensors:
    """Names of tensors in the files, of one layer."""

    keys: str
    values: str


def is_kv_scale(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def kv_scale_tensors(stored: Mapping[str, StoredTensor]) -> dict[int, KVScaleTensors]:
    """Layer -> its tensors; without layers that have only one of the two."""
    found: dict[int, dict[str, str]] = {}
    for name, tensor in stored.items():
        if tensor.dtype in FLOAT_DTYPES and (match := _NAME.fullmatch(name)):
            layer, end, projection = match.groups()
            for which in end or projection:
                found.setdefault(int(layer), {})[which] = name
    return {
        layer: KVScaleTensors(each["k"], each["v"]) for layer, each in sorted(found.items()) if {"k", "v"} <= set(each)
    }
