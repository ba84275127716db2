"""Ops with a state per sequence: the convolution over the last tokens and the gated delta rule."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F

from stoker.engine.kernels import GatedDeltaWeights, KernelSet
from stoker.engine.kernels.causal_convolution import KINDS, Kind
from stoker.model.mixers import GateActivation

from .levels import assert_close, kernels_of
from .state_ops import DTYPES, LEVELS, ROWS, SIZES, Inputs, StateOp, Step, step_of

# ---- the convolution


def convolution_inputs(
    channels: int, width: int, kind: Kind, dtype: torch.dtype, tokens: int = 56
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, with further columns for silu; taps, bias, state."""
    torch.manual_seed(channels + width)
    x = torch.randn(tokens, 3 * channels if kind == "gated" else channels + 5).to(dtype)
    return x, torch.randn(width, channels), torch.randn(channels), torch.randn(6, width - 1, channels).to(dtype)


def convolved(x: torch.Tensor, taps: torch.Tensor, bias: torch.Tensor, past: torch.Tensor, kind: Kind) -> torch.Tensor:
    """torch's convolution in float64, of one sequence."""
    channels = taps.shape[1]
    gate, after, given = x.split(channels, 1) if kind == "gated" else (None, None, x[:, :channels])
    inputs = torch.cat((past, given if gate is None else gate * given)).double()
    summed = F.conv1d(inputs.T[None], taps.double().T[:, None], bias.double(), groups=channels)[0].T
    if after is not None:
        return summed * after.double()
    return F.silu(summed) if kind == "silu" else summed


@LEVELS
@DTYPES
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("channels", "width"), [(7, 2), (100, 4), (192, 3)])
def test_the_convolution_is_that_of_the_whole_sequence(
    level: str, dtype: torch.dtype, kind: Kind, channels: int, width: int
) -> None:
    x, taps, bias, state = convolution_inputs(channels, width, kind, dtype)
    before = state.clone()
    step = step_of(*ROWS)
    found = kernels_of(level, dtype).causal_convolution(x, taps, bias, state, step, kind)
    for (computed, count, slot), part, own in zip(ROWS, x.split(SIZES), found.split(SIZES), strict=True):
        past = before[slot] if computed else torch.zeros_like(before[slot])
        assert_close(own, convolved(part, taps, bias, past, kind), absolute=2e-6 * width)
        inputs = part[:, :channels] * part[:, 2 * channels :] if kind == "gated" else part[:, :channels]
        assert torch.equal(state[slot], torch.cat((past, inputs))[count:])
    assert torch.equal(state[[3, 5]], before[[3, 5]])  # of other sequences


# ---- the gated delta rule


def delta_inputs(shape: tuple[int, int, int, int], dtype: torch.dtype, tokens: int = 56) -> Inputs:
    key_heads, heads, key_dim, value_dim = shape
    torch.manual_seed(sum(shape))
    channels = 2 * key_heads * key_dim + heads * value_dim
    return {
        "mixed": torch.randn(tokens, channels).to(dtype),
        "projected": torch.randn(tokens, channels + heads * value_dim + 2 * heads).to(dtype),
        "weights": GatedDeltaWeights(
            torch.randn(heads), torch.randn(heads), 1 + 0.1 * torch.randn(value_dim), 1e-6, beta_scale=1.5
        ),
        "state": torch.randn(6, heads, key_dim, value_dim),
    }


