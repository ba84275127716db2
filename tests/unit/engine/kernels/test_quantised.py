from dataclasses import replace

import pytest
import torch

from stoker.engine.kernels.quantised import LEVELS as CODE_LEVELS
from stoker.engine.kernels.quantised import dequantise_reference
from stoker.model.quantised import quantised_bytes

from .levels import LEVEL_NAMES, assert_close, kernels_of

LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)
SCHEMES = pytest.mark.parametrize("scheme", ["int8", "int4"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def values_of(packed, kernels) -> torch.Tensor:
    """The values of the codes, [out_features, in_features]. The layout of int8 depends on the level."""
    if packed.weight.dtype == torch.int8:
        return kernels.embed(torch.arange(packed.out_features), replace(packed, dtype=torch.float32))
    return dequantise_reference(packed.weight, packed.scales, packed.in_features)[: packed.out_features]


def error(weight: torch.Tensor, packed, kernels) -> float:
    """Root mean square error relative to the root mean square of the weights."""
    difference = values_of(packed, kernels) - weight.float()
    return float(difference.square().mean().sqrt() / weight.float().square().mean().sqrt())


def tolerance(x: torch.Tensor, weight: torch.Tensor, scheme: str, tokens: int) -> float:
    """For int8 only sums are rounded. Many rows multiply int4 weights that were rounded to bfloat16: the relative error
    of each product is at most 2**-9, and the signs of the errors are independent."""
    spread = float((x.double().abs() @ weight.double().abs().T).max())
    return spread * (2e-6 if scheme == "int8" or tokens == 1 else 2**-9)


@LEVELS
@SCHEMES
@DTYPES
@pytest.mark.parametrize(("width", "depth"), [(7, 32), (100, 96), (33, 256)])
def test_the_product_equals_that_of_the_dequantised_weight(level, scheme, dtype, width, depth):
    kernels = kernels_of(level, dtype)
    weight, bias = torch.randn(width, depth).to(dtype), torch.randn(width).to(dtype)
    packed, without = (kernels.quantise_linear(weight, each, scheme) for each in (bias, None))
    for tokens in (1, 2, 5, 7, 13, 33, 100):
        x = torch.randn(tokens, depth).to(dtype)
        exact = x.double() @ values_of(packed, kernels).double().T
        absolute = tolerance(x, weight, scheme, tokens)
        assert_close(kernels.linear(x, without), exact, absolute)
        assert_close(kernels.linear(x, packed), exact + bias.double(), absolute)


@LEVELS
@SCHEMES
def test_more_rows_than_a_chunk(level, scheme):
    x, weight = torch.randn(300, 2048).bfloat16(), torch.randn(40, 2048).bfloat16()
    kernels = kernels_of(level, torch.bfloat16)
    packed = kernels.quantise_linear(weight, None, scheme)
    exact = x.double() @ values_of(packed, kernels).double().T
    assert_close(kernels.linear(x, packed), exact, tolerance(x, weight, scheme, 300))


@LEVELS
@SCHEMES
@pytest.mark.parametrize("depth", [10, 33, 72])
def test_torch_computes_odd_depths(level, scheme, depth):
    kernels = kernels_of(level, torch.bfloat16)
    x, weight = torch.randn(3, depth).bfloat16(), torch.randn(5, depth).bfloat16()
    packed = kernels.quantise_linear(weight, None, scheme)
    assert not packed.is_packed
    assert_close(kernels.linear(x, packed), x.double() @ values_of(packed, kernels).double().T, 1e-4)


@LEVELS
@DTYPES
def test_the_error_of_int8_is_at_most_half_a_step(level, dtype):
    weight = (torch.randn(50, 96) * torch.logspace(-6, 3, 50)[:, None]).to(dtype)
    weight[7] = 0
    kernels = kernels_of(level, dtype)
    packed = kernels.quantise_linear(weight, None, "int8")
    step = weight.float().abs().amax(-1, keepdim=True) / 127
    assert bool(((values_of(packed, kernels) - weight.float()).abs() <= step * 0.50001).all())
    assert bool((values_of(packed, kernels)[7] == 0).all())


@LEVELS
@DTYPES
def test_errors_of_normally_distributed_weights_are_within_the_documented_limits(level, dtype):
    weight = torch.randn(96, 1024).to(dtype)
    kernels = kernels_of(level, dtype)
    assert error(weight, kernels.quantise_linear(weight, None, "int8"), kernels) < 0.009
    assert error(weight, kernels.quantise_linear(weight, None, "int4"), kernels) < 0.085


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
@SCHEMES
@DTYPES
@pytest.mark.parametrize(("width", "depth"), [(33, 96), (16, 64), (5, 224)])
def test_every_level_chooses_the_codes_of_the_reference(level, scheme, dtype, width, depth):
    """Except for ties and scales of equal error, where the order of sums decides."""
    weight = torch.randn(width, depth).to(dtype)
    weight[0, :64] = 0
    kernels, torchs = kernels_of(level, dtype), kernels_of("torch", dtype)
    ours, reference = (each.quantise_linear(weight, None, scheme) for each in (kernels, torchs))
    assert ours.is_packed
    assert ours.weight.shape == reference.weight.shape
    assert ours.scales.shape == reference.scales.shape
    differing = (values_of(ours, kernels) - values_of(reference, torchs)).abs() > 1e-6 * weight.float().abs().max()
    assert float(differing.float().mean()) < 0.01
    assert error(weight, ours, kernels) == pytest.approx(error(weight, reference, torchs), rel=1e-3)


@LEVELS
@SCHEMES
def test_the_size_is_the_planned_one(level, scheme):
    for width, depth in ((16, 64), (100, 96), (7, 1024), (33, 10)):
        packed = kernels_of(level, torch.bfloat16).quantise_linear(torch.randn(width, depth).bfloat16(), None, scheme)
        assert packed.num_bytes == quantised_bytes(scheme, width, depth)


@LEVELS
@SCHEMES
@DTYPES
def test_rows_of_a_tied_embedding_are_the_dequantised_rows(level, scheme, dtype):
    kernels = kernels_of(level, dtype)
    for depth in (96, 10, 160):
        packed = kernels.quantise_linear(torch.randn(50, depth).to(dtype), None, scheme)
        ids = torch.tensor([0, 49, 25, 0])
        assert torch.equal(kernels.embed(ids, packed), values_of(packed, kernels)[ids].to(dtype))


@LEVELS
@SCHEMES
@pytest.mark.parametrize("token_id", [-1, 50])
def test_a_token_that_is_not_in_the_vocabulary_is_refused(level, scheme, token_id):
    kernels = kernels_of(level, torch.bfloat16)
    packed = kernels.quantise_linear(torch.randn(50, 32).bfloat16(), None, scheme)
    if level != "torch":
        with pytest.raises(IndexError):
            kernels.embed(torch.tensor([0, token_id]), packed)


@pytest.mark.parametrize("level", LEVEL_NAMES[1:])
@SCHEMES
def test_results_do_not_depend_on_the_number_of_threads(level, scheme):
    x, weight = torch.randn(70, 512).bfloat16(), torch.randn(200, 512).bfloat16()
    results = []
    for threads in (1, 3):
        kernels = kernels_of(level, torch.bfloat16, threads=threads)
        packed = kernels.quantise_linear(weight, None, scheme)
        results.append((packed.weight, packed.scales, kernels.linear(x, packed), kernels.linear(x[:1], packed)))
    kernels_of(level, torch.bfloat16, threads=1)
    for one, three in zip(*results, strict=True):
        assert torch.equal(one, three)


def test_every_code_level_is_an_integer_that_bfloat16_can_represent():
    levels = torch.tensor(CODE_LEVELS)
    assert torch.equal(levels.bfloat16().int(), levels.int())
    assert bool((levels.diff() > 0).all())
