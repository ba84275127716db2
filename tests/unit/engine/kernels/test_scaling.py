import pytest
import torch

from .levels import LEVEL_NAMES, assert_close, kernels_of

LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
SHAPES = pytest.mark.parametrize("shape", [(1, 1), (7, 100), (33, 1024), (0, 16)])


@LEVELS
@DTYPES
@SHAPES
def test_a_scaled_sum_is_rounded_once(level, dtype, shape):
    x, residual = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)
    kernels = kernels_of(level, dtype)
    assert torch.equal(kernels.add_scaled(x, residual), x + residual)
    assert_close(kernels.add_scaled(x, residual, 0.22), residual.double() + 0.22 * x.double(), absolute=1e-6)


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
def test_a_sum_of_other_shapes_is_refused(level):
    with pytest.raises(ValueError, match="residual"):
        kernels_of(level, torch.float32).add_scaled(torch.zeros(2, 16), torch.zeros(16))


@LEVELS
@DTYPES
@SHAPES
@pytest.mark.parametrize("softcap", [None, 0.1, 30.0])
def test_values_are_scaled_and_capped(level, dtype, shape, softcap):
    x = torch.randn(shape, dtype=dtype) * 3
    wide = x.double() * 0.7
    expected = wide if softcap is None else softcap * torch.tanh(wide / softcap)
    assert_close(kernels_of(level, dtype).scale_and_cap(x, 0.7, softcap), expected)


@LEVELS
def test_a_cap_keeps_the_digits_of_small_values_and_holds_large_ones(level):
    x = torch.tensor([[1e-6, -1e-3, 0.0, 1e4, -1e30, torch.inf]])
    found = kernels_of(level, torch.float32).scale_and_cap(x.clone(), 1.0, 2.0)
    torch.testing.assert_close(found.double(), 2 * torch.tanh(x.double() / 2), rtol=1e-6, atol=0.0)
