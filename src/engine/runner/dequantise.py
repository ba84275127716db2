"""Blocks of GGUF's quantised types as numbers in float32: the gguf library's reference arithmetic."""

from __future__ import annotations

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize


def dequantised(blocks: torch.Tensor, dtype: str) -> torch.Tensor:
    """blocks: [bytes], uint8, of whole blocks. dtype: one of BLOCKS. Returns [elements], float32."""
    with np.errstate(all="ignore"):  # `Checkpoint` refuses weights that are NaN or infinite
        numbers = dequantize(blocks.numpy(), GGMLQuantizationType[dtype])
    return torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.float32))
