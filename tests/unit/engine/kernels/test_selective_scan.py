"""The selective state space of Mamba, and the norms of its compressed time steps, B and C."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from stoker.engine.kernels import KernelSet, PartNormWeights, SelectiveScanWeights

from .levels import BEST, assert_close, kernels_of
from .state_ops import DTYPES, LEVELS, SIZES, Inputs, StateOp, Step, step_of

SHAPES = [(3, 1, 1), (64, 16, 1), (100, 16, 1), (200, 24, 2)]  # channels, state_size, groups of channels
BY_TOKEN = "x", "projected", "steps", "b", "c"


def inputs_of(shape: tuple[int, int, int], dtype: torch.dtype, tokens: int = sum(SIZES)) -> Inputs:
    channels, state_size, groups = shape
    torch.manual_seed(sum(shape))
    widths = channels, 2 * channels, channels, groups * state_size, groups * state_size
    given = {name: torch.randn(tokens, width).to(dtype) for name, width in zip(BY_TOKEN, widths, strict=True)}
    rates = -torch.rand(state_size, channels) * 3
    weights = SelectiveScanWeights(rates, torch.randn(channels), torch.randn(channels))
    return given | {"weights": weights, "state": torch.randn(6, state_size, channels)}


def in_float64(inputs: Inputs, state: torch.Tensor, _: bool) -> torch.Tensor:
    """Of one sequence, channel by channel, by the formulas of the paper; `state` [state_size, channels] is changed."""
    x, projected, steps, b, c = (inputs[name].double() for name in BY_TOKEN)
    weights, channels = inputs["weights"], x.shape[1]
    rates = weights.rates.double()
    outputs = torch.empty_like(x)
    for channel in range(channels):
        first = channel * (b.shape[1] // len(rates)) // channels * len(rates)  # of the group's keys
        keys = slice(first, first + len(rates))
        own = state[:, channel].clone()
        for token in range(len(x)):
            step = F.softplus(steps[token, channel] + weights.dt_bias[channel])
            own = torch.exp(rates[:, channel] * step) * own + step * b[token, keys] * x[token, channel]
            outputs[token, channel] = own @ c[token, keys] + weights.skip[channel] * x[token, channel]
        state[:, channel] = own
    return outputs * F.silu(projected[:, channels:])


def call(kernels: KernelSet, inputs: Inputs, state: torch.Tensor, step: Step) -> torch.Tensor:
    return kernels.selective_scan(*(inputs[name] for name in BY_TOKEN), inputs["weights"], state, step)


SCAN = StateOp(call, BY_TOKEN)


@LEVELS
@DTYPES
@pytest.mark.parametrize("shape", SHAPES)
def test_the_scan_is_that_of_the_paper(level: str, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    found = SCAN.compare(kernels_of(level, dtype), inputs_of(shape, dtype), in_float64, absolute=3e-5, of_state=2e-5)
    assert found.dtype == dtype


@LEVELS
@DTYPES
@pytest.mark.parametrize("shape", SHAPES[1::2])
def test_results_depend_neither_on_the_batch_nor_on_the_division_into_steps(
    level: str, dtype: torch.dtype, shape: tuple[int, int, int]
) -> None:
    SCAN.check_in_any_batch(level, dtype, inputs_of(shape, dtype))


@LEVELS
def test_a_new_sequence_begins_with_zeros_whatever_its_slot_holds(level: str) -> None:
    SCAN.check_new_sequence(kernels_of(level, torch.float32), inputs_of(SHAPES[2], torch.float32, tokens=1))


@LEVELS
def test_small_and_large_time_steps_are_exact(level: str) -> None:
    """log(1 + exp(x)) loses every digit of a small one; a large one makes the state forget."""
    steps = torch.tensor([[-100.0, -15.0, -1.0, 0.0, 0.3, 25.0, 200.0]])
    one, zero = torch.ones(1, 7), torch.zeros(7)
    inputs = {"x": one, "projected": torch.full((1, 14), 30.0), "steps": steps, "b": one[:, :1], "c": one[:, :1]}
    inputs |= {"weights": SelectiveScanWeights(-one, zero, zero)}
    found = SCAN.run(kernels_of(level, torch.float32), inputs, torch.zeros(1, 1, 7), step_of((0, 1, 0)))
    expected = torch.log1p(torch.exp(steps.double().clamp(max=50))) + (steps.double() - 50).clamp(min=0)
    torch.testing.assert_close(found.double() / 30, expected, rtol=5e-7, atol=1e-42)


@LEVELS
@DTYPES
def test_a_state_in_bfloat16_is_rounded_after_the_last_token_of_a_row(level: str, dtype: torch.dtype) -> None:
    SCAN.check_narrow_state(kernels_of(level, dtype), inputs_of(SHAPES[2], dtype))


def test_widths_that_do_not_fit_are_refused() -> None:
    inputs = inputs_of(SHAPES[2], torch.float32)
    for level in ("torch", BEST):
        for name in BY_TOKEN:
            with pytest.raises(ValueError, match="for states of"):
                SCAN.run(
                    kernels_of(level, torch.float32), inputs | {name: inputs[name][:, :-1]}, inputs["state"], step_of()
                )


# ---- the norms


@LEVELS
@DTYPES
@pytest.mark.parametrize("kind", ["none", "bare", "weighted"])
@pytest.mark.parametrize(("rows", "sizes"), [(1, (7, 3, 3)), (33, (160, 16, 16))])
def test_each_part_is_normed_by_itself(
    level: str, dtype: torch.dtype, kind: str, rows: int, sizes: tuple[int, int, int]
) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, sum(sizes)).to(dtype)
    gains = torch.randn(sum(sizes)) if kind == "weighted" else None
    found = kernels_of(level, dtype).norm_parts(x, PartNormWeights(sizes, kind != "none", gains, 1e-2))
    for index, (own, part) in enumerate(zip(found, x.double().split(sizes, 1), strict=True)):
        if kind != "none":
            part = part / (part.square().mean(-1, keepdim=True) + 1e-2).sqrt()
        if gains is not None:
            part = part * gains.split(sizes)[index]
        assert own.dtype == dtype
        assert_close(own, part, absolute=2e-6)


def test_columns_that_are_not_of_the_parts_are_refused() -> None:
    for level in ("torch", BEST):
        with pytest.raises(ValueError, match="for parts of"):
            kernels_of(level, torch.float32).norm_parts(torch.zeros(2, 9), PartNormWeights((4, 2, 2), False))
