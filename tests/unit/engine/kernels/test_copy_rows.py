import pytest
import torch

from .levels import LEVEL_NAMES, kernels_of


@pytest.mark.parametrize("level", LEVEL_NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("count", "rows", "width"), [(0, 1, 3), (1, 1, 1), (7, 5, 100), (100, 33, 640)])
def test_rows_are_copied_unchanged(level, dtype, count, rows, width):
    table, chosen = torch.randn(rows, width).to(dtype), torch.arange(count) * 3 % rows
    assert torch.equal(kernels_of(level, dtype, threads=2).copy_rows(table, chosen), table[chosen])


@pytest.mark.parametrize("level", LEVEL_NAMES)
@pytest.mark.parametrize("row", [-1, 5])
def test_a_row_that_does_not_exist_is_an_error(level, row):
    with pytest.raises(IndexError):
        kernels_of(level, torch.float32).copy_rows(torch.zeros(5, 3), torch.tensor([0, row]))
