"""Kernels with a state per sequence, and the gated RMS norm, compared with their references."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from tests.slow_cases import slow

from stoker.engine.kernels import (
    GatedDeltaWeights,
    KimiDeltaWeights,
    PartNormWeights,
    RgLruWeights,
    RMSNormGatedWeights,
    SelectiveScanWeights,
    StateSpaceWeights,
)
from stoker.engine.kernels.causal_convolution import KINDS, causal_convolution_reference
from stoker.engine.kernels.gated_delta import gated_delta_reference
from stoker.engine.kernels.kimi_delta import kimi_delta_reference
from stoker.engine.kernels.norm_parts import norm_parts_reference
from stoker.engine.kernels.rg_lru import rg_lru_reference
from stoker.engine.kernels.rms_norm_gated import ORDERS, rms_norm_gated_reference
from stoker.engine.kernels.selective_scan import selective_scan_reference
from stoker.engine.kernels.state_space import state_space_reference

pytest.importorskip("triton")
from stoker.engine.kernels.gpu import recurrent
from stoker.engine.kernels.gpu.causal_convolution import causal_convolution_gpu
from stoker.engine.kernels.gpu.gated_delta import gated_delta_gpu
from stoker.engine.kernels.gpu.kimi_delta import kimi_delta_gpu
from stoker.engine.kernels.gpu.norm_parts import norm_parts_gpu
from stoker.engine.kernels.gpu.rg_lru import rg_lru_gpu
from stoker.engine.kernels.gpu.rms_norm_gated import rms_norm_gated_gpu
from stoker.engine.kernels.gpu.selective_scan import selective_scan_gpu
from stoker.engine.kernels.gpu.state_space import state_space_gpu

from .batches import ALL_DTYPES, DTYPES, LIMITS, memory_of_nan
from .conftest import HAS_GPU

NUM_SLOTS = 7
NARROW = torch.bfloat16 if HAS_GPU else torch.float16
FEW, CHUNK = recurrent.FEW.value, recurrent.CHUNK.value
Rows = Sequence[tuple[int, int, int]]  # tokens computed before, tokens of the step, slot
DECODE: Rows = [(5, 1, 2), (0, 1, 4), (0, 0, -1), (0, 1, -1)]
# New and continued; one token, the longest row without chunks, one of a token more, chunks with and without a rest.
MIXED: Rows = [(0, 1, 3), (2, 2, 6), (4, FEW, 0), (0, FEW + 1, 5), (9, 2 * CHUNK, 1), (0, 2 * CHUNK + 3, 2), (0, 0, -1)]
STEPS = pytest.mark.parametrize("rows", [DECODE, MIXED], ids=["decode", "mixed"])
Op = Callable[[torch.Tensor, torch.Tensor, "Step"], torch.Tensor]  # first columns, state, step


@dataclass
class Step:
    query_start: torch.Tensor
    context_lens: torch.Tensor
    seq_slots: torch.Tensor
    max_query_len: int


def step_of(rows: Rows, device: torch.device) -> Step:
    def int32(values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    counts = [count for _, count, _ in rows]
    ends = [sum(counts[:row]) for row in range(len(counts) + 1)]
    contexts = [before + count if slot >= 0 else 0 for before, count, slot in rows]
    return Step(int32(ends), int32(contexts), int32([slot for *_, slot in rows]), max(counts, default=0))


def num_tokens(rows: Rows) -> int:
    return sum(count for _, count, _ in rows)


def check(rows: Rows, ops: tuple[Op, Op], state: torch.Tensor, limit: float) -> None:
    """ops: the kernel's and the reference's. state: [slots, ...]; NaN for new rows and for slot -1."""
    real = [row for row in rows if row[2] >= 0]
    for before, _, slot in real:
        if not before:
            state[slot] = torch.nan
    found_states = torch.cat((torch.full_like(state[:1], torch.nan), state))
    tokens = num_tokens(real)
    with memory_of_nan():
        found = ops[0](found_states[1:], step_of(rows, state.device))
    expected = ops[1](state, step_of(real, state.device))
    torch.testing.assert_close(found[:tokens], expected[:tokens], atol=limit, rtol=limit)
    torch.testing.assert_close(found_states[1:], state, atol=limit, rtol=limit, equal_nan=True)
    assert found_states[0].isnan().all()
    assert found[tokens:].isnan().all()  # not written


def apart(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Random rows with NaN between them, and after the last one."""
    wide = torch.full((shape[0], shape[1] + 5), torch.nan, dtype=dtype, device=device)
    wide[:, : shape[1]] = torch.randn(shape, device=device)
    return wide[:, : shape[1]]


