import math

import pytest
import torch

from stoker.engine.kernels.activation import ACTIVATIONS

from .levels import LEVEL_NAMES, assert_close, kernels_of

LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)
EVERY = pytest.mark.parametrize("activation", ACTIVATIONS)
FORMULAS = {  # in float64
    "silu": lambda x: x * torch.sigmoid(x),
    "gelu": lambda x: 0.5 * x * torch.special.erfc(-x / math.sqrt(2)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: x.clamp(min=0),
    "relu2": lambda x: x.clamp(min=0) ** 2,
}


@LEVELS
@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "width"), [(1, 1), (2, 7), (7, 100), (33, 640)])
def test_the_activated_gate_multiplies_the_second_half(level, activation, dtype, tokens, width):
    gate_up = (torch.randn(tokens, 2 * width) * 8).to(dtype)
    gate, up = gate_up.double().chunk(2, -1)
    out = kernels_of(level, dtype).activate_and_mul(gate_up, activation)
    # torch's gelu adds 1 to the error function: for negative values the error is that of 1, times 30 for both factors.
    assert_close(out, FORMULAS[activation](gate) * up, absolute=1e-6 if activation == "silu" else 2e-5)


@LEVELS
@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "width"), [(1, 1), (2, 7), (33, 640)])
def test_a_single_projection_is_activated(level, activation, dtype, tokens, width):
    x = (torch.randn(tokens, width) * 4).to(dtype)
    assert_close(kernels_of(level, dtype).activate(x, activation), FORMULAS[activation](x.double()), absolute=2e-6)


@LEVELS
@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "width"), [(1, 1), (2, 7), (33, 100)])
def test_an_activated_gate_multiplies_columns_of_a_wider_matrix(level, activation, dtype, tokens, width):
    gates = (torch.randn(tokens, width) * 4).to(dtype)
    inputs = torch.randn(tokens, 3, width).to(dtype)[:, 1]
    out = kernels_of(level, dtype).gate_inputs(gates, inputs, activation)
    assert_close(out, FORMULAS[activation](gates.double()) * inputs.double(), absolute=2e-5)


@LEVELS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "width"), [(1, 1), (2, 7), (33, 640)])
def test_gates_and_ups_are_limited_in_place(level, dtype, tokens, width):
    gate_up = (torch.randn(tokens, 2 * width) * 3).to(dtype)
    gate_up[0, 0] = torch.nan
    gate, up = gate_up.clone().chunk(2, -1)
    out = kernels_of(level, dtype, threads=2).limit_gates(gate_up, 1.5)
    assert out is gate_up
    assert torch.equal(out.nan_to_num(), torch.cat((gate.clamp(max=1.5), up.clamp(-1.5, 1.5)), 1).nan_to_num())
    assert out[0, 0].isnan()


@LEVELS
@EVERY
def test_large_gates_saturate(level, activation):
    """exp overflows float32 above 88: the gate must saturate, not become NaN."""
    gates = torch.tensor([[-1e18, -200.0, -89.0, 0.0, 89.0, 200.0]])
    expected = torch.tensor([[0.0, 0.0, 0.0, 0.0, 89.0, 200.0]])
    if activation == "relu2":
        expected = expected.square()
    kernels = kernels_of(level, torch.float32)
    out = kernels.activate_and_mul(torch.cat((gates, torch.ones(1, 6)), -1), activation)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(kernels.activate(gates, activation), expected, rtol=1e-6, atol=1e-6)


def test_the_numbers_of_activations_are_those_of_the_kernels():
    """cpu/elementwise.cpp numbers them in this order."""
    assert ACTIVATIONS == ("silu", "gelu", "gelu_tanh", "relu", "relu2")