def delta_in_float64(inputs: Inputs, key_heads: int, state: torch.Tensor) -> torch.Tensor:
    """Of one sequence, by the formulas of the paper; `state` [heads, key_dim, value_dim] is changed."""
    heads, key_dim, value_dim = state.shape
    mixed, weights = inputs["mixed"].double(), inputs["weights"]
    q, k, v = mixed.split([key_heads * key_dim] * 2 + [heads * value_dim], 1)
    z, b, a = inputs["projected"].double()[:, mixed.shape[1] :].split([heads * value_dim, heads, heads], 1)
    rows = []
    for token in range(len(mixed)):
        row = []
        for head in range(heads):
            own = slice(head // (heads // key_heads) * key_dim, (head // (heads // key_heads) + 1) * key_dim)
            columns = slice(head * value_dim, (head + 1) * value_dim)
            query, key = (x[token, own] / (x[token, own].square().sum() + 1e-6).sqrt() for x in (q, k))
            rate = weights.a_log[head].double().exp() * F.softplus(a[token, head] + weights.dt_bias[head])
            decayed = state[head] * torch.exp(-rate)
            change = (v[token, columns] - key @ decayed) * b[token, head].sigmoid() * weights.beta_scale
            state[head] = decayed + torch.outer(key, change)
            out = query @ state[head] / math.sqrt(key_dim)
            out = out * torch.rsqrt(out.square().mean() + weights.eps) * weights.norm
            gate = z[token, columns]
            row.append(out * (F.silu(gate) if weights.gate == "silu" else gate.sigmoid()))
        rows.append(torch.cat(row))
    return torch.stack(rows)


def call(kernels: KernelSet, inputs: Inputs, state: torch.Tensor, step: Step) -> torch.Tensor:
    return kernels.gated_delta(inputs["mixed"], inputs["projected"], inputs["weights"], state, step)


RULE = StateOp(call, ("mixed", "projected"))
SHAPES = [(1, 1, 8, 3), (2, 4, 24, 20), (1, 2, 128, 128), (2, 2, 16, 100)]


@LEVELS
@DTYPES
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gate", get_args(GateActivation))
@pytest.mark.quick_cases(6)
def test_the_rule_is_that_of_the_paper(
    level: str, dtype: torch.dtype, shape: tuple[int, int, int, int], gate: GateActivation
) -> None:
    inputs = delta_inputs(shape, dtype)
    inputs["weights"] = replace(inputs["weights"], gate=gate)
    RULE.compare(
        kernels_of(level, dtype),
        inputs,
        lambda part, state, _: delta_in_float64(part, shape[0], state),
        # The norm divides by the size of an output, which may be small where terms of the sum cancel.
        absolute=2e-4,
        of_state=2e-5,
    )


# ---- both


@LEVELS
@DTYPES
@pytest.mark.parametrize("shape", SHAPES[1:3])
@pytest.mark.quick_cases(5)
def test_results_depend_neither_on_the_batch_nor_on_the_division_into_steps(
    level: str, dtype: torch.dtype, shape: tuple[int, int, int, int]
) -> None:
    """Bit for bit, with any number of threads: the rows of a batch one by one, their tokens in steps of 1, 3 and 16.

    With `model.batch_invariant`; the C++ kernels are the same without.
    """
    is_torch = level == "torch"
    kernels, inputs = kernels_of(level, dtype, threads=2, batch_invariant=is_torch), delta_inputs(shape, dtype)
    channels = inputs["mixed"].shape[1]
    _, taps, bias, past = convolution_inputs(channels, 4, "silu", dtype)

    def run(kernels: KernelSet, part: Inputs, kept: torch.Tensor, sums: torch.Tensor, step: Step) -> Any:
        mixed = kernels.causal_convolution(part["projected"], taps, bias, kept, step, "silu")
        return RULE.run(kernels, part | {"mixed": mixed}, sums, step)

    kept, sums = past.clone(), inputs["state"].clone()
    together = run(kernels, inputs, kept, sums, step_of(*ROWS)).split(SIZES)
    kernels = kernels_of(level, dtype, threads=1, batch_invariant=is_torch)
    for (computed, count, slot), part, expected in zip(ROWS, RULE.by_row(inputs), together, strict=True):
        for most in (1, 3, 16):
            own_kept, own_sums, found = past.clone(), inputs["state"].clone(), []
            for first in range(0, count, most):
                own = {name: part[name][first : first + most] for name in ("mixed", "projected")}
                step = step_of((computed + first, len(own["mixed"]), slot))
                found.append(run(kernels, part | own, own_kept, own_sums, step))
            assert torch.equal(torch.cat(found), expected)
            assert torch.equal(own_kept[slot], kept[slot])
            assert torch.equal(own_sums[slot], sums[slot])


@LEVELS
def test_a_new_sequence_begins_with_zeros_whatever_its_slot_holds(level: str) -> None:
    """Also in a step of one token per row, as of a prompt of one token."""
    kernels, inputs = kernels_of(level, torch.float32), delta_inputs((1, 2, 16, 16), torch.float32, tokens=1)
    _, taps, bias, _ = convolution_inputs(inputs["mixed"].shape[1], 4, "silu", torch.float32)
    step, results = step_of((0, 1, 1)), []
    for left in (0.0, torch.nan):
        kept, sums = torch.full((2, 3, taps.shape[1]), left), torch.full((2, 2, 16, 16), left)
        mixed = kernels.causal_convolution(inputs["projected"], taps, bias, kept, step, "silu")
        results.append(RULE.run(kernels, inputs | {"mixed": mixed}, sums, step))
        assert not kept[1].isnan().any()
        assert not sums[1].isnan().any()
    assert torch.equal(*results)


@LEVELS
@DTYPES
@pytest.mark.parametrize(("rows", "num_gates", "size"), [(1, 1, 1), (3, 7, 1), (33, 640, 1), (1, 1, 9), (5, 3, 40)])
@pytest.mark.quick_cases(8)
def test_outputs_are_multiplied_by_the_sigmoids_of_the_last_columns(
    level: str, dtype: torch.dtype, rows: int, num_gates: int, size: int
) -> None:
    """A gate for each element, or for the elements of each head."""
    torch.manual_seed(0)
    x, projected = torch.randn(rows, num_gates * size).to(dtype), (torch.randn(rows, 2 * num_gates + 3) * 8).to(dtype)
    found = kernels_of(level, dtype).gate_outputs(x, projected, num_gates)
    gates = projected[:, -num_gates:].double().sigmoid().repeat_interleave(size, 1)
    assert_close(found, x.double() * gates, absolute=1e-7)


def test_gates_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(ValueError, match="with 3 gates"):
        KernelSet().gate_outputs(torch.zeros(2, 8), torch.zeros(2, 9), 3)


@LEVELS
@DTYPES
@pytest.mark.parametrize("shape", SHAPES[1:3])
def test_a_state_in_bfloat16_is_rounded_after_the_last_token_of_a_row(
    level: str, dtype: torch.dtype, shape: tuple[int, int, int, int]
) -> None:
    RULE.check_narrow_state(kernels_of(level, dtype), delta_inputs(shape, dtype))
