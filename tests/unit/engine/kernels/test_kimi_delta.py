"""Kimi Delta Attention: the gated delta rule with a decay for each row of the state."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from stoker.engine.kernels import KernelSet, KimiDeltaWeights

from .levels import kernels_of
from .state_ops import DTYPES, LEVELS, ROWS, Inputs, StateOp, Step, step_of

SHAPES = [(1, 3), (3, 24), (2, 128)]
BY_TOKEN = "mixed", "projected", "a", "z"


def inputs_of(shape: tuple[int, int], dtype: torch.dtype, tokens: int = 56, least_log: float | None = None) -> Inputs:
    heads, size = shape
    torch.manual_seed(sum(shape))
    mixed, a, z = (torch.randn(tokens, count * heads * size).to(dtype) for count in (3, 1, 1))
    weights = KimiDeltaWeights(
        torch.randn(heads), 2 * torch.randn(heads * size), 1 + 0.1 * torch.randn(size), 1e-6, least_log
    )
    projected = torch.randn(tokens, 7 + heads).to(dtype)
    given = dict(zip(BY_TOKEN, (mixed, projected, a, z), strict=True))
    return given | {"weights": weights, "state": torch.randn(6, heads, size, size)}


def call(kernels: KernelSet, inputs: Inputs, state: torch.Tensor, step: Step) -> torch.Tensor:
    return kernels.kimi_delta(*(inputs[name] for name in BY_TOKEN), inputs["weights"], state, step)


RULE = StateOp(call, BY_TOKEN)


def in_float64(inputs: Inputs, state: torch.Tensor, _: bool) -> torch.Tensor:
    """Of one sequence, by the formulas of the paper; `state` [heads, size, size] is changed."""
    heads, size, _ = state.shape
    weights = inputs["weights"]
    q, k, v = inputs["mixed"].double().chunk(3, 1)
    rows = []
    for token in range(len(q)):
        row = []
        for head in range(heads):
            own = slice(head * size, (head + 1) * size)
            query, key = (x[token, own] / (x[token, own].square().sum() + 1e-6).sqrt() for x in (q, k))
            steps = inputs["a"][token, own].double() + weights.dt_bias[own]
            rate, least = weights.a_log[head].double().exp(), weights.least_log
            log = -rate * F.softplus(steps) if least is None else least * (rate * steps).sigmoid()
            decayed = torch.exp(log)[:, None] * state[head]
            beta = inputs["projected"][token, head - heads].double().sigmoid()
            state[head] = decayed + torch.outer(key, (v[token, own] - key @ decayed) * beta)
            out = query @ state[head] / math.sqrt(size)
            out = out * torch.rsqrt(out.square().mean() + weights.eps) * weights.norm
            row.append(out * inputs["z"][token, own].double().sigmoid())
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
    RULE.compare(kernels_of(level, dtype), inputs, in_float64, absolute=2e-4, of_state=2e-5)


@LEVELS
@DTYPES
@pytest.mark.parametrize("shape", SHAPES[1:])
@pytest.mark.quick_cases(5)
def test_results_depend_neither_on_the_batch_nor_on_the_division_into_steps(
    level: str, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    RULE.check_in_any_batch(level, dtype, inputs_of(shape, dtype))


@LEVELS
def test_a_new_sequence_begins_with_zeros_whatever_its_slot_holds(level: str) -> None:
    RULE.check_new_sequence(kernels_of(level, torch.float32), inputs_of((2, 16), torch.float32, tokens=1))


@LEVELS
@DTYPES
def test_a_state_in_bfloat16_is_rounded_after_the_last_token_of_a_row(level: str, dtype: torch.dtype) -> None:
    RULE.check_narrow_state(kernels_of(level, dtype), inputs_of((3, 24), dtype))


def test_widths_that_do_not_fit_are_an_error() -> None:
    inputs = inputs_of((2, 16), torch.float32)
    with pytest.raises(ValueError, match="for states of"):
        RULE.run(KernelSet(), inputs | {"a": inputs["a"][:, :-1]}, inputs["state"], step_of(*ROWS))


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
