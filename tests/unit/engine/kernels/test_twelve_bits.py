"""bfloat16 in 12 bits: nothing may be lost, and no sum may come out otherwise than over plain panels."""

import pytest
import torch

from stoker.config.cpu_features import LEVELS
from stoker.config.quantised import twelve_bit_bytes

from .levels import EMULATED_AMX, LEVEL_NAMES, kernels_of

NARROW = [name for name in LEVEL_NAMES[1:] if {**LEVELS, "emulated_amx": EMULATED_AMX}[name].has_twelve_bits]


def normal(width: int, depth: int) -> torch.Tensor:
    return torch.randn(width, depth).bfloat16()


def from_bits(bits: torch.Tensor) -> torch.Tensor:
    return bits.to(torch.int16).view(torch.bfloat16)


def rows_of(packed, kernels) -> torch.Tensor:
    """The bits of the whole weight, read back."""
    return kernels.embed(torch.arange(packed.out_features), packed).view(torch.int16)


def with_exceptions(width: int, depth: int) -> torch.Tensor:
    """Normal numbers, a few of every other size among them, the first and the last too."""
    weight = normal(width, depth)
    flat = weight.view(-1)
    wild = torch.tensor([1e-30, -1e30, 3e-39, 0.0, -0.0, 1e-20, 2.0**-126, -1e-38]).bfloat16()
    places = torch.randint(flat.numel(), (max(1, flat.numel() // 400),))
    flat[places] = wild[torch.arange(len(places)) % len(wild)]
    flat[0], flat[-1] = 1e-30, -1e30
    return weight


def parts_of_the_number_line() -> list[torch.Tensor]:
    """All 65536 patterns: 16 rows of eight neighbouring exponents each, of both signs."""
    bits = torch.arange(65536)
    exponents = (bits >> 7) & 0xFF
    return [bits[exponents // 8 == part].view(16, -1) for part in range(32)]


@pytest.mark.parametrize("level", NARROW)
def test_every_number_comes_back_bit_by_bit(level):
    kernels = kernels_of(level, torch.bfloat16)
    for bits in parts_of_the_number_line():
        weight = from_bits(bits)
        packed = kernels.pack_linear(weight, None)
        assert packed.weight.dtype == torch.uint8
        assert torch.equal(rows_of(packed, kernels), weight.view(torch.int16))


@pytest.mark.parametrize("level", NARROW)
@pytest.mark.parametrize(("width", "depth"), [(1, 32), (7, 64), (16, 96), (100, 32), (272, 1024)])
def test_exceptions_stand_in_their_places(level, width, depth):
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
def test_wild_exponents_stay_plain(level):
    weight = (torch.randn(64, 64) * torch.logspace(-30, 30, 64)).bfloat16()
    kernels = kernels_of(level, torch.bfloat16)
    packed = kernels.pack_linear(weight, None)
    assert packed.weight.dtype == torch.bfloat16
    assert torch.equal(rows_of(packed, kernels), weight.view(torch.int16))


@pytest.mark.parametrize("level", NARROW)
@pytest.mark.parametrize(("width", "depth"), [(7, 64), (100, 96), (80, 256), (40, 2048)])
def test_sums_are_those_of_plain_panels_bit_by_bit(level, width, depth):
    """A column of wild numbers keeps the same weight plain: 1 of 16 rows is enough."""
    kernels = kernels_of(level, torch.bfloat16)
    weight, bias = normal(width, depth), torch.randn(width).bfloat16()
    if width * depth > 20_000:
        weight = with_exceptions(width, depth).clamp(-100, 100)
    wild = (torch.randn(16, depth) * torch.logspace(-30, 30, depth)).bfloat16()
    whole = torch.cat([weight, *[wild] * (1 + width // 100)])
    narrow = kernels.pack_linear(weight, bias)
    plain = kernels.pack_linear(whole, torch.cat([bias, torch.zeros(len(whole) - width).bfloat16()]))
    assert (narrow.weight.dtype, plain.weight.dtype) == (torch.uint8, torch.bfloat16)
    for tokens in (1, 2, 3, 5, 8, 9, 12, 13, 24, 40, 100, 300):
        x = normal(tokens, depth)
        assert torch.equal(kernels.linear(x, narrow), kernels.linear(x, plain)[:, :width])


@pytest.mark.parametrize("level", NARROW)
def test_numbers_that_are_none_stay_what_they_are(level):
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
def test_the_bytes_are_told(level):
    weight = normal(256, 1024)
    packed = kernels_of(level, torch.bfloat16).pack_linear(weight, None)
    assert twelve_bit_bytes(256, 1024) <= packed.num_bytes < 0.76 * weight.nbytes


@pytest.mark.parametrize("level", NARROW)
def test_more_threads_change_nothing_but_the_time(level):
    x, weight = normal(70, 512), with_exceptions(200, 512).clamp(-100, 100)
    results = []
    for threads in (1, 3):
        kernels = kernels_of(level, torch.bfloat16, threads=threads)
        packed = kernels.pack_linear(weight, None)
        results.append((packed.weight, kernels.linear(x, packed), kernels.linear(x[:1], packed)))
    kernels_of(level, torch.bfloat16, threads=1)
    for one, three in zip(*results, strict=True):
        assert torch.equal(one, three)