# ---- the convolution


@ALL_DTYPES
@pytest.mark.parametrize("kind", KINDS)
@STEPS
@pytest.mark.parametrize(("channels", "width", "has_bias"), [(300, 4, True), (16, 3, False), (20, 1, True)])
@pytest.mark.quick_cases(1)
def test_the_convolution(device, dtype, kind, rows, channels, width, has_bias):
    x = apart(num_tokens(rows) + 2, channels * 3, dtype=dtype, device=device)
    taps = torch.randn(width, channels, device=device)
    bias = torch.randn(channels, device=device) if has_bias else None
    check(
        rows,
        (
            lambda state, step: causal_convolution_gpu(x, taps, bias, state, step, kind),
            lambda state, step: causal_convolution_reference(
                x[: int(step.query_start[-1])], taps, bias, state, step, kind
            ),
        ),
        torch.randn(NUM_SLOTS, width - 1, channels, device=device).to(dtype),
        LIMITS[dtype],
    )


def test_states_of_the_convolution_are_copied_exactly(device):
    """Of rows with fewer tokens than a state has inputs, and with more."""
    rows: Rows = [(9, 1, 1), (9, 2, 5), (9, 3, 0), (9, 4, 2), (0, 1, 3), (0, 2, 4)]
    inputs, state = torch.arange(13.0, device=device)[:, None], -torch.arange(1.0, 19.0, device=device).view(6, 3, 1)
    given = torch.ones(4, 1, device=device), None
    outputs = causal_convolution_reference(inputs, *given, state.clone(), step_of(rows, device), "silu")
    found = causal_convolution_gpu(inputs, *given, state, step_of(rows, device), "silu")
    torch.testing.assert_close(found, outputs)
    expected = [[3, 4, 5], [-5, -6, 0], [7, 8, 9], [0, 0, 10], [0, 11, 12], [-18, 1, 2]]
    assert state[:, :, 0].tolist() == expected


# ---- the gated RMS norm


@ALL_DTYPES
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("width", "groups", "gate"), [(120, 3, "silu"), (120, 1, "sigmoid"), slow(16, 1, "silu")])
def test_the_gated_rms_norm(device, dtype, order, width, groups, gate):
    x = apart(3, width, dtype=torch.float32, device=device)
    projected = apart(3, width + 8, dtype=dtype, device=device)  # of which 3 columns are before the gates
    weight = None if order == "none" else torch.randn(width, device=device)
    weights = RMSNormGatedWeights(order, weight, 0.1, groups, gate)
    found, expected = rms_norm_gated_gpu(x, projected, 3, weights), rms_norm_gated_reference(x, projected, 3, weights)
    torch.testing.assert_close(found, expected, atol=LIMITS[dtype], rtol=LIMITS[dtype])


# ---- the norms of parts


@ALL_DTYPES
@pytest.mark.parametrize("kind", ["none", "bare", "weighted"])
@pytest.mark.parametrize("sizes", [(40, 7, 9), (3, 16, 16)])
def test_the_norms_of_parts(device, dtype, kind, sizes):
    x = apart(3, sum(sizes), dtype=dtype, device=device)
    gains = torch.randn(sum(sizes), device=device) if kind == "weighted" else None
    weights = PartNormWeights(sizes, kind != "none", gains, 0.1)
    with memory_of_nan():
        found = norm_parts_gpu(x, weights)
    for own, expected in zip(found, norm_parts_reference(x, weights), strict=True):
        torch.testing.assert_close(own, expected, atol=LIMITS[dtype], rtol=LIMITS[dtype])


# ---- the gated delta rule


