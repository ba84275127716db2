"""The state space of Mamba-2 and the gated RMS norm of its outputs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from stoker.engine.kernels import KernelSet, RMSNormGatedWeights, StateSpaceWeights
from stoker.engine.kernels.rms_norm_gated import Gate
from stoker.model.mixers import GateNorm

from .levels import BEST, assert_close, kernels_of
from .state_ops import DTYPES, LEVELS, SIZES, Inputs, StateOp, Step, step_of

SHAPES = [(1, 3, 1, 8), (4, 20, 2, 24), (2, 64, 1, 128), (6, 100, 3, 16)]  # heads, head_dim, groups, state_size


def inputs_of(shape: tuple[int, int, int, int], dtype: torch.dtype, tokens: int = sum(SIZES)) -> Inputs:
    heads, head_dim, groups, state_size = shape
    torch.manual_seed(sum(shape))
    channels = heads * head_dim + 2 * groups * state_size
    return {
        "mixed": torch.randn(tokens, channels).to(dtype),
        "projected": torch.randn(tokens, channels + heads * head_dim + heads).to(dtype),
        "weights": StateSpaceWeights(torch.randn(heads), torch.randn(heads), torch.randn(heads)),
        "state": torch.randn(6, heads, state_size, head_dim),
    }


def in_float64(inputs: Inputs, groups: int, state: torch.Tensor) -> torch.Tensor:
    """Of one sequence, by the formulas of the paper; `state` [heads, state_size, head_dim] is changed."""
    heads, state_size, head_dim = state.shape
    mixed, weights = inputs["mixed"].double(), inputs["weights"]
    x, b, c = mixed.split([heads * head_dim, groups * state_size, groups * state_size], 1)
    steps = F.softplus(inputs["projected"][:, -heads:].double() + weights.dt_bias)
    steps = steps.clamp(weights.min_step, weights.max_step)
    rows = []
    for token in range(len(mixed)):
        row = []
        for head in range(heads):
            group = head // (heads // groups)
            own = slice(group * state_size, (group + 1) * state_size)
            x_of_head, step = x[token, head * head_dim : (head + 1) * head_dim], steps[token, head]
            state[head] *= torch.exp(-weights.a_log[head].double().exp() * step)
            state[head] += torch.outer(b[token, own], step * x_of_head)
            row.append(c[token, own] @ state[head] + weights.skip[head] * x_of_head)
        rows.append(torch.cat(row))
    return torch.stack(rows)


def call(kernels: KernelSet, inputs: Inputs, state: torch.Tensor, step: Step) -> torch.Tensor:
    return kernels.state_space(inputs["mixed"], inputs["projected"], inputs["weights"], state, step)


STATE_SPACE = StateOp(call, ("mixed", "projected"))


@LEVELS
@DTYPES
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("limits", [(0.0, math.inf), (0.4, 1.1)])
@pytest.mark.quick_cases(10)
def test_the_state_space_is_that_of_the_paper(
    level: str, dtype: torch.dtype, shape: tuple[int, int, int, int], limits: tuple[float, float]
) -> None:
    inputs = inputs_of(shape, dtype)
    inputs["weights"] = replace(inputs["weights"], min_step=limits[0], max_step=limits[1])
    found = STATE_SPACE.compare(
        kernels_of(level, dtype),
        inputs,
        lambda part, state, _: in_float64(part, shape[2], state),
        absolute=1e-4,  # sums of up to 128 products
        of_state=2e-5,
    )
    assert found.dtype == torch.float32


@LEVELS
@DTYPES
@pytest.mark.parametrize("shape", SHAPES[1:3])
def test_results_depend_neither_on_the_batch_nor_on_the_division_into_steps(
    level: str, dtype: torch.dtype, shape: tuple[int, int, int, int]
) -> None:
    STATE_SPACE.check_in_any_batch(level, dtype, inputs_of(shape, dtype))


@LEVELS
def test_a_new_sequence_begins_with_zeros_whatever_its_slot_holds(level: str) -> None:
    STATE_SPACE.check_new_sequence(kernels_of(level, torch.float32), inputs_of((2, 16, 1, 16), torch.float32, tokens=1))


def test_widths_that_do_not_fit_are_refused() -> None:
    inputs = inputs_of((4, 20, 2, 24), torch.float32)
    for level in ("torch", BEST):
        with pytest.raises(ValueError, match="for states of"):
            STATE_SPACE.run(
                kernels_of(level, torch.float32),
                inputs | {"mixed": inputs["mixed"][:, :-1]},
                inputs["state"],
                step_of(),
            )


# ---- the gate and the norm


@LEVELS
@DTYPES
@pytest.mark.parametrize("order", ["none", "before_gate", "after_gate"])
@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
@pytest.mark.parametrize(("rows", "groups", "size"), [(1, 1, 7), (3, 2, 20), (33, 3, 128)])
@pytest.mark.quick_cases(18, level=[BEST, "torch"])
def test_outputs_are_gated_and_normed_by_group(
    level: str, dtype: torch.dtype, order: GateNorm, activation: Gate, rows: int, groups: int, size: int
) -> None:
    torch.manual_seed(rows)
    width, channels = groups * size, 5
    x, projected = torch.randn(rows, width), (torch.randn(rows, channels + width + 3) * 2).to(dtype)
    weight = None if order == "none" else 1 + 0.1 * torch.randn(width)
    weights = RMSNormGatedWeights(order, weight, 1e-5, groups, activation)
    given = projected[:, channels : channels + width].double()
    gate = F.silu(given) if activation == "silu" else given.sigmoid()
    exact = x.double() * (gate if order == "after_gate" else 1)
    if weight is not None:
        parts = exact.view(rows, groups, size)
        exact = (parts / (parts.square().mean(-1, keepdim=True) + 1e-5).sqrt()).view(rows, width) * weight
    exact = exact * (1 if order == "after_gate" else gate)
    found = kernels_of(level, dtype).rms_norm_gated(x.clone(), projected, channels, weights)
    assert_close(found, exact, absolute=3e-6)


@LEVELS
def test_a_row_is_normed_as_in_any_batch(level: str) -> None:
    torch.manual_seed(0)
    x, projected = torch.randn(40, 96), torch.randn(40, 200)
    weights = RMSNormGatedWeights("after_gate", torch.randn(96), 1e-5, 3)
    kernels = kernels_of(level, torch.float32, batch_invariant=level == "torch")
    together = kernels.rms_norm_gated(x.clone(), projected, 8, weights).clone()
    for row in (0, 17, 39):
        alone = kernels.rms_norm_gated(x[row : row + 1].clone(), projected[row : row + 1], 8, weights)
        assert torch.equal(alone[0], together[row])


@LEVELS
@DTYPES
def test_a_state_in_bfloat16_is_rounded_after_the_last_token_of_a_row(level: str, dtype: torch.dtype) -> None:
    STATE_SPACE.check_narrow_state(kernels_of(level, dtype), inputs_of(SHAPES[1], dtype))
