"""Encoders of GGUF's blocks against the decoders of the gguf library."""

from __future__ import annotations

import pytest
import torch

from stoker.config.checkpoint.stored import BLOCKS
from stoker.convert.gguf_blocks import encode
from stoker.engine.runner.dequantise import dequantised


def values(matrix: torch.Tensor, dtype: str) -> torch.Tensor:
    blocks = encode(matrix, dtype)
    elements, size = BLOCKS[dtype]
    assert blocks.shape == (len(matrix), matrix.shape[1] // elements * size)
    return dequantised(torch.from_numpy(blocks).view(-1), dtype).view(matrix.shape)


def uniform(matrix: torch.Tensor, group: int, largest: int) -> torch.Tensor:
    """Codes from the least to the largest element of a group, with a scale and a minimum in float32."""
    groups = matrix.view(-1, group)
    low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
    scale = (high - low) / largest
    return (((groups - low) / scale).round() * scale + low).view(matrix.shape)


# part of a block, its last code, and the error over that of a uniform quantisation, whose scales and minima are not
# rounded. Q6_K has no minima.
@pytest.mark.parametrize(
    ("dtype", "group", "largest", "bound"), [("Q4_K", 32, 15, 0.96), ("Q5_K", 32, 31, 0.98), ("Q6_K", 16, 63, 1.13)]
)
def test_a_k_type_is_as_exact_as_uniform_codes(dtype: str, group: int, largest: int, bound: float) -> None:
    matrix = torch.randn(64, 512, generator=torch.Generator().manual_seed(1))
    error = (values(matrix, dtype) - matrix).norm() / (uniform(matrix, group, largest) - matrix).norm()
    assert float(error) < bound


@pytest.mark.parametrize("dtype", ["Q4_K", "Q5_K", "Q6_K"])
def test_a_k_type_holds_extremes(dtype: str) -> None:
    matrix = torch.randn(6, 256, generator=torch.Generator().manual_seed(2))
    matrix[0] = 0
    matrix[1] = 1e-9  # scales that are 0 in float16
    matrix[2] = 5
    matrix[3] = matrix[3].abs() + 3  # a minimum is never above 0
    matrix[4] = -matrix[4].abs() - 3
    matrix[5, :32] = 1000
    read = values(matrix, dtype)
    assert read.isfinite().all()
    assert not read[0].any()
    assert float(read[1].abs().max()) < 1e-6
    steps = {"Q4_K": 15, "Q5_K": 31, "Q6_K": 31}[dtype]
    for row in (2, 3, 4):
        assert float((read[row] - matrix[row]).abs().max()) < 1.5 * float(matrix[row].abs().max()) / steps
    assert float((read[5, :32] / 1000 - 1).abs().max()) < 0.02


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_0", "Q5_1"])
def test_other_types_are_those_of_the_library(dtype: str) -> None:
    matrix = torch.randn(3, 64, generator=torch.Generator().manual_seed(3))
    if dtype in BLOCKS:
        read = values(matrix, dtype)
    elif dtype == "BF16":
        read = torch.from_numpy(encode(matrix, dtype).view("<i2").copy()).view(torch.bfloat16).float()
        assert torch.equal(read, matrix.bfloat16().float())
    else:
        read = torch.from_numpy(encode(matrix, dtype)).float()
        assert torch.equal(read, matrix.half().float() if dtype == "F16" else matrix)
    bound = {"Q8_0": 0.01, "Q4_0": 0.1, "Q5_0": 0.06, "Q5_1": 0.05}.get(dtype, 0.004)
    assert float((read - matrix).norm() / matrix.norm()) < bound


def test_large_matrices_are_encoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = torch.randn(5, 512, generator=torch.Generator().manual_seed(4))
    whole = {dtype: encode(matrix, dtype) for dtype in ("Q4_K", "Q4_0", "Q6_K")}
    monkeypatch.setattr("stoker.convert.gguf_blocks._ELEMENTS", 768)
    for dtype, expected in whole.items():
        assert (encode(matrix, dtype) == expected).all(), dtype