@DTYPES
@STEPS
@pytest.mark.parametrize("shape", [(2, 4, 24, 40), (1, 2, 128, 128), (1, 1, 8, 3)])
@pytest.mark.quick_cases(1)
def test_the_gated_delta_rule(device, dtype, rows, shape):
    """shape: key heads, value heads, sizes of a key and of a value."""
    check_delta(device, dtype, rows, shape, torch.float32)


def test_a_gated_delta_rule_with_a_sigmoid(device):
    check_delta(device, torch.float32, MIXED, (1, 2, 24, 20), torch.float32, "sigmoid")


def check_delta(device, dtype, rows, shape, state_dtype, gate="silu"):
    key_heads, heads, key_dim, value_dim = shape
    tokens, channels = num_tokens(rows) + 2, 2 * key_heads * key_dim + heads * value_dim
    mixed = apart(tokens, channels, dtype=dtype, device=device)
    projected = apart(tokens, channels + heads * value_dim + 2 * heads, dtype=dtype, device=device)
    weights = GatedDeltaWeights(
        torch.randn(heads, device=device),
        torch.randn(heads, device=device),
        1 + 0.1 * torch.randn(value_dim, device=device),
        eps=0.1,  # outputs are small where terms of a sum cancel, and the norm divides by them
        beta_scale=1.5,
        gate=gate,
    )
    check(
        rows,
        (
            lambda state, step: gated_delta_gpu(mixed, projected, weights, state, step),
            lambda state, step: gated_delta_reference(mixed, projected, weights, state, step),
        ),
        torch.randn(NUM_SLOTS, heads, key_dim, value_dim, device=device).to(state_dtype),
        max(2e-5, LIMITS[dtype], LIMITS[state_dtype]),
    )


@DTYPES
@STEPS
@pytest.mark.parametrize("shape", [(2, 40), (1, 128), (1, 3)])
@pytest.mark.parametrize("least_log", [None, -5.0])
@pytest.mark.quick_cases(1)
def test_kimi_delta(device, dtype, rows, shape, least_log):
    """shape: heads, size of a key and of a value. least_log: of the decays."""
    check_kimi(device, dtype, rows, shape, torch.float32, least_log)


def check_kimi(device, dtype, rows, shape, state_dtype, least_log=None):
    heads, size = shape
    tokens, width = num_tokens(rows) + 2, heads * size
    mixed = apart(tokens, 3 * width, dtype=dtype, device=device)
    projected = apart(tokens, 7 + heads, dtype=dtype, device=device)
    a, z = (apart(tokens, width, dtype=dtype, device=device) for _ in range(2))
    weights = KimiDeltaWeights(
        torch.randn(heads, device=device),
        2 * torch.randn(width, device=device),
        1 + 0.1 * torch.randn(size, device=device),
        eps=0.1,  # as above
        least_log=least_log,
    )
    check(
        rows,
        (
            lambda state, step: kimi_delta_gpu(mixed, projected, a, z, weights, state, step),
            lambda state, step: kimi_delta_reference(mixed, projected, a, z, weights, state, step),
        ),
        torch.randn(NUM_SLOTS, heads, size, size, device=device).to(state_dtype),
        max(2e-5, LIMITS[dtype], LIMITS[state_dtype]),
    )


def test_a_large_decay_of_kimi_delta_does_not_hide_smaller_ones(device):
    """Of one element of a key, in a chunk whose second token forgets everything. Others decay little."""
    tokens = 2 * FEW
    mixed, projected = torch.ones(tokens, 6, device=device), torch.zeros(tokens, 1, device=device)
    a = torch.full((tokens, 2), -6.0, device=device)
    a[1, 0] = 1e8
    weights = KimiDeltaWeights(
        *(torch.zeros(size, device=device) for size in (1, 2)), torch.ones(2, device=device), 0.1
    )
    step, state = step_of([(0, tokens, 0)], device), torch.zeros(1, 1, 2, 2, device=device)
    exact = state.clone()
    expected = kimi_delta_reference(mixed, projected, a, a, weights, exact, step)
    torch.testing.assert_close(kimi_delta_gpu(mixed, projected, a, a, weights, state, step), expected)
    torch.testing.assert_close(state, exact)


