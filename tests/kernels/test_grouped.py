"""Linear layers and embeddings over a checkpoint's own codes, compared with the numbers that the codes represent."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.unit.engine.kernels.grouped_weights import KINDS, codes, grouped_of

from stoker.engine.kernels import Grouped, GroupScales, KernelSet
from stoker.engine.kernels.grouped import kernels_take, layout_of
from stoker.engine.kernels.packed_codes import packed_codes

from .batches import DTYPES, LIMITS

pytest.importorskip("triton")
from stoker.engine.kernels.gpu.grouped import FEW_TOKENS, grouped_linear_gpu, grouped_rows_gpu
from stoker.engine.kernels.gpu.kernels import gpu_kernels

IQ4 = torch.tensor((-127.0, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113))


def weight_of(kind: str, outputs: int, inputs: int = 512) -> Grouped:
    match kind:
        case "table":
            return replace(grouped_of("q4_0", outputs, inputs), levels=IQ4)
        case "one group":
            weight = grouped_of("q8_0", outputs, 2560)  # whose halves are longer than a tile
            return replace(weight, scales=GroupScales(torch.rand(outputs, 1)))
        case "groups of 48":
            scales = GroupScales(torch.rand(outputs, 10).half())
            return Grouped(codes(64, outputs, 480), torch.arange(64) - 16.0, scales)
        case "fp8":
            weight = grouped_of(kind, outputs, inputs)
            return replace(weight, codes=weight.codes - (weight.codes % 128 == 127).to(torch.uint8))  # no NaN
        case _:
            return grouped_of(kind, outputs, inputs)


ALL_KINDS = (*KINDS, "table", "one group", "groups of 48")


@DTYPES
@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("tokens", [2, 3, FEW_TOKENS + 1])
@pytest.mark.quick_cases(1, kind=["gptq"])
def test_products_are_those_of_the_numbers(device, dtype, kind, tokens):
    weight = weight_of(kind, 70)
    numbers, inputs = weight.numbers(), weight.shape[1]
    packed, bias = packed_codes([weight], device), torch.randn(70).to(dtype)
    apart = torch.full((tokens, inputs + 3), torch.nan).to(dtype)
    x = apart[:, :inputs] = torch.randn(tokens, inputs).to(dtype)
    found = grouped_linear_gpu(apart.to(device)[:, :inputs], packed, bias.to(device)).cpu()
    expected = x.double() @ numbers.double().T + bias.double()
    size = x.double().abs() @ numbers.double().abs().T
    assert found.dtype == dtype
    assert ((found.double() - expected).abs() <= LIMITS[dtype] * (size + expected.abs())).all()


@DTYPES
@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.quick_cases(9)
def test_rows_are_those_of_the_numbers(device, dtype, kind):
    weight = weight_of(kind, 9)
    ids = torch.tensor([8, 0, 3, 3, -1, 9])
    found = grouped_rows_gpu(ids.to(device), packed_codes([weight], device), dtype).cpu()
    assert torch.equal(found[:4], weight.numbers()[ids[:4]].to(dtype))
    assert not found[4:].any()


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_plan_counts_the_bytes_that_are_held(kind):
    weight = weight_of(kind, 5)
    assert kernels_take(weight)
    assert packed_codes([weight], torch.device("cpu")).num_bytes == layout_of(weight).row_bytes(*weight.shape)


@pytest.mark.parametrize("tokens", [0, 3, 20])
def test_layers_of_several_parts_and_forms(device, tokens):
    """Alike parts are one product; pieces of other forms write the columns between."""
    kernels, x = gpu_kernels(device, max_rows=1), torch.randn(tokens, 256)
    alike = [grouped_of("q4_k", outputs, 256) for outputs in (20, 7)]
    other, biases = grouped_of("q6_k", 24, 256), [torch.randn(27), torch.randn(24)]
    pieces = [
        kernels.pack_grouped(alike, biases[0], torch.float32),
        kernels.pack_grouped([other], biases[1], torch.float32),
    ]
    joined = kernels.join_linear(pieces)
    numbers = torch.cat([part.numbers() for part in (*alike, other)])
    expected = x @ numbers.T + torch.cat(biases)
    torch.testing.assert_close(kernels.linear(x.to(device), joined).cpu(), expected, rtol=1e-4, atol=1e-4)
    assert joined.num_bytes == sum(layout_of(part).row_bytes(*part.shape) for part in (*alike, other)) + 51 * 4


@pytest.mark.parametrize("rows", [2, 20])
@pytest.mark.slow
def test_norm_and_gate_are_separate_kernels(device, rows):
    kernels, weight = gpu_kernels(device, max_rows=1), grouped_of("gptq", 48, 128)
    x, norm = torch.randn(rows, 128, device=device), torch.rand(128, device=device)
    packed = kernels.pack_grouped([weight], None, torch.float32)
    dense = KernelSet().pack_linear(weight.numbers().to(device), None)
    for op in ("norm_linear", "norm_gate_up"):
        expected = getattr(KernelSet(), op)(x, None, norm, 0.1, dense)
        for found, wanted in zip(getattr(kernels, op)(x, None, norm, 0.1, packed), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_groups_that_kernels_do_not_take(device):
    weight = Grouped(codes(64, 16, 480), torch.arange(64.0), GroupScales(torch.rand(16, 120)))
    assert gpu_kernels(device, max_rows=1).pack_grouped([weight], None, torch.float32) is None


@pytest.mark.parametrize(
    ("kind", "levels"),
    [
        ("gptq", "steps"),
        ("gptq 8", "signed"),
        ("q6_k", "steps"),
        ("mxfp4", "e2m1"),
        ("fp8", "e4m3"),
        ("table", "table"),
    ],
)
def test_levels_are_computed_where_they_can_be(kind, levels):
    assert packed_codes([weight_of(kind, 3)], torch.device("cpu")).kind == levels


def test_all_codes_have_their_levels(device):
    """Each code in each half of a group, of every kind of levels."""
    for kind in ("gptq", "gptq 8", "q8_0", "q6_k", "mxfp4", "fp8", "table"):
        weight = weight_of(kind, 2)
        count = len(weight.levels)
        every = torch.arange(512).view(1, 512) % count
        if kind == "fp8":
            every = every.where(every % 128 < 127, 0)  # NaN, which is refused
        weight = replace(weight, codes=torch.cat((every, every.flip(1))).to(torch.uint8))
        found = grouped_rows_gpu(torch.tensor([0, 1]).to(device), packed_codes([weight], device), torch.float32)
        assert torch.equal(found.cpu(), weight.numbers()), kind
