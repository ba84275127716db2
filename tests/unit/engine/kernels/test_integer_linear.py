"""Quantised weights times activations rounded to int8 (`model.activation_quantization`)."""

from dataclasses import replace

import pytest
import torch

from stoker.engine.kernels import Integers
from stoker.engine.kernels.linear import linear_reference
from stoker.engine.kernels.quantised import dequantise_reference, rounded_rows_reference

from .levels import LEVEL_NAMES, assert_close, kernels_of

LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)
OURS = pytest.mark.parametrize("level", LEVEL_NAMES[1:])
SCHEMES = pytest.mark.parametrize("scheme", ["int8", "int4"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def kernels_for(level, dtype, threads=1, **options):
    return kernels_of(level, dtype, threads=threads, rounds_rows=True, has_quantised=True, **options)


def exact_product(x, packed, kernels):
    """The product of the rounded rows and the values of the codes, in float64."""
    if packed.weight.dtype == torch.int8:
        weight = kernels.embed(torch.arange(packed.out_features), replace(packed, dtype=torch.float32))
    else:
        weight = dequantise_reference(packed.weight, packed.scales, packed.in_features)[: packed.out_features]
    return rounded_rows_reference(x).double() @ weight.double().T


@LEVELS
@SCHEMES
@DTYPES
@pytest.mark.parametrize(("width", "depth"), [(7, 64), (100, 192), (33, 256), (64, 128)])
def test_the_product_is_that_of_the_rounded_rows(level, scheme, dtype, width, depth):
    """The error is that of a few roundings of the result: sums of integers are exact."""
    kernels = kernels_for(level, dtype)
    weight, bias = torch.randn(width, depth).to(dtype), torch.randn(width).to(dtype)
    packed, without = (kernels.quantise_linear(weight, each, scheme) for each in (bias, None))
    assert packed.is_packed == (level != "torch")
    for rows in (1, 2, 5, 7, 13, 31, 33, 49, 64, 100):
        x = torch.randn(rows, depth).to(dtype) * torch.logspace(-3, 3, rows)[:, None].to(dtype)
        exact = exact_product(x, packed, kernels)
        spread = float(exact.abs().max()) * 2e-6
        assert_close(kernels.linear(x, without), exact, spread)
        assert_close(kernels.linear(x, packed), exact + bias.double(), spread)


@OURS
@DTYPES
@pytest.mark.parametrize(("width", "depth"), [(7, 64), (100, 192), (64, 128)])
def test_codes_of_a_checkpoint_are_multiplied_as_they_are(level, dtype, width, depth):
    """All 256 of them: -128 too, which kernels that quantise do not write."""
    kernels = kernels_of(level, dtype, has_quantised=True)
    codes, scales = torch.randint(-128, 128, (width, depth), dtype=torch.int8), torch.rand(width) / 100
    codes[0, :2] = torch.tensor([-128, 127])
    bias, numbers = torch.randn(width).to(dtype), codes.double() * scales.double()[:, None]
    packed = kernels.pack_integers(Integers(codes, scales), bias, dtype)
    assert packed.num_bytes == -(-width // 16) * 16 * (depth + 4) + bias.nbytes
    for rows in (1, 5, 33, 64):
        x = torch.randn(rows, depth).to(dtype)
        exact = rounded_rows_reference(x).double() @ numbers.T + bias.double()
        assert_close(kernels.linear(x, packed), exact, float(exact.abs().max()) * 2e-6)


@OURS
def test_codes_of_depths_that_are_no_multiple_of_64_are_not_taken(level):
    kernels = kernels_of(level, torch.float32, has_quantised=True)
    assert (
        kernels.pack_integers(Integers(torch.zeros(16, 96, dtype=torch.int8), torch.ones(16)), None, torch.float32)
        is None
    )


@OURS
@SCHEMES
def test_extreme_codes_do_not_saturate(level, scheme):
    """The largest products of every sign: instructions that add pairs of products in 16 bits would saturate."""
    kernels = kernels_for(level, torch.float32)
    for sign in (1.0, -1.0):
        weight, x = torch.full((16, 4096), -1.0), torch.full((40, 4096), sign)
        packed = kernels.quantise_linear(weight, None, scheme)
        assert_close(kernels.linear(x, packed), exact_product(x, packed, kernels))


@OURS
@SCHEMES
@pytest.mark.parametrize("threads", [1, 3])
def test_the_bits_of_a_row_do_not_depend_on_the_other_rows(level, scheme, threads):
    """Not even without `model.batch_invariant`: vectors and tiles give the same bits."""
    kernels = kernels_for(level, torch.float32, threads)
    x, weight, bias = torch.randn(300, 2048), torch.randn(75, 2048), torch.randn(75)
    packed = kernels.quantise_linear(weight, bias, scheme)
    whole = kernels.linear(x, packed)
    for rows in (1, 2, 3, 5, 9, 13, 32, 33, 65):
        for first in {0, 35, 300 - rows}:
            part = kernels.linear(x[first : first + rows].clone(), packed)
            assert torch.equal(part, whole[first : first + rows]), f"{rows} rows from {first}"
    assert kernels.linear(x[:0], packed).shape == (0, 75)
    kernels_for(level, torch.float32)


@LEVELS
@SCHEMES
def test_a_row_that_is_not_finite_gives_nan_and_leaves_the_others_alone(level, scheme):
    """Rounding would hide it: NaN has no integer."""
    kernels = kernels_for(level, torch.bfloat16)
    packed = kernels.quantise_linear(torch.randn(20, 128).bfloat16(), None, scheme)
    x = torch.randn(40, 128).bfloat16()
    whole = kernels.linear(x, packed)
    x[3, 17], x[7, 0], x[11, 127] = torch.nan, torch.inf, -torch.inf
    found = kernels.linear(x, packed)
    bad = torch.zeros(40, dtype=torch.bool)
    bad[[3, 7, 11]] = True
    assert bool(found[bad].isnan().all())
    assert torch.equal(found[~bad], whole[~bad])


@LEVELS
@SCHEMES
def test_rows_of_tiny_or_no_magnitude(level, scheme):
    """127 / magnitude is infinite below 4e-37: such a row is zero, and so is such a row of a weight."""
    kernels = kernels_for(level, torch.float32)
    weight = torch.randn(20, 64)
    weight[3] = 1e-38
    packed = kernels.quantise_linear(weight, None, scheme)
    x = torch.randn(3, 64)
    x[0], x[1] = 0, 1e-38
    found = kernels.linear(x, packed)
    assert bool((found[:2] == 0).all())
    assert bool(found.isfinite().all())
    assert float(found[2, 3].abs()) < 1e-30


@LEVELS
@SCHEMES
@pytest.mark.parametrize("depth", [10, 32, 96])
def test_torch_computes_depths_that_are_no_multiple_of_64(level, scheme, depth):
    kernels = kernels_for(level, torch.bfloat16)
    x, weight = torch.randn(3, depth).bfloat16(), torch.randn(5, depth).bfloat16()
    packed = kernels.quantise_linear(weight, None, scheme)
    assert not packed.is_packed
    assert packed.rounds_rows
    assert torch.equal(kernels.linear(x, packed), linear_reference(x, packed))


@LEVELS
@SCHEMES
@DTYPES
def test_a_tied_embedding_has_the_values_of_the_codes(level, scheme, dtype):
    """The order of int8 codes differs from that of layers that do not round rows; the values are the same."""
    weight, ids = torch.randn(50, 128).to(dtype), torch.tensor([0, 49, 25, 0])
    rows = [
        kernels.embed(ids, kernels.quantise_linear(weight, None, scheme))
        for kernels in (kernels_for(level, dtype), kernels_of(level, dtype, has_quantised=True))
    ]
    assert torch.equal(*rows)


@OURS
def test_a_large_output_is_complete(level):
    """y is larger than 1 MiB and its lines are written past the caches; an odd width has no whole lines."""
    kernels = kernels_for(level, torch.bfloat16, threads=2)
    x = torch.randn(1100, 64).bfloat16()
    for width in (512, 519):
        packed = kernels.quantise_linear(torch.randn(width, 64).bfloat16(), torch.randn(width).bfloat16(), "int8")
        exact = exact_product(x, packed, kernels) + packed.bias.double()
        assert_close(kernels.linear(x, packed), exact, 1e-5)
    kernels_for(level, torch.bfloat16)
