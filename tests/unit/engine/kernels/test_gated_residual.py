"""Ops on several residual streams of a token."""

from __future__ import annotations

import pytest
import torch

from .levels import LEVEL_NAMES, assert_close, kernels_of

LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
SHAPES = pytest.mark.parametrize(("tokens", "count", "size"), [(1, 2, 1), (7, 4, 100), (3, 3, 1024), (0, 2, 16)])


def streams_of(tokens: int, count: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """The streams have several lengths, so that one norm over all of them would be wrong."""
    lengths = torch.arange(1, count + 1).repeat_interleave(size)
    return (torch.randn(tokens, count * size) * lengths).to(dtype)


@LEVELS
@DTYPES
@SHAPES
def test_each_stream_is_normed_by_itself(level, dtype, tokens, count, size):
    streams, weight = streams_of(tokens, count, size, dtype), torch.randn(count * size)
    found = kernels_of(level, dtype).norm_streams(streams, weight, count, 0.1)
    wide = streams.double().view(tokens, count, size)
    expected = wide / (wide.square().mean(2, keepdim=True) + 0.1).sqrt()
    assert_close(found, expected.view(tokens, count * size) * weight.double(), absolute=1e-6)


@LEVELS
@DTYPES
@SHAPES
def test_the_mean_of_gated_streams(level, dtype, tokens, count, size):
    gates, streams = (streams_of(tokens, count, size, dtype) for _ in range(2))
    found = kernels_of(level, dtype).average_streams(gates, streams, count)
    expected = (gates.double().sigmoid() * streams.double()).view(tokens, count, size).mean(1)
    assert_close(found, expected, absolute=2e-6)


@LEVELS
@DTYPES
@SHAPES
def test_each_stream_has_its_weight_of_what_is_added(level, dtype, tokens, count, size):
    streams, added = streams_of(tokens, count, size, dtype), torch.randn(tokens, size).to(dtype)
    weights = (4 * torch.randn(tokens, count)).to(dtype)
    found = kernels_of(level, dtype).add_to_streams(streams, added, weights, 0.25)
    factors = 2 * (weights.double() / 4).sigmoid()
    expected = streams.double().view(tokens, count, size) + factors[:, :, None] * added.double()[:, None]
    assert_close(found, expected.view(tokens, count * size), absolute=2e-6)


@LEVELS
@DTYPES
@SHAPES
def test_keys_and_streams_gate_the_value(level, dtype, tokens, count, size):
    keys, queries = (streams_of(tokens, count, size, dtype) for _ in range(2))
    keys[:1, :size] = 0  # a product of 0 has a gate of one half
    values = torch.randn(tokens, size).to(dtype)
    found = kernels_of(level, dtype).gate_streams(keys, queries, values)
    products = (keys.double() * queries.double()).view(tokens, count, size).sum(2) / size**0.5
    gates = (products.abs().clamp(min=1e-6).sqrt() * products.sign()).sigmoid()
    expected = gates[:, :, None] * values.double()[:, None]
    assert_close(found, expected.view(tokens, count * size), absolute=1e-5)


@LEVELS
def test_other_shapes_are_refused(level):
    kernels, wide = kernels_of(level, torch.float32), torch.zeros(2, 12)
    with pytest.raises(ValueError, match="streams"):
        kernels.norm_streams(wide, torch.zeros(12), 5, 0.1)
    with pytest.raises(ValueError, match="streams"):
        kernels.norm_streams(wide, torch.zeros(8), 3, 0.1)
    with pytest.raises(ValueError, match="streams"):
        kernels.average_streams(torch.zeros(2, 9), wide, 3)
    with pytest.raises(ValueError, match="streams"):
        kernels.add_to_streams(wide, torch.zeros(2, 5), torch.zeros(2, 3), 1.0)
    with pytest.raises(ValueError, match="streams"):
        kernels.gate_streams(wide, torch.zeros(2, 9), torch.zeros(2, 4))