# ---- the state space


@DTYPES
@STEPS
@pytest.mark.parametrize("shape", [(4, 2, 24, 40), (2, 1, 128, 64), (1, 1, 3, 8)])
@pytest.mark.parametrize("limits", [(0.0, math.inf), (0.1, 0.5)])
@pytest.mark.quick_cases(1)
def test_the_state_space(device, dtype, rows, shape, limits):
    """shape: heads, groups, state size, elements of a head. limits: of a time step."""
    check_space(device, dtype, rows, shape, limits, torch.float32)


def check_space(device, dtype, rows, shape, limits, state_dtype):
    heads, groups, state_size, head_dim = shape
    tokens, channels = num_tokens(rows) + 2, heads * head_dim + 2 * groups * state_size
    mixed = apart(tokens, channels, dtype=dtype, device=device)
    projected = apart(tokens, channels + heads * head_dim + heads, dtype=dtype, device=device)
    weights = StateSpaceWeights(*(torch.randn(heads, device=device) for _ in range(3)), *limits)
    check(
        rows,
        (
            lambda state, step: state_space_gpu(mixed, projected, weights, state, step),
            lambda state, step: state_space_reference(mixed, projected, weights, state, step),
        ),
        torch.randn(NUM_SLOTS, heads, state_size, head_dim, device=device).to(state_dtype),
        max(6e-5, LIMITS[state_dtype]),  # of sums of many products, whose terms cancel
    )


# ---- the selective scan


@DTYPES
@STEPS
@pytest.mark.parametrize("shape", [(40, 5), (120, 5, 3), (64, 16), (3, 20)])
@pytest.mark.quick_cases(2)
def test_the_selective_scan(device, dtype, rows, shape):
    """shape: channels, state size, groups of channels."""
    check_scan(device, dtype, rows, shape, torch.float32)


def check_scan(device, dtype, rows, shape, state_dtype):
    channels, state_size, groups = (*shape, 1)[:3]
    tokens = num_tokens(rows) + 2
    widths = channels, 2 * channels, channels, groups * state_size, groups * state_size
    inputs = [apart(tokens, width, dtype=dtype, device=device) for width in widths]
    rates = -3 * torch.rand(state_size, channels, device=device)
    weights = SelectiveScanWeights(rates, *torch.randn(2, channels, device=device))
    check(
        rows,
        (
            lambda state, step: selective_scan_gpu(*inputs, weights, state, step),
            lambda state, step: selective_scan_reference(*inputs, weights, state, step),
        ),
        torch.randn(NUM_SLOTS, state_size, channels, device=device).to(state_dtype),
        max(2e-5, LIMITS[dtype], LIMITS[state_dtype]),
    )


# ---- the real-gated linear recurrent unit


@DTYPES
@STEPS
@pytest.mark.parametrize("channels", [70, 3])
@pytest.mark.quick_cases(1)
def test_the_gated_unit(device, dtype, rows, channels):
    check_unit(device, dtype, rows, channels, torch.float32)


def check_unit(device, dtype, rows, channels, state_dtype):
    tokens = num_tokens(rows) + 2
    inputs = [apart(tokens, channels, dtype=dtype, device=device) for _ in range(3)]
    weights = RgLruWeights(-3 * torch.rand(channels, device=device), *torch.randn(2, channels, device=device))
    check(
        rows,
        (
            lambda state, step: rg_lru_gpu(*inputs, weights, state, step),
            lambda state, step: rg_lru_reference(*inputs, weights, state, step),
        ),
        torch.randn(NUM_SLOTS, channels, device=device).to(state_dtype),
        max(2e-5, LIMITS[dtype], LIMITS[state_dtype]),
    )


def test_a_unit_whose_gate_is_closed_keeps_its_state(device):
    """1 - a^2 is not below 0, of which there is no root."""
    x, zeros, state = torch.ones(1, 3, device=device), torch.zeros(3, device=device), torch.ones(1, 3, device=device)
    weights = RgLruWeights(zeros - 1e-9, zeros, zeros - 50)
    found = rg_lru_gpu(x, x, x, weights, state, step_of([(4, 1, 0)], device))
    torch.testing.assert_close(found, torch.ones_like(x), atol=1e-3, rtol=0.0)


