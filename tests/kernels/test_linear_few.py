"""Linear layers for few tokens, compared with the separate ops."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.slow_cases import slow

from stoker.engine.kernels.activation import activate_and_mul_reference
from stoker.engine.kernels.add_rms_norm import add_rms_norm_reference

from .batches import DTYPES, LIMITS

pytest.importorskip("triton")
from stoker.engine.kernels.gpu import linear_few as gpu

EACH = [(False, True, False, True), (True, False, True, False), (True, True, True, True), (False, False, False, False)]


@DTYPES
@pytest.mark.parametrize(
    ("tokens", "width", "depth"),
    [(1, 48, 64), (5, 70, 600), slow(17, 24, 40), slow(64, 2100, 40), slow(2, 8200, 16)],
)
@pytest.mark.parametrize(("has_norm", "has_residual", "is_gated", "has_bias"), EACH)
def test_the_fused_kernel_equals_the_separate_ops(
    device, dtype, tokens, width, depth, has_norm, has_residual, is_gated, has_bias
):
    if has_norm and dtype == torch.float16:
        pytest.skip("refused")

    def randn(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, device=device) / depth**0.25).to(dtype)

    x, residual, weight = randn(tokens, depth), randn(tokens, depth), randn(width, depth)
    bias, norm = randn(width) if has_bias else None, randn(depth) if has_norm else None
    residual = residual if has_residual else None
    total = x if residual is None else x + residual
    normed = total.double()
    if norm is not None:
        normed = add_rms_norm_reference(total.double(), None, norm.double(), 0.1)[0]
    expected = F.linear(normed, weight.double(), None if bias is None else bias.double())
    if is_gated:
        expected = activate_and_mul_reference(expected)
    apart = torch.full((tokens, depth + 3), torch.nan, dtype=dtype, device=device)
    apart[:, :depth] = x
    found = gpu.linear_few(apart[:, :depth], weight, bias, norm=norm, eps=0.1, residual=residual, is_gated=is_gated)
    limit = 3 * LIMITS[dtype]
    torch.testing.assert_close(found[0].double(), expected, atol=limit, rtol=limit)
    assert torch.equal(found[1], total)


def test_a_norm_in_float16_is_refused(device):
    ones = torch.ones(16, 16, device=device, dtype=torch.float16)
    with pytest.raises(ValueError, match="float16"):
        gpu.linear_few(ones, ones, norm=ones[0])


def test_more_tokens_than_the_maximum_are_refused(device):
    with pytest.raises(ValueError, match="x is"):
        gpu.linear_few(torch.zeros(gpu.MAX_TOKENS + 1, 16, device=device), torch.zeros(16, 16, device=device))
