"""Linear layers of any number of tokens: a few use gemv.py, others torch's library. The own codes of a checkpoint have
separate kernels (grouped.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..grouped import Grouped, kernels_take
from ..linear import PackedLinear, embed_reference, linear_reference
from ..packed_codes import packed_codes
from .activation import activate_and_mul_gpu
from .add_rms_norm import add_rms_norm_gpu
from .embed import embed_gpu
from .gemv import MAX_TOKENS, gemv
from .grouped import grouped_linear_gpu, grouped_rows_gpu


class PackGroupedGpu:
    """Packs the own codes of a checkpoint for a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(self, parts: Sequence[Grouped], bias: torch.Tensor | None, dtype: torch.dtype) -> PackedLinear | None:
        if not kernels_take(parts[0]):
            return None
        codes = packed_codes(parts, self._device)
        bias = None if bias is None else bias.to(self._device, dtype).contiguous()
        shape = sum(part.shape[0] for part in parts), parts[0].shape[1]
        return PackedLinear(codes.codes, bias, *shape, is_packed=True, dtype=dtype, codes=codes)


def linear_gpu(x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    """Computes linear_reference."""
    if packed.pieces:
        return _linear_of_pieces(x, packed)
    if packed.codes is not None:
        return grouped_linear_gpu(x, packed.codes, packed.bias)
    return gemv(x, packed.weight, packed.bias) if _is_few(x, packed) else linear_reference(x, packed)


def norm_gate_up_gpu(
    x: torch.Tensor, residual: torch.Tensor | None, norm: torch.Tensor, eps: float, packed: PackedLinear
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes KernelSet.norm_gate_up."""
    normed, total = add_rms_norm_gpu(x, residual, norm, eps)
    if _is_few(normed, packed):
        return gemv(normed, packed.weight, packed.bias, is_gated=True), total
    return activate_and_mul_gpu(linear_gpu(normed, packed)), total


def embed_packed(token_ids: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    """Computes embed_reference."""
    if packed.codes is not None:
        return grouped_rows_gpu(token_ids, packed.codes, packed.dtype)
    return embed_reference(token_ids, packed) if packed.scales is not None else embed_gpu(token_ids, packed.weight)


def _linear_of_pieces(x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    """Each piece writes its own columns of the result."""
    out = torch.empty(len(x), packed.out_features, dtype=x.dtype, device=x.device)
    columns = out.split([piece.out_features for piece in packed.pieces], dim=1)
    for piece, into in zip(packed.pieces, columns, strict=True):
        assert piece.codes is not None, "only grouped layers are joined"
        grouped_linear_gpu(x, piece.codes, piece.bias, into)
    return out


def _is_few(x: torch.Tensor, packed: PackedLinear) -> bool:
    return packed.scales is None and packed.codes is None and len(x) <= MAX_TOKENS
