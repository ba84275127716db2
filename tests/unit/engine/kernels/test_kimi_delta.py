"""Kimi Delta Attention: the gated delta rule with a decay for each row of the state."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F

from stoker.engine.kernels import KernelSet, KimiDeltaWeights

from .levels import LEVEL_NAMES, assert_close, kernels_of
from .test_recurrent import ROWS, Step, step_of

LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
SHAPES = [(1, 3), (3, 24), (2, 128)]


@dataclass(frozen=True)
class Inputs:
    mixed: torch.Tensor
    projected: torch.Tensor
    a: torch.Tensor
    z: torch.Tensor
    weights: KimiDeltaWeights
    state: torch.Tensor

    def of_tokens(self, first: int, count: int) -> Inputs:
        part = slice(first, first + count)
        return replace(self, mixed=self.mixed[part], projected=self.projected[part], a=self.a[part], z=self.z[part])


def inputs_of(shape: tuple[int, int], dtype: torch.dtype, tokens: int = 56, least_log: float | None = None) -> Inputs:
    heads, size = shape
    torch.manual_seed(sum(shape))
    mixed, a, z = (torch.randn(tokens, count * heads * size).to(dtype) for count in (3, 1, 1))
    weights = KimiDeltaWeights(
        torch.randn(heads), 2 * torch.randn(heads * size), 1 + 0.1 * torch.randn(size), 1e-6, least_log
    )
    projected = torch.randn(tokens, 7 + heads).to(dtype)
    return Inputs(mixed, projected, a, z, weights, torch.randn(6, heads, size, size))


def run(kernels: KernelSet, inputs: Inputs, state: torch.Tensor, step: Step) -> torch.Tensor:
    return kernels.kimi_delta(inputs.mixed, inputs.projected, inputs.a, inputs.z, inputs.weights, state, step)


def in_float64(inputs: Inputs, state: torch.Tensor) -> torch.Tensor:
    """Of one sequence, by the formulas of the paper; `state` [heads, size, size] is changed."""
    heads, size, _ = state.shape
    q, k, v = inputs.mixed.double().chunk(3, 1)
    rows = []
    for token in range(len(q)):
        row = []
        for head in range(heads):
            own = slice(head * size, (head + 1) * size)
            query, key = (x[token, own] / (x[token, own].square().sum() + 1e-6).sqrt() for x in (q, k))
            steps = inputs.a[token, own].double() + inputs.weights.dt_bias[own]
            rate, least = inputs.weights.a_log[head].double().exp(), inputs.weights.least_log
            log = -rate * F.softplus(steps) if least is None else least * (rate * steps).sigmoid()
            decayed = torch.exp(log)[:, None] * state[head]
            beta = inputs.projected[token, head - heads].double().sigmoid()
            state[head] = decayed + torch.outer(key, (v[token, own] - key @ decayed) * beta)
            out = query @ state[head] / math.sqrt(size)
            out = out * torch.rsqrt(out.square().mean() + inputs.weights.eps) * inputs.weights.norm
            row.append(out * inputs.z[token, own].double().sigmoid())
        rows.append(torch.cat(row))
    return torch.stack(rows)


@LEVELS
@DTYPES
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("least_log", [None, -5.0])
@pytest.mark.quick_cases(8)
def test_the_rule_is_that_of_the_paper(
    level: str, dtype: torch.dtype, shape: tuple[int, int], least_log: float | None
) -> None:
    inputs = inputs_of(shape, dtype, least_log=least_log)
    exact, state = inputs.state.double(), inputs.state.clone()
    found = run(kernels_of(level, dtype), inputs, state, step_of(*ROWS))
    first = 0
    for computed, count, slot in ROWS:
        if not computed:
            exact[slot] = 0
        expected = in_float64(inputs.of_tokens(first, count), exact[slot])
        assert_close(found[first : first + count], expected, absolute=2e-4)
        torch.testing.assert_close(state[slot].double(), exact[slot], rtol=1e-5, atol=2e-5)
        first += count
    assert torch.equal(state[[3, 5]], inputs.state[[3, 5]])


@LEVELS
@DTYPES
@pytest.mark.parametrize("shape", SHAPES[1:])
@pytest.mark.quick_cases(5)
def test_results_depend_neither_on_the_batch_nor_on_the_division_into_steps(
    level: str, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    """Bit for bit, with any number of threads: the rows of a batch one by one, their tokens in steps of 1, 3 and 16."""
    is_torch = level == "torch"
    inputs = inputs_of(shape, dtype)
    sums, first = inputs.state.clone(), 0
    kernels = kernels_of(level, dtype, threads=2, batch_invariant=is_torch)
    together = run(kernels, inputs, sums, step_of(*ROWS)).clone()
    kernels = kernels_of(level, dtype, threads=1, batch_invariant=is_torch)
    for computed, count, slot in ROWS:
        for most in (1, 3, 16):
            own_sums, found = inputs.state.clone(), []
            for begin in range(0, count, most):
                part = inputs.of_tokens(first + begin, min(most, count - begin))
                step = step_of((computed + begin, len(part.mixed), slot))
                found.append(run(kernels, part, own_sums, step).clone())
            assert torch.equal(torch.cat(found), together[first : first + count])
            assert torch.equal(own_sums[slot], sums[slot])
        first += count


@LEVELS
def test_a_new_sequence_begins_with_zeros_whatever_its_slot_holds(level: str) -> None:
    kernels, inputs = kernels_of(level, torch.float32), inputs_of((2, 16), torch.float32, tokens=1)
    results = []
    for left in (0.0, torch.nan):
        sums = torch.full((2, 2, 16, 16), left)
        results.append(run(kernels, inputs, sums, step_of((0, 1, 1))).clone())
        assert not sums[1].isnan().any()
    assert torch.equal(*results)


@LEVELS
@DTYPES
def test_a_state_in_bfloat16_is_rounded_after_the_last_token_of_a_row(level: str, dtype: torch.dtype) -> None:
    kernels, inputs = kernels_of(level, dtype), inputs_of((3, 24), dtype)
    narrow = inputs.state.bfloat16()
    wide = narrow.float()
    found = run(kernels, inputs, narrow, step_of(*ROWS)).clone()
    assert torch.equal(found, run(kernels, inputs, wide, step_of(*ROWS)))
    assert torch.equal(narrow, wide.bfloat16())


def test_widths_that_do_not_fit_are_an_error() -> None:
    inputs = inputs_of((2, 16), torch.float32)
    with pytest.raises(ValueError, match="for states of"):
        run(KernelSet(), replace(inputs, a=inputs.a[:, :-1]), inputs.state, step_of(*ROWS))


@LEVELS
@DTYPES
def test_columns_are_taken_as_a_matrix_of_their_own(level: str, dtype: torch.dtype) -> None:
    x = torch.randn(5, 37).to(dtype)
    found = kernels_of(level, dtype).take_columns(x, 11, 6)
    assert torch.equal(found, x[:, 11:17])
    assert found.is_contiguous()
    with pytest.raises(ValueError, match="no columns 32 to 38"):
        kernels_of(level, dtype).take_columns(x, 32, 6)


@LEVELS
@DTYPES
def test_columns_of_several_matrices_become_those_of_one(level: str, dtype: torch.dtype) -> None:
    parts = [torch.randn(5, columns).to(dtype) for columns in (11, 1, 6)]
    assert torch.equal(kernels_of(level, dtype).join_columns(parts), torch.cat(parts, 1))
    with pytest.raises((ValueError, RuntimeError), match=r"different numbers of rows|must match"):
        kernels_of(level, dtype).join_columns([*parts, parts[0][:3]])


@LEVELS
@DTYPES
def test_each_half_of_a_row_becomes_a_row_with_zeros(level: str, dtype: torch.dtype) -> None:
    x = torch.randn(5, 6).to(dtype)
    found = kernels_of(level, dtype).part_halves(x)
    assert torch.equal(found[0::2], torch.cat((x[:, :3], torch.zeros(5, 3, dtype=dtype)), 1))
    assert torch.equal(found[1::2], torch.cat((torch.zeros(5, 3, dtype=dtype), x[:, 3:]), 1))