@STEPS
@pytest.mark.slow
def test_states_of_16_bits_are_rounded_after_the_last_token(device, rows):
    """float16 stands for bfloat16, which the interpreter computes wrongly."""
    check_delta(device, torch.float32, rows, (1, 2, 24, 20), NARROW)
    check_kimi(device, torch.float32, rows, (2, 24), NARROW)
    check_space(device, torch.float32, rows, (2, 1, 24, 20), (0.0, math.inf), NARROW)
    check_scan(device, torch.float32, rows, (40, 5), NARROW)
    check_unit(device, torch.float32, rows, 70, NARROW)


def space_of_one_channel(steps, rate, device):
    """Inputs, B and C are 1, D and the states 0: the outputs are sums of decayed time steps. In float32 and exactly."""
    one = torch.ones(1, device=device)
    weights = StateSpaceWeights(math.log(rate) * one, 0 * one, 0 * one)
    mixed, steps = torch.ones(len(steps), 3, device=device), torch.tensor(steps, device=device)
    projected = torch.cat((torch.zeros(len(steps), 4, device=device), steps[:, None]), 1)
    step, state = step_of([(0, len(steps), 0)], device), torch.zeros(1, 1, 1, 1, device=device)
    exact = torch.nn.functional.softplus(steps.double())
    total, sums = torch.zeros((), dtype=torch.float64, device=device), []
    for each in exact:
        total = total * torch.exp(-rate * each) + each
        sums.append(total)
    return state_space_gpu(mixed, projected, weights, state, step)[:, 0].double(), torch.stack(sums)


def test_time_steps_are_exact(device):
    """Also small ones, of which log(1 + exp(x)) loses every digit."""
    for steps in ([-15.0], [0.3], [-9.0, -16.0] * FEW):
        found, expected = space_of_one_channel(steps, 1.0, device)
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=0.0)


def test_a_large_decay_in_a_chunk_does_not_hide_smaller_ones(device):
    """The difference of two sums from the chunk's begin would: 1e8 has no digits for 0.01."""
    found, expected = space_of_one_channel([-5.0, -4.0, 1e8, -4.5, -5.5] + [-6.0] * FEW, 1.0, device)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0.0)


def test_shapes_that_do_not_fit_are_refused(device):
    step, zeros = step_of([(0, 2, 0)], device), torch.zeros(2, 8, device=device)
    with pytest.raises(ValueError, match=r"x is \(2, 8\)"):
        causal_convolution_gpu(zeros, torch.zeros(3, 8, device=device), None, zeros[None], step, "gated")
    with pytest.raises(ValueError, match="3 groups"):
        rms_norm_gated_gpu(zeros, torch.zeros(2, 9, device=device), 1, RMSNormGatedWeights("none", None, 0.1, 3))
    weights = GatedDeltaWeights(zeros[0], zeros[0], zeros[0], 0.1)
    with pytest.raises(ValueError, match="projected is"):
        gated_delta_gpu(zeros, zeros, weights, torch.zeros(1, 1, 2, 4, device=device), step)
    weights = KimiDeltaWeights(zeros[0], zeros[0], zeros[0], 0.1)
    with pytest.raises(ValueError, match="for states of"):
        kimi_delta_gpu(zeros, zeros, zeros, zeros, weights, torch.zeros(1, 1, 2, 2, device=device), step)
    with pytest.raises(ValueError, match="for states of"):
        state_space_gpu(zeros, zeros, StateSpaceWeights(*zeros[:1].expand(3, 8)), zeros[None, None], step)
    with pytest.raises(ValueError, match="for states of"):
        selective_scan_gpu(*[zeros] * 5, SelectiveScanWeights(zeros, zeros[0], zeros[0]), zeros[None], step)
    with pytest.raises(ValueError, match="for states of"):
        rg_lru_gpu(zeros, zeros, zeros[:, 1:], RgLruWeights(*[zeros[0]] * 3), zeros, step)
    with pytest.raises(ValueError, match="for parts of"):
        norm_parts_gpu(zeros, PartNormWeights((2, 2, 2), True))
