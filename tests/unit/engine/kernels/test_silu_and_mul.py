import pytest
import torch

from .levels import LEVEL_NAMES, assert_close, kernels_of


@pytest.mark.parametrize("level", LEVEL_NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "width"), [(1, 1), (2, 7), (7, 100), (33, 640)])
def test_the_gate_multiplies_the_second_half(level, dtype, tokens, width):
    gate_up = (torch.randn(tokens, 2 * width) * 8).to(dtype)
    gate, up = gate_up.double().chunk(2, -1)
    out = kernels_of(level, dtype).silu_and_mul(gate_up)
    assert_close(out, gate * torch.sigmoid(gate) * up, absolute=1e-6)


@pytest.mark.parametrize("level", LEVEL_NAMES)
def test_large_gates_saturate(level):
    """exp overflows float32 above 88: the gate must saturate, not become NaN."""
    gates = torch.tensor([[-1e30, -200.0, -89.0, 0.0, 89.0, 200.0]])
    out = kernels_of(level, torch.float32).silu_and_mul(torch.cat((gates, torch.ones(1, 6)), -1))
    torch.testing.assert_close(out, torch.tensor([[0.0, 0.0, 0.0, 0.0, 89.0, 200.0]]), rtol=1e-6, atol=1e-6)
