"""The ops on several residual streams, compared with their references."""

from __future__ import annotations

import pytest
import torch

from stoker.engine.kernels.gated_residual import (
    add_to_streams_reference,
    average_streams_reference,
    gate_streams_reference,
    norm_streams_reference,
)

pytest.importorskip("triton")
from stoker.engine.kernels.gpu.gated_residual import (
    add_to_streams_gpu,
    average_streams_gpu,
    gate_streams_gpu,
    norm_streams_gpu,
)

from .batches import ALL_DTYPES, LIMITS

SHAPES = pytest.mark.parametrize(("tokens", "count", "size"), [(1, 2, 16), (3, 3, 1100), (5, 4, 40), (0, 2, 8)])


def streams_of(tokens: int, count: int, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    lengths = torch.arange(1, count + 1, device=device).repeat_interleave(size)
    return (torch.randn(tokens, count * size, device=device) * lengths).to(dtype)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    limit = LIMITS[expected.dtype]
    torch.testing.assert_close(found, expected, atol=limit, rtol=limit)


@ALL_DTYPES
@SHAPES
def test_streams_are_normed(device, dtype, tokens, count, size):
    streams, weight = streams_of(tokens, count, size, dtype, device), torch.randn(count * size, device=device)
    expected = norm_streams_reference(streams, weight, count, 0.1)
    assert_close(norm_streams_gpu(streams, weight, count, 0.1), expected)


@ALL_DTYPES
@SHAPES
def test_streams_are_averaged(device, dtype, tokens, count, size):
    gates, streams = (streams_of(tokens, count, size, dtype, device) for _ in range(2))
    assert_close(average_streams_gpu(gates, streams, count), average_streams_reference(gates, streams, count))


@ALL_DTYPES
@SHAPES
def test_a_result_is_added_to_streams(device, dtype, tokens, count, size):
    streams = streams_of(tokens, count, size, dtype, device)
    added, weights = (torch.randn(tokens, width, device=device).to(dtype) for width in (size, count))
    expected = add_to_streams_reference(streams, added, weights, 0.25)
    assert_close(add_to_streams_gpu(streams, added, weights, 0.25), expected)


@ALL_DTYPES
@SHAPES
def test_values_are_gated(device, dtype, tokens, count, size):
    keys, queries = (streams_of(tokens, count, size, dtype, device) for _ in range(2))
    keys[:1, :size] = 0  # a product of 0 has a gate of one half
    keys[1:2, :size], queries[1:2, :size] = 1e-5, 1e-5  # a root below the least
    values = torch.randn(tokens, size, device=device).to(dtype)
    assert_close(gate_streams_gpu(keys, queries, values), gate_streams_reference(keys, queries, values))


def test_other_shapes_are_refused(device):
    wide = torch.zeros(2, 12, device=device)
    with pytest.raises(ValueError, match="streams"):
        norm_streams_gpu(wide, wide[0], 5, 0.1)
    with pytest.raises(ValueError, match="streams"):
        average_streams_gpu(wide[:, :9], wide, 3)
    with pytest.raises(ValueError, match="streams"):
        add_to_streams_gpu(wide, wide[:, :5], wide[:, :3], 1.0)
    with pytest.raises(ValueError, match="streams"):
        gate_streams_gpu(wide, wide[:, :9], wide[:, :4])
