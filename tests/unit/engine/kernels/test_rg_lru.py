"""The real-gated linear recurrent unit."""

from __future__ import annotations

import pytest
import torch
from transformers import RecurrentGemmaConfig
from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRglru

from stoker.engine.kernels import KernelSet, RgLruWeights

from .levels import BEST, kernels_of
from .state_ops import DTYPES, LEVELS, SIZES, Inputs, StateOp, Step, step_of

CHANNELS = [3, 64, 100]
BY_TOKEN = "x", "input_gates", "decay_gates"


def inputs_of(channels: int, dtype: torch.dtype, tokens: int = sum(SIZES)) -> Inputs:
    torch.manual_seed(channels)
    given = {name: torch.randn(tokens, channels).to(dtype) for name in BY_TOKEN}
    weights = RgLruWeights(-3 * torch.rand(channels), torch.randn(channels), torch.randn(channels))
    return given | {"weights": weights, "state": torch.randn(6, channels)}


def in_float64(inputs: Inputs, state: torch.Tensor, is_new: bool) -> torch.Tensor:
    """The outputs of one sequence, by the formulas of the paper; `state` [channels] is changed."""
    x, input_gates, decay_gates = (inputs[name].double() for name in BY_TOKEN)
    weights, outputs = inputs["weights"], torch.empty_like(x)
    decays = torch.exp(weights.rates.double() * torch.sigmoid(decay_gates + weights.decay_bias))
    scaled = x * torch.sigmoid(input_gates + weights.input_bias)
    for token in range(len(x)):
        scale = 1 if is_new and not token else (1 - decays[token].square()).sqrt()
        state.mul_(decays[token]).add_(scale * scaled[token])
        outputs[token] = state
    return outputs


def call(kernels: KernelSet, inputs: Inputs, state: torch.Tensor, step: Step) -> torch.Tensor:
    return kernels.rg_lru(*(inputs[name] for name in BY_TOKEN), inputs["weights"], state, step)


UNIT = StateOp(call, BY_TOKEN)


@LEVELS
@DTYPES
@pytest.mark.parametrize("channels", CHANNELS)
def test_the_unit_is_that_of_the_paper(level: str, dtype: torch.dtype, channels: int) -> None:
    found = UNIT.compare(kernels_of(level, dtype), inputs_of(channels, dtype), in_float64, absolute=3e-6, of_state=3e-6)
    assert found.dtype == dtype


@LEVELS
@DTYPES
def test_results_depend_neither_on_the_batch_nor_on_the_division_into_steps(level: str, dtype: torch.dtype) -> None:
    UNIT.check_in_any_batch(level, dtype, inputs_of(100, dtype))


@LEVELS
def test_a_new_sequence_begins_with_zeros_whatever_its_slot_holds(level: str) -> None:
    UNIT.check_new_sequence(kernels_of(level, torch.float32), inputs_of(100, torch.float32, tokens=1))


@LEVELS
def test_a_gate_that_is_closed_keeps_the_state(level: str) -> None:
    """1 - a^2 must not be below 0, of which there is no root."""
    inputs = inputs_of(64, torch.float32, tokens=1)
    inputs["weights"] = RgLruWeights(torch.full((64,), -1e-9), torch.zeros(64), torch.full((64,), -50.0))
    state = torch.ones(1, 64)
    torch.testing.assert_close(
        UNIT.run(kernels_of(level, torch.float32), inputs, state, step_of((4, 1, 0)))[0], state[0]
    )
    torch.testing.assert_close(state, torch.ones(1, 64), atol=1e-3, rtol=0.0)


@LEVELS
@DTYPES
def test_a_state_in_bfloat16_is_rounded_after_the_last_token_of_a_row(level: str, dtype: torch.dtype) -> None:
    UNIT.check_narrow_state(kernels_of(level, dtype), inputs_of(100, dtype))


def test_widths_that_do_not_fit_are_refused() -> None:
    inputs = inputs_of(100, torch.float32)
    for level in ("torch", BEST):
        for name in BY_TOKEN:
            with pytest.raises(ValueError, match="for states of"):
                UNIT.run(
                    kernels_of(level, torch.float32), inputs | {name: inputs[name][:, :-1]}, inputs["state"], step_of()
                )


@torch.inference_mode()
def test_the_unit_is_that_of_transformers() -> None:
    torch.manual_seed(0)
    theirs = RecurrentGemmaRglru(RecurrentGemmaConfig(num_attention_heads=2, lru_width=12, hidden_size=12))
    for parameter in theirs.parameters():
        parameter.normal_()
    x = torch.randn(5, 12)
    expected = theirs(x[None], torch.arange(5)[None])[0]
    heads, kernels = x.view(5, 2, 6), KernelSet()
    gates = (kernels.expand_values(heads, each) for each in (theirs.input_gate_weight, theirs.recurrent_gate_weight))
    rates = -8 * torch.nn.functional.softplus(theirs.recurrent_param)
    weights = RgLruWeights(rates, theirs.input_gate_bias.flatten(), theirs.recurrent_gate_bias.flatten())
    found = kernels.rg_lru(x, *gates, weights, torch.empty(1, 12), step_of((0, 5, 0)))
    torch.testing.assert_close(found, expected)
