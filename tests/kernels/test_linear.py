"""Linear layers of few and of many tokens with their norms and gates, compared with the separate ops."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stoker.engine.kernels import KernelSet

from .batches import DTYPES, LIMITS

pytest.importorskip("triton")
from stoker.engine.kernels.gpu.gemv import MAX_TOKENS
from stoker.engine.kernels.gpu.kernels import gpu_kernels

TORCH = KernelSet()


@DTYPES
@pytest.mark.parametrize("op", ["norm_linear", "norm_gate_up"])
@pytest.mark.parametrize("tokens", [0, 1, MAX_TOKENS, MAX_TOKENS + 1])
@pytest.mark.parametrize("has_residual", [False, True])
def test_a_fused_layer_equals_the_separate_ops(device, dtype, op, tokens, has_residual):
    kernels, depth, width = gpu_kernels(device, max_rows=1), 40, 24

    def randn(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, device=device) / 2).to(dtype)

    x, residual, norm = randn(tokens, depth), randn(tokens, depth) if has_residual else None, randn(depth)
    packed = kernels.pack_linear(randn(width, depth), randn(width))
    expected, total = getattr(TORCH, op)(x, residual, norm, 0.1, packed)
    for made in (kernels, replace(kernels, fused_norm_gate_up=None)):
        found = getattr(made, op)(x, residual, norm, 0.1, packed)
        torch.testing.assert_close(found[0], expected, atol=3 * LIMITS[dtype], rtol=3 * LIMITS[dtype])
        assert torch.equal(found[1], total)


def test_sums_beyond_the_range_of_float16_before_the_norm_are_right(device):
    """They would be infinite if they were multiplied before the norm reduces them."""
    kernels = gpu_kernels(device, max_rows=1)
    x = torch.full((2, 16), 6e4, device=device, dtype=torch.float16)
    norm = torch.full((16,), 2.0, device=device, dtype=torch.float16)
    packed = kernels.pack_linear(torch.ones(32, 16, device=device, dtype=torch.float16), None)
    for op, expected in (("norm_linear", 32.0), ("norm_gate_up", 1024.0)):
        found, _ = getattr(kernels, op)(x, None, norm, 1e-6, packed)
        torch.testing.assert_close(found, torch.full_like(found, expected), rtol=1e-3, atol=0)
