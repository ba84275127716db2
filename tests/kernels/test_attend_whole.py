"""Attention of whole sequences, compared with its reference."""

from __future__ import annotations

import pytest
import torch

from stoker.engine.kernels.attend_whole import attend_whole_reference

pytest.importorskip("triton")
from stoker.engine.kernels.gpu.attend_whole import attend_whole_gpu

from .batches import ALL_DTYPES, LIMITS

LENGTHS = [0, 3, 1, 70, 0, 2, 5, 33, 150, 1]


def parts(device, dtype, num_heads: int, num_kv_heads: int, head_dim: int, lengths: list[int]) -> tuple:
    """q, k, v as parts of one projection, and where the sequences start."""
    projected = torch.randn(sum(lengths), (num_heads + 2 * num_kv_heads) * head_dim, device=device).to(dtype)
    sizes = [heads * head_dim for heads in (num_heads, num_kv_heads, num_kv_heads)]
    q, k, v = (each.unflatten(1, (-1, head_dim)) for each in projected.split(sizes, dim=1))
    return q, k, v, torch.tensor([0, *lengths], dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32)


def check(device, dtype, sizes, window, slopes, lengths=LENGTHS, span: int | None = None) -> None:
    q, k, v, starts = parts(device, dtype, *sizes, lengths)
    slopes = torch.linspace(0.01, 0.5, sizes[0], device=device) if slopes else None
    biases = None if span is None else torch.randn(sizes[0], 2 * span + 1, device=device)
    found = attend_whole_gpu(q, k, v, starts, 0.3, window, slopes, biases)
    expected = attend_whole_reference(q, k, v, starts, 0.3, window, slopes, biases)
    torch.testing.assert_close(found, expected, atol=LIMITS[dtype], rtol=LIMITS[dtype])


@ALL_DTYPES
@pytest.mark.parametrize("sizes", [(4, 4, 32), (6, 2, 24), (4, 1, 64)])
@pytest.mark.parametrize("window", [None, 0, 5, 64])
@pytest.mark.parametrize("slopes", [False, True])
def test_queries_attend_to_their_sequence(device, dtype, sizes, window, slopes):
    check(device, dtype, sizes, window, slopes)


@ALL_DTYPES
@pytest.mark.parametrize(("window", "slopes"), [(None, False), (64, True)])
@pytest.mark.parametrize("span", [1, 40])
def test_biases_of_distances_are_added(device, dtype, window, slopes, span):
    check(device, dtype, (6, 2, 24), window, slopes, span=span)


@pytest.mark.parametrize("span", [None, 40])
def test_wide_heads_are_computed_by_torch(device, span):
    check(device, torch.float32, (3, 1, 256), 5, True, span=span)


@pytest.mark.parametrize("lengths", [[1], [130], [0, 0], [7] * 40])
def test_any_number_of_sequences(device, lengths):
    check(device, torch.float32, (4, 2, 16), None, False, lengths)


def test_heads_that_are_not_together_are_refused(device):
    q, k, v, starts = parts(device, torch.float32, 4, 2, 16, [5])
    with pytest.raises(ValueError, match="one after the other"):
        attend_whole_gpu(q, k.transpose(0, 1).contiguous().transpose(0, 1), v, starts, 0.3)
