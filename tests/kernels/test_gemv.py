"""Linear layers of one to four tokens, compared with products of matrices in double precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.slow_cases import slow

from stoker.engine.kernels.activation import activate_and_mul_reference

from .batches import ALL_DTYPES, LIMITS

pytest.importorskip("triton")
from stoker.engine.kernels.gpu.gemv import MAX_TOKENS, gemv


@ALL_DTYPES
@pytest.mark.parametrize(
    ("tokens", "width", "depth"), [(1, 48, 64), (2, 70, 1100), slow(2, 2100, 40), slow(2, 8200, 16)]
)
@pytest.mark.parametrize(("is_gated", "has_bias"), [(False, False), (True, True)])
def test_products_are_those_of_matrices(device, dtype, tokens, width, depth, is_gated, has_bias):
    def randn(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, device=device) / depth**0.25).to(dtype)

    x, weight, bias = randn(tokens, depth), randn(width, depth), randn(width) if has_bias else None
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    if is_gated:
        expected = activate_and_mul_reference(expected)
    apart = torch.full((tokens, depth + 3), torch.nan, dtype=dtype, device=device)
    apart[:, :depth] = x
    found = gemv(apart[:, :depth], weight, bias, is_gated=is_gated)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, atol=LIMITS[dtype], rtol=LIMITS[dtype])


def test_more_tokens_than_the_maximum_are_refused(device):
    with pytest.raises(ValueError, match="x is"):
        gemv(torch.zeros(MAX_TOKENS + 1, 16, device=device), torch.zeros(16, 16, device=device))
