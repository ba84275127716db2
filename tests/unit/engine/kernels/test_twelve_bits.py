"""bfloat16 in 12 bits: packing is lossless, and products equal those of plain panels bit by bit."""

import pytest
import torch

from stoker.config.cpu_features import LEVELS
from stoker.model.quantised import twelve_bit_bytes

from .levels import EMULATED_AMX, LEVEL_NAMES, kernels_of, sums_of_rounding_errors

NARROW = [name for name in LEVEL_NAMES[1:] if {**LEVELS, "emulated_amx": EMULATED_AMX}[name].has_twelve_bits]


def normal(width: int, depth: int) -> torch.Tensor:
    return torch.randn(width, depth).bfloat16()


def from_bits(bits: torch.Tensor) -> torch.Tensor:
    return bits.to(torch.int16).view(torch.bfloat16)


def rows_of(packed, kernels) -> torch.Tensor:
    """The bits of the whole weight, unpacked."""
    return kernels.embed(torch.arange(packed.out_features), packed).view(torch.int16)


def with_exceptions(width: int, depth: int) -> torch.Tensor:
    """Normally distributed values with a few of very different magnitude, also at the first and the last index."""
    weight = normal(width, depth)
    flat = weight.view(-1)
    outliers = torch.tensor([1e-30, -1e30, 3e-39, 0.0, -0.0, 1e-20, 2.0**-126, -1e-38]).bfloat16()
    indices = torch.randint(flat.numel(), (max(1, flat.numel() // 400),))
    flat[indices] = outliers[torch.arange(len(indices)) % len(outliers)]
    flat[0], flat[-1] = 1e-30, -1e30
    return weight


def all_bfloat16_values() -> list[torch.Tensor]:
    """All 65536 bit patterns: each tensor has 16 rows with eight consecutive exponents and both signs."""
    bits = torch.arange(65536)
    exponents = (bits >> 7) & 0xFF
    return [bits[exponents // 8 == part].view(16, -1) for part in range(32)]


@pytest.mark.parametrize("level", NARROW)
def test_every_value_is_unpacked_bit_by_bit(level):
    kernels = kernels_of(level, torch.bfloat16)
    for bits in all_bfloat16_values():
        weight = from_bits(bits)
        packed = kernels.pack_linear(weight, None)
        assert packed.weight.dtype == torch.uint8
        assert torch.equal(rows_of(packed, kernels), weight.view(torch.int16))


@pytest.mark.parametrize("level", NARROW)
@pytest.mark.parametrize(("width", "depth"), [(1, 32), (7, 64), (16, 96), (100, 32), (272, 1024)])
def test_exceptions_are_restored(level, width, depth):
    kernels = kernels_of(level, torch.bfloat16)
    weight = with_exceptions(width, depth)
    packed = kernels.pack_linear(weight, None)
    assert torch.equal(rows_of(packed, kernels), weight.view(torch.int16))


@pytest.mark.parametrize("level", NARROW)
@pytest.mark.parametrize("weight", [torch.zeros(20, 64), torch.full((20, 64), 1e-39), -torch.zeros(20, 64)])
def test_zeros_and_subnormals_need_no_exceptions(level, weight):
    kernels = kernels_of(level, torch.bfloat16)
    packed = kernels.pack_linear(weight.bfloat16(), None)
    assert packed.num_bytes == twelve_bit_bytes(20, 64)
    assert torch.equal(rows_of(packed, kernels), weight.bfloat16().view(torch.int16))


@pytest.mark.parametrize("level", NARROW)
def test_a_weight_with_too_many_exceptions_is_not_compressed(level):
    weight = (torch.randn(64, 64) * torch.logspace(-30, 30, 64)).bfloat16()
    kernels = kernels_of(level, torch.bfloat16)
    packed = kernels.pack_linear(weight, None)
    assert packed.weight.dtype == torch.bfloat16
    assert torch.equal(rows_of(packed, kernels), weight.view(torch.int16))


@pytest.mark.parametrize("level", NARROW)
@pytest.mark.parametrize("batch_invariant", [False, True], ids=["plain", "batch invariant"])
@pytest.mark.parametrize(("width", "depth"), [(7, 64), (100, 96), (80, 256), (40, 2048)])
def test_products_equal_those_of_plain_panels_bit_by_bit(level, batch_invariant, width, depth):
    """Rows with extreme exponents keep the second weight from being compressed: 1 such row in 16 is enough."""
    kernels = kernels_of(level, torch.bfloat16, batch_invariant=batch_invariant)
    x, weight = (values.bfloat16() for values in sums_of_rounding_errors(600, width, depth))
    bias = torch.randn(width).bfloat16() * 2**-20
    if width * depth > 20_000:
        weight = with_exceptions(width, depth // 2).clamp(-100, 100).repeat(1, 2)
    extreme = (torch.randn(16, depth) * torch.logspace(-30, 30, depth)).bfloat16()
    whole = torch.cat([weight, *[extreme] * (1 + width // 100)])
    narrow = kernels.pack_linear(weight, bias)
    plain = kernels.pack_linear(whole, torch.cat([bias, torch.zeros(len(whole) - width).bfloat16()]))
    assert (narrow.weight.dtype, plain.weight.dtype) == (torch.uint8, torch.bfloat16)
    for tokens in (1, 2, 3, 4, 5, 8, 9, 12, 13, 24, 40, 100, 300, 600):  # 600 rows of 2048 are larger than the caches
        rows = x[:tokens].contiguous()
        assert torch.equal(kernels.linear(rows, narrow), kernels.linear(rows, plain)[:, :width]), f"{tokens} rows"


@pytest.mark.parametrize("level", NARROW)
def test_nan_and_infinity_are_kept(level):
    weight = normal(64, 64)
    weight[3, 5], weight[50, 7] = float("nan"), float("-inf")
    kernels = kernels_of(level, torch.bfloat16)
    packed = kernels.pack_linear(weight, None)
    assert packed.weight.dtype == torch.uint8
    for tokens in (1, 30):
        out = kernels.linear(torch.ones(tokens, 64).bfloat16(), packed)
        assert bool(out[:, 3].isnan().all())
        assert bool((out[:, 50] == float("-inf")).all())
        assert bool(out[:, [column for column in range(64) if column not in (3, 50)]].isfinite().all())


@pytest.mark.parametrize("level", NARROW)
def test_the_size_is_the_planned_one(level):
    weight = normal(256, 1024)
    packed = kernels_of(level, torch.bfloat16).pack_linear(weight, None)
    assert twelve_bit_bytes(256, 1024) <= packed.num_bytes < 0.76 * weight.nbytes


@pytest.mark.parametrize("level", NARROW)
def test_results_do_not_depend_on_the_number_of_threads(level):
    x, weight = normal(70, 512), with_exceptions(200, 512).clamp(-100, 100)
    results = []
    for threads in (1, 3):
        kernels = kernels_of(level, torch.bfloat16, threads=threads)
        packed = kernels.pack_linear(weight, None)
        results.append((packed.weight, kernels.linear(x, packed), kernels.linear(x[:1], packed)))
    kernels_of(level, torch.bfloat16, threads=1)
    for one, three in zip(*results, strict=True):
        assert torch.equal(one, three)
