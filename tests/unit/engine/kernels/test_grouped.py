"""Grouped weights: the reference against gguf's own arithmetic, and rows, parts and orders of inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize, quantize

from stoker.engine.kernels import Grouped, GroupScales, KernelSet
from stoker.engine.kernels.grouped import are_alike, stacked


def of_q8_0(numbers: torch.Tensor) -> tuple[Grouped, torch.Tensor]:
    """The matrix as gguf's Q8_0, and the numbers of gguf."""
    blocks = quantize(numbers.numpy(), GGMLQuantizationType.Q8_0)
    fields = torch.from_numpy(blocks).view(numbers.shape[0], -1, 34)
    scales = fields[..., :2].contiguous().view(torch.float16)[..., 0]
    codes = fields[..., 2:].flatten(1).view(torch.int8)
    signed = torch.where(codes < 0, 128 - codes.int(), codes.int()).to(torch.uint8)
    sizes = torch.arange(128).float()
    expected = dequantize(blocks, GGMLQuantizationType.Q8_0)
    return Grouped(signed, torch.cat((sizes, -sizes)), GroupScales(scales)), torch.from_numpy(np.array(expected))


@pytest.fixture
def weight() -> tuple[Grouped, torch.Tensor]:
    return of_q8_0(torch.randn(48, 96))


def test_its_numbers_are_those_of_the_file(weight: tuple[Grouped, torch.Tensor]):
    grouped, expected = weight
    assert torch.equal(grouped.numbers(), expected)
    assert (grouped.shape, grouped.group, grouped.bits) == ((48, 96), 32, 8)
    assert grouped.num_bytes == 48 * 96 + 48 * 3 * 2
    chosen = torch.tensor([5, 0, 47])
    assert torch.equal(grouped.rows(chosen).numbers(), expected[chosen])


def test_a_layer_multiplies_and_embeds(weight: tuple[Grouped, torch.Tensor]):
    grouped, expected = weight
    x, bias = torch.randn(3, 96), torch.randn(48)
    kernels = KernelSet()
    packed = kernels.pack_grouped(grouped, bias, torch.float32)
    torch.testing.assert_close(kernels.linear(x, packed), x @ expected.T + bias, rtol=1e-5, atol=1e-5)
    assert torch.equal(kernels.embed(torch.tensor([1, 40]), packed), expected[[1, 40]])
    assert packed.num_bytes == grouped.num_bytes + bias.nbytes


def test_inputs_in_another_order(weight: tuple[Grouped, torch.Tensor]):
    grouped, expected = weight
    order = torch.randperm(96)
    shuffled = replace(grouped, order=order)
    assert torch.equal(shuffled.numbers()[:, order], expected)


def test_zeros_and_minima_are_subtracted(weight: tuple[Grouped, torch.Tensor]):
    grouped, _ = weight
    zeros = torch.randint(-8, 8, (48, 3)).float()
    outer = torch.rand(48, 1).half()
    minima = GroupScales(torch.randint(0, 64, (48, 3), dtype=torch.uint8), outer)
    levels = grouped.levels[grouped.codes.int()].view(48, 3, 32)
    scales = grouped.scales.values.float()[..., None]
    with_zeros = replace(grouped, zeros=zeros).numbers().view(48, 3, 32)
    assert torch.equal(with_zeros, (levels - zeros[..., None]) * scales)
    with_minima = replace(grouped, minima=minima).numbers().view(48, 3, 32)
    assert torch.equal(with_minima, levels * scales - (minima.values.float() * outer.float())[..., None])


def test_parts_are_stacked_only_if_they_are_alike(weight: tuple[Grouped, torch.Tensor]):
    grouped, expected = weight
    parts = [grouped.rows(slice(0, 16)), grouped.rows(slice(16, 48))]
    assert are_alike(parts)
    assert torch.equal(stacked(parts).numbers(), expected)
    assert not are_alike([grouped, replace(grouped, zeros=torch.zeros(48, 3))])
    assert not are_alike([grouped, replace(grouped, scales=GroupScales(grouped.scales.values.float()))])
    assert not are_alike([grouped, replace(grouped, order=torch.randperm(96))])
