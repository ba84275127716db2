"""Linear layers of any number of tokens: few tokens use one kernel with norm and gate fused in, many use torch.

In float16 the norm is a separate launch: the fused kernel multiplies before the norm has reduced the values.
"""

from __future__ import annotations

import torch

from ..linear import PackedLinear, linear_reference
from .activation import activate_and_mul_gpu
from .add_rms_norm import add_rms_norm_gpu
from .linear_few import MAX_TOKENS, linear_few


def linear_gpu(x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
    """As linear_reference."""
    return linear_few(x, packed.weight, packed.bias)[0] if _is_few(x, packed) else linear_reference(x, packed)


def norm_linear_gpu(
    x: torch.Tensor, residual: torch.Tensor | None, norm: torch.Tensor, eps: float, packed: PackedLinear
) -> tuple[torch.Tensor, torch.Tensor]:
    """As KernelSet.norm_linear."""
    if _takes_norm(x, packed):
        return linear_few(x, packed.weight, packed.bias, norm=norm, eps=eps, residual=residual)
    normed, total = add_rms_norm_gpu(x, residual, norm, eps)
    return linear_gpu(normed, packed), total


def norm_gate_up_gpu(
    x: torch.Tensor, residual: torch.Tensor | None, norm: torch.Tensor, eps: float, packed: PackedLinear
) -> tuple[torch.Tensor, torch.Tensor]:
    """As KernelSet.norm_gate_up."""
    if _takes_norm(x, packed):
        return linear_few(x, packed.weight, packed.bias, norm=norm, eps=eps, residual=residual, is_gated=True)
    normed, total = add_rms_norm_gpu(x, residual, norm, eps)
    if _is_few(normed, packed):
        return linear_few(normed, packed.weight, packed.bias, is_gated=True)[0], total
    return activate_and_mul_gpu(linear_reference(normed, packed)), total


def _is_few(x: torch.Tensor, packed: PackedLinear) -> bool:
    return packed.scales is None and len(x) <= MAX_TOKENS


def _takes_norm(x: torch.Tensor, packed: PackedLinear) -> bool:
    return _is_few(x, packed) and x.dtype != torch.float16
