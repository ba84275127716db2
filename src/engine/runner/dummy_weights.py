"""Weights that are generated from a seed, for measurements without a checkpoint (`load_format: dummy`).

A model whose config.json describes a quantised checkpoint gets codes and scales, of the same formats and sizes as that
checkpoint has: what the engine holds, and which kernels run, is what it would be with the files.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

import numpy as np
import torch

from ...config.checkpoint.group_layouts import group_layout
from ...config.checkpoint.settings import DUMMY_DEVIATION
from ...config.checkpoint.stored import FLOAT_DTYPES, Packed, StoredTensor
from ...model.weight_methods import WeightMethod
from ..kernels import Grouped, Integers
from .grouped_codes import FP4_LEVELS
from .grouped_weights import of_packed
from .weights import PART_DTYPES

_LARGEST_FP8 = 448.0
_BLOCK_OF_SCALES = 255  # of bitsandbytes: the code of the largest scale


class DummyWeights:
    """Seeded noise, with the deviation of weights before training. Depends on seed and tensor name, not on the order.

    A GPU generates its own: the host would take a minute for what a GPU reads in a second.
    """

    def __init__(
        self, seed: int, deviation: float = DUMMY_DEVIATION, tensors: Mapping[str, StoredTensor] | None = None
    ) -> None:
        """tensors: of the checkpoint that config.json describes; only its quantised matrices are looked up."""
        self._seed = seed
        self._deviation = deviation
        self._step = deviation * math.sqrt(12) / 2**16  # of a uniform value in 2**16 steps
        self._tensors = tensors or {}

    def view(self, name: str, dtype: torch.dtype) -> None:
        """Returns None: there is no file."""

    def grouped(self, name: str, dtype: torch.dtype) -> Grouped | None:
        stored = self._tensors.get(name)
        if stored is None or stored.packed is None or group_layout(stored) is None:
            return None
        return of_packed(stored.packed, self._parts(stored.packed), dtype)

    def integers(self, name: str) -> Integers | None:
        stored = self._tensors.get(name)
        if stored is None or stored.packed is None or not stored.packed.method.rounds_rows:
            return None
        parts = self._parts(stored.packed)
        return Integers(parts["weight"], parts["weight_scale"].float().flatten())

    def read(self, name: str, into: torch.Tensor) -> None:
        if not into.is_floating_point():  # numbers of experts: the first ones for every token
            into.copy_(torch.arange(into.shape[-1], dtype=into.dtype))
            return
        if into.ndim == 1:
            into.fill_(0.0 if name.endswith(".bias") else 1.0)
            return
        if into.device.type != "cpu":
            words = np.random.SeedSequence([self._seed, zlib.crc32(name.encode())]).generate_state(1, np.uint64)
            own = torch.Generator(into.device).manual_seed(int(words[0]) >> 1)
            half = self._step * 2**15
            into.uniform_(-half, half, generator=own)
            return
        generator = self._generator(name)
        flat = into.view(-1)
        step = 1 << 15  # small enough that torch uses one thread: waking the others costs more than it saves
        for start in range(0, flat.numel(), step):
            part = flat[start : start + step]
            words = generator.integers(0, 2**64, -(-part.numel() // 4), dtype=np.uint64)  # each has four values
            bits = torch.from_numpy(words.view(np.int16)[: part.numel()])
            part.copy_(bits.float().mul_(self._step))

    def _generator(self, name: str) -> np.random.Generator:
        return np.random.Generator(np.random.SFC64([self._seed, zlib.crc32(name.encode())]))

    def _parts(self, packed: Packed) -> dict[str, torch.Tensor]:
        """The tensors of a quantised matrix: codes are random, scales give their levels the deviation of weights."""
        return {end: self._part(packed, end, stored) for end, stored in packed.parts.items()}

    def _part(self, packed: Packed, end: str, stored: StoredTensor) -> torch.Tensor:
        made = torch.empty(stored.shape, dtype=PART_DTYPES[stored.dtype])
        method = packed.method
        if end == "weight.quant_map":
            return made.copy_(torch.linspace(-1.0, 1.0, len(made)))
        if end == "weight.nested_quant_map":
            return made.copy_(torch.linspace(0.0, 1.0, len(made)))
        if end == "weight.absmax" and packed.outer is not None:
            return made.fill_(_BLOCK_OF_SCALES)
        if method.kind == "integers" and end == "weight_zero_point":
            return made.zero_()
        if method.kind == "nvfp4" and end == "weight_scale":
            return made.fill_(1.0)  # the scale of the whole matrix has the size
        if _has_codes(method, end, stored):
            name = f"{packed.layer}.{end}"
            if stored.dtype == "F8_E4M3":  # arbitrary bytes would have NaN among them
                values = torch.empty(stored.shape)
                self.read(name, values)
                return made.copy_(values.mul_(_LARGEST_FP8 / (self._step * 2**15)))
            num_words = -(-stored.num_bytes // 8)
            words = torch.from_numpy(
                self._generator(name).integers(0, 2**64, num_words, dtype=np.uint64).view(np.uint8)
            )
            codes = words[: stored.num_bytes].view(made.dtype).view(stored.shape)
            return codes.clamp_(min=-127) if stored.dtype == "I8" else codes  # as writers of int8 round
        scale = self._deviation / _code_deviation(method)
        if stored.dtype in ("U8", "F8_E8M0"):  # an exponent
            exponent = 127 + round(math.log2(scale))
            return made.view(torch.uint8).fill_(exponent).view(made.dtype)
        if end == "SCB":
            scale *= 127
        return made.fill_(1 / scale if end == method.whole_scale and method.divides_scale else scale)


def _has_codes(method: WeightMethod, end: str, stored: StoredTensor) -> bool:
    """Whether a part of a matrix is codes, of weights or of zero points; otherwise it is scales."""
    is_float = stored.dtype in FLOAT_DTYPES
    return not is_float and end in ("qweight", "qzeros", "weight_packed", "weight", "weight_zero_point")


def _code_deviation(method: WeightMethod) -> float:
    """Standard deviation of a matrix whose codes are random and whose scales are one."""
    match method.kind:
        case "fp8":
            return _LARGEST_FP8 / math.sqrt(3)
        case "mxfp4" | "nvfp4":
            return FP4_LEVELS.std(correction=0).item()
        case "bnb_4bit":
            return torch.linspace(-1.0, 1.0, 16).std(correction=0).item()
        case "integers" | "bnb_int8":
            return 2**8 / math.sqrt(12)
        case "gptq" | "awq" | "packed":
            has_random_zeros = not method.is_symmetric
            return (1 << method.bits) / math.sqrt(12) * math.sqrt(2 if has_random_zeros else 1)
