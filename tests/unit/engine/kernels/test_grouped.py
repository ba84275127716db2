"""Grouped weights: the reference against gguf's own arithmetic, and rows, parts and orders of inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize, quantize

from stoker.engine.kernels import Grouped, GroupScales, KernelSet
from stoker.engine.kernels.grouped import are_alike, layout_of, stacked
from stoker.engine.kernels.linear import PackedLinear

from .grouped_weights import KINDS, codes, grouped_of
from .levels import BEST, LEVEL_NAMES, kernels_of

MOST_EXACT_ROWS = {"portable": 2, "amx": 4, "emulated_amx": 4, "avx2": 8}  # that multiply codes; max_direct_rows
LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)


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


def pack_grouped_reference(parts: Sequence[Grouped], bias: torch.Tensor | None, dtype: torch.dtype) -> PackedLinear:
    """parts: alike; their outputs follow one another. bias: [out_features] or None. dtype: of x and the outputs."""
    weight = stacked(parts)
    out_features, in_features = weight.shape
    return PackedLinear(weight.unpacked, bias, out_features, in_features, is_packed=False, dtype=dtype, grouped=weight)


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
    packed = pack_grouped_reference([grouped], bias, torch.float32)
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


def packer(level: str, kernels: KernelSet):
    return pack_grouped_reference if level == "torch" else kernels.pack_grouped


@LEVELS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.quick_cases(6)
def test_kernels_multiply_the_numbers_of_the_checkpoint(level: str, kind: str, dtype: torch.dtype):
    """Of a model in bfloat16, few rows multiply codes, and many rows the numbers, each rounded once."""
    kernels = kernels_of(level, dtype, has_quantised=True, threads=2)
    weight = grouped_of(kind, 88, 512)
    numbers = weight.numbers()
    packed = packer(level, kernels)([weight], bias := torch.randn(88).to(dtype), dtype)
    assert packed.is_packed == (level != "torch")
    if packed.is_packed:
        assert packed.num_bytes == layout_of(weight).num_bytes(88, 512) + bias.nbytes
    for rows in (1, 2, 3, 7, 70):
        x = torch.randn(rows, 512).to(dtype)
        exact = x.double() @ numbers.double().T + bias.double()
        size = x.double().abs() @ numbers.double().abs().T
        found = kernels.linear(x, packed)
        assert found.dtype == dtype
        is_exact = dtype == torch.float32 or not packed.is_packed or rows <= MOST_EXACT_ROWS.get(level, 24)
        rounded = 2e-6 if is_exact else 2**-8
        error = (found.double() - exact).abs() - exact.abs() * (0 if dtype == torch.float32 else 2**-8)
        assert (error <= size * rounded).all()
    ids = torch.tensor([87, 0, 15, 16])
    assert torch.equal(kernels.embed(ids, packed), numbers[ids].to(dtype))


@LEVELS
def test_layers_are_joined(level: str):
    kernels = kernels_of(level, torch.bfloat16, has_quantised=True)
    parts = [grouped_of("q4_k", 40, 256), grouped_of("q6_k", 16, 256), grouped_of("q8_0", 24, 256)]
    x = torch.randn(60, 256).bfloat16()
    biases = [torch.randn(part.shape[0]).bfloat16() for part in parts]
    pack = packer(level, kernels)
    packed = [pack([part], bias, torch.bfloat16) for part, bias in zip(parts, biases, strict=True)]
    for rows in (1, 5, 60):
        apart = torch.cat([kernels.linear(x[:rows].contiguous(), each) for each in packed], dim=1)
        joined = kernels.join_linear(
            [pack([part], bias, torch.bfloat16) for part, bias in zip(parts, biases, strict=True)]
        )
        assert (joined.out_features, joined.num_bytes) == (80, sum(each.num_bytes for each in packed))
        assert torch.equal(kernels.linear(x[:rows].contiguous(), joined), apart)


@pytest.mark.parametrize("group", [4, 20, 48])
def test_groups_that_kernels_do_not_take(group: int):
    kernels = kernels_of(BEST, torch.float32, has_quantised=True)
    if kernels.pack_grouped is None:
        pytest.skip("no C++ kernels here")
    inputs = 480
    weight = Grouped(codes(64, 16, inputs), torch.arange(64.0), GroupScales(torch.rand(16, inputs // group)))
    packed = kernels.pack_grouped([weight], None, torch.float32)
    assert (packed is not None) == (group == 48)
    assert (layout_of(weight).problem(inputs) == "") == (group == 48)


@LEVELS
@pytest.mark.parametrize("first", [32, 20], ids=["whole panels", "part of a panel"])
def test_parts_of_a_layer_follow_one_another(level: str, first: int):
    kernels = kernels_of(level, torch.float32, has_quantised=True)
    parts = [grouped_of("q4_k", outputs, 256) for outputs in (first, 16, 7)]
    packed = packer(level, kernels)(parts, None, torch.float32)
    numbers = torch.cat([part.numbers() for part in parts])
    assert torch.equal(kernels.embed(torch.arange(first + 23), packed), numbers)
    x = torch.randn(2, 256)
    torch.testing.assert_close(kernels.linear(x, packed), x @ numbers.T, rtol=1e-4, atol=1e-3)
