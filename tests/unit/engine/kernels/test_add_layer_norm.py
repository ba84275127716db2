import pytest
import torch

from .levels import LEVEL_NAMES, assert_close, kernels_of

LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)


def layer_norm(wide, weight, bias, eps):
    centred = wide - wide.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + eps) * weight.double()
    return normed if bias is None else normed + bias.double()


@LEVELS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "width"), [(1, 1), (2, 7), (7, 100), (33, 1024), (0, 16)])
@pytest.mark.parametrize("has_more", [False, True])
def test_the_sum_is_normed_and_returned(level, dtype, tokens, width, has_more):
    x, residual = torch.randn(tokens, width, dtype=dtype), torch.randn(tokens, width, dtype=dtype) + 3
    weight, bias = torch.randn(width), torch.randn(width) if has_more else None
    normed, total = kernels_of(level, dtype).add_layer_norm(x, residual if has_more else None, weight, bias, 1e-5)
    expected = x + residual if has_more else x
    assert torch.equal(total, expected)
    assert_close(normed, layer_norm(expected.double(), weight, bias, 1e-5), absolute=1e-5)


@LEVELS
def test_a_large_mean_does_not_hide_the_differences(level):
    """The mean of the squares less the square of the mean would be 0 in float32."""
    x = torch.tensor([[10000.0, 10001.0, 10002.0] * 7])
    normed, _ = kernels_of(level, torch.float32).add_layer_norm(x, None, torch.ones(21), None, 0.0)
    assert_close(normed, layer_norm(x.double(), torch.ones(21), None, 0.0), absolute=1e-5)


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
def test_other_shapes_are_refused(level):
    kernels, x = kernels_of(level, torch.float32), torch.zeros(2, 16)
    with pytest.raises(ValueError, match="residual"):
        kernels.add_layer_norm(x, torch.zeros(1, 16), torch.ones(16), None, 1e-6)
    with pytest.raises(ValueError, match="bias"):
        kernels.add_layer_norm(x, None, torch.ones(16), torch.ones(15), 1e-6)
