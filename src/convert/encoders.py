"""Quantisers of compressed-tensors, without calibration: a matrix of [outputs, inputs] in float32 to its tensors.

Scales are rounded to the dtype in which they are stored before the codes are computed with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

Method = Literal["int4", "int8", "fp8"]
Parts = dict[str, torch.Tensor]
GROUPS = (128, 64, 32)  # of int4, the first that divides the inputs of every matrix
_BITS, _SHIFTS = 4, torch.arange(0, 32, 4, dtype=torch.int32)
_LARGEST_FP8 = 448.0
_STEPS = 24  # scales that are tried for a group of int4
_ROWS_ELEMENTS = 1 << 22  # elements of which the scales are tried at once


@dataclass(frozen=True, slots=True)
class Encoder:
    """format, weights, activations: in `quantization_config`. parts: of a matrix, by the ends of their names."""

    format: str
    weights: Mapping[str, Any]
    activations: Mapping[str, Any] | None
    layout: Callable[[tuple[int, int]], dict[str, tuple[torch.dtype, tuple[int, ...]]]]
    parts: Callable[[torch.Tensor], Parts]

    def config(self, ignored: list[str]) -> dict[str, Any]:
        """`quantization_config`. ignored: layers that are not quantised."""
        group = {"targets": ["Linear"], "weights": self.weights, "input_activations": self.activations}
        return {
            "quant_method": "compressed-tensors",
            "format": self.format,
            "quantization_status": "compressed",
            "config_groups": {"group_0": {**group, "output_activations": None, "format": self.format}},
            "ignore": ignored,
            "kv_cache_scheme": None,
        }


def encoder(method: Method, group: int | None, scale_dtype: torch.dtype) -> Encoder:
    """group: inputs that share a scale, of int4; the others have a scale per output. scale_dtype: as it is stored."""
    if group is not None:
        return Encoder(
            "pack-quantized",
            _weights("int", 4, "group", group),
            None,
            lambda shape: {
                "weight_packed": (torch.int32, (shape[0], shape[1] // 8)),
                "weight_scale": (scale_dtype, (shape[0], shape[1] // group)),
                "weight_shape": (torch.int64, (2,)),
            },
            lambda matrix: _int4(matrix, group, scale_dtype),
        )
    number, code = ("int", torch.int8) if method == "int8" else ("float", torch.float8_e4m3fn)
    return Encoder(
        f"{number}-quantized",
        _weights(number, 8, "channel", None),
        {"num_bits": 8, "type": number, "symmetric": True, "strategy": "token", "dynamic": True},
        lambda shape: {"weight": (code, shape), "weight_scale": (scale_dtype, (shape[0], 1))},
        lambda matrix: _per_output(matrix, code, scale_dtype),
    )


def _weights(number: str, bits: int, strategy: str, group: int | None) -> dict[str, Any]:
    kind = {"num_bits": bits, "type": number, "symmetric": True, "strategy": strategy}
    return {**kind, "group_size": group, "dynamic": False}


def _per_output(matrix: torch.Tensor, code: torch.dtype, scale_dtype: torch.dtype) -> Parts:
    largest = 127.0 if code is torch.int8 else _LARGEST_FP8
    scales = _stored(matrix.abs().amax(1, keepdim=True) / largest, scale_dtype)
    values = (matrix / scales.float()).clamp(-largest, largest)
    return {"weight": (values.round() if code is torch.int8 else values).to(code), "weight_scale": scales}


def _int4(matrix: torch.Tensor, group: int, scale_dtype: torch.dtype) -> Parts:
    outputs, inputs = matrix.shape
    words = torch.empty(outputs, inputs // 8, dtype=torch.int32)
    scales = torch.empty(outputs, inputs // group, dtype=scale_dtype)
    step = max(1, _ROWS_ELEMENTS // inputs)
    for first in range(0, outputs, step):
        groups = matrix[first : first + step].view(-1, inputs // group, group)
        best = _least_error(groups, scale_dtype)
        codes = _codes(groups, best.float()).to(torch.int32) + (1 << (_BITS - 1))
        # the eight codes of a word have separate bits, so the sum, which may wrap around, is their union
        words[first : first + step] = (codes.view(-1, inputs // 8, 8) << _SHIFTS).sum(-1, dtype=torch.int32)
        scales[first : first + step] = best.squeeze(-1)
    return {"weight_packed": words, "weight_scale": scales, "weight_shape": torch.tensor([outputs, inputs])}


def _least_error(groups: torch.Tensor, scale_dtype: torch.dtype) -> torch.Tensor:
    """groups: [rows, groups, group]. Returns the scales with the least sum of squared errors, [rows, groups, 1].

    A smaller scale clips the largest element and has finer steps for all others.
    """
    largest = groups.abs().amax(-1, keepdim=True)
    best = torch.ones_like(largest, dtype=scale_dtype)
    least = torch.full_like(largest, torch.inf)
    for step in range(_STEPS + 1):
        scales = _stored(largest / (7 + 4 * step / _STEPS), scale_dtype)
        error = (_codes(groups, scales.float()) * scales.float() - groups).square_().sum(-1, keepdim=True)
        is_less = error < least
        least, best = torch.where(is_less, error, least), torch.where(is_less, scales, best)
    return best


def _codes(groups: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (groups / scales).round_().clamp_(-8, 7)


def _stored(scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """1 for a group of zeros, or of elements that are too small for a scale: their codes are 0."""
    rounded = scales.to(dtype)
    return torch.where(rounded == 0, 1, rounded)
