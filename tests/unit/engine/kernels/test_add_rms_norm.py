import pytest
import torch

from .levels import LEVEL_NAMES, assert_close, kernels_of


@pytest.mark.parametrize("level", LEVEL_NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "width"), [(1, 1), (2, 7), (7, 100), (33, 1024)])
def test_the_sum_is_normed_and_returned(level, dtype, tokens, width):
    x, residual = torch.randn(tokens, width, dtype=dtype), torch.randn(tokens, width, dtype=dtype)
    weight = torch.randn(width)
    normed, total = kernels_of(level, dtype).add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, x + residual)
    wide = (x + residual).double()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    assert_close(normed, wide * scale * weight.double())


@pytest.mark.parametrize("level", LEVEL_NAMES)
def test_without_a_residual_the_input_is_returned(level):
    x, weight = torch.randn(3, 40), torch.randn(40)
    normed, total = kernels_of(level, torch.float32).add_rms_norm(x, None, weight, 1e-5)
    assert torch.equal(total, x)
    wide = x.double()
    assert_close(normed, wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5) * weight.double())


@pytest.mark.parametrize("level", LEVEL_NAMES)
def test_zero_tokens_are_allowed(level):
    normed, total = kernels_of(level, torch.float32).add_rms_norm(torch.empty(0, 16), None, torch.ones(16), 1e-6)
    assert normed.shape == total.shape == (0, 16)


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
def test_tensors_of_another_type_are_refused(level):
    """A kernel gets addresses: elements of another type would be misread, not converted."""
    with pytest.raises(ValueError, match=r"expected contiguous elements of torch\.float32"):
        kernels_of(level, torch.float32).add_rms_norm(torch.ones(2, 16).bfloat16(), None, torch.ones(16), 1e-6)
