import pytest
import torch

from .levels import LEVEL_NAMES, assert_close, kernels_of

LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
SHAPES = pytest.mark.parametrize("shape", [(1, 1), (7, 100), (33, 1024), (0, 16)])


@LEVELS
@DTYPES
@SHAPES
def test_each_row_has_its_factor(level, dtype, shape):
    x, factors = torch.randn(shape, dtype=dtype), torch.randn(shape[0], 1)
    found = kernels_of(level, dtype).scale_rows(x, factors)
    assert_close(found, x.double() * factors.double())


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
def test_other_shapes_are_refused(level):
    kernels = kernels_of(level, torch.float32)
    with pytest.raises(ValueError, match="factors"):
        kernels.scale_rows(torch.zeros(2, 16), torch.zeros(2))
