"""Routing and layers of experts, compared with their references."""

from __future__ import annotations

import pytest
import torch

from stoker.engine.kernels.experts import (
    ExpertGate,
    ExpertWeights,
    expert_gate_reference,
    experts_reference,
    pack_experts_reference,
)
from stoker.engine.kernels.route_experts import Routing, route_experts_reference

pytest.importorskip("triton")
from stoker.engine.kernels.gpu.experts import experts_gpu, pack_experts_gpu
from stoker.engine.kernels.gpu.route_experts import route_experts_gpu

from .batches import ALL_DTYPES, DTYPES, LIMITS, memory_of_nan

SILU = ExpertGate("silu")
GATES = [
    SILU,
    ExpertGate("gelu_tanh"),
    ExpertGate("clamped_swiglu", alpha=1.702, limit=0.8),
    ExpertGate("clamped_swiglu", alpha=1.0, limit=0.8, offset=0.0),
    ExpertGate("relu2", has_gates=False),
]
ROUTINGS = {
    "softmax": Routing(40, 6),
    "renormalised": Routing(7, 2, renormalises=True),
    "chosen": Routing(33, 5, "softmax_of_chosen"),
    "sigmoid": Routing(40, 8, "sigmoid", renormalises=True, scale=2.5),
    "groups by maximum": Routing(40, 6, scale=16.0, num_groups=8, groups_per_token=3),
    "groups by two": Routing(
        48, 8, "sigmoid", renormalises=True, num_groups=6, groups_per_token=3, group_score="sum_of_two"
    ),
    "groups of one": Routing(5, 2, "sigmoid", num_groups=5, groups_per_token=3, group_score="sum_of_two"),
    "all": Routing(4, 4),
    "sparse mixer": Routing(40, 3, "sparse_mixer", scale=2.0, tolerance=0.3),
}


@ALL_DTYPES
@pytest.mark.parametrize("name", ROUTINGS)
def test_route_experts(device, dtype, name):
    routing = ROUTINGS[name]
    logits = torch.randperm(5 * routing.num_experts).view(5, -1) / 16 - 4 - 3 * torch.arange(5)[:, None]
    logits = logits.to(device=device, dtype=dtype)  # in the last rows, of 40 experts all are negative
    bias = torch.randn(routing.num_experts, device=device) if routing.scoring == "sigmoid" else None
    ids, weights = route_experts_gpu(logits, bias, routing)
    expected_ids, expected = route_experts_reference(logits, bias, routing)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)


def test_of_equal_scores_the_lower_index_is_chosen(device):
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0, 1.0, 1.0, 2.0], [3.0] * 7, [-torch.inf] * 6 + [0.0]], device=device)
    expected = [[1, 3, 6, 2], [0, 1, 2, 3], [6, 0, 1, 2]]
    for scoring in ("softmax", "sigmoid", "softmax_of_chosen"):
        assert route_experts_gpu(logits, None, Routing(7, 4, scoring))[0].tolist() == expected
    grouped = Routing(6, 3, num_groups=3, groups_per_token=2)
    logits = torch.tensor([[1.0] * 6, [1.0, 5.0, 0.0, 0.0, 5.0, 6.0]], device=device)
    assert route_experts_gpu(logits, None, grouped)[0].tolist() == [[0, 1, 2], [5, 1, 4]]


def test_a_row_of_nan_chooses_experts_that_exist(device):
    logits = torch.full((2, 40), torch.nan, device=device)
    logits[1, 7:] = 1.0
    for routing in (ROUTINGS["softmax"], ROUTINGS["groups by maximum"], ROUTINGS["sparse mixer"]):
        ids, weights = route_experts_gpu(logits, None, routing)
        assert ids.min() >= 0
        assert ids.max() < 40
        assert weights[0].isnan().all()


def layer(device, dtype, count, hidden, inner, gate, has_bias=False):
    """The same experts for the kernel and for the reference."""

    def scaled(*shape):
        return (torch.randn(*shape, device=device) / shape[-1] ** 0.5).to(dtype)

    first = 2 * inner if gate.has_gates else inner
    experts = [
        ExpertWeights(
            scaled(first, hidden),
            scaled(hidden, inner),
            scaled(first) if has_bias else None,
            scaled(hidden) if has_bias else None,
        )
        for _ in range(count)
    ]
    return pack_experts_gpu(iter(experts), count, gate, None), pack_experts_reference(experts, count, gate, None)


def choose(device, tokens, num_experts, per_token):
    ids = torch.stack([torch.randperm(num_experts)[:per_token] for _ in range(tokens)]).int().to(device)
    return ids, torch.rand(tokens, per_token, device=device)


@ALL_DTYPES
@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.kind)
@pytest.mark.parametrize(("tokens", "count", "per_token"), [(1, 3, 2), (7, 5, 3), (40, 2, 1)])
@pytest.mark.parametrize("has_more", [False, True])
@pytest.mark.quick_cases(2, has_more=[True])
def test_experts(device, dtype, gate, tokens, count, per_token, has_more):
    """Fewer rows than a tile, several tiles of an expert, experts without rows; biases and shared experts."""
    hidden, inner = 72, 40
    packed, expected = layer(device, dtype, count, hidden, inner, gate, has_more)
    x, (ids, weights) = torch.randn(tokens, hidden, device=device).to(dtype), choose(device, tokens, count, per_token)
    base, base_gate = (
        torch.randn(tokens, width, device=device).to(dtype) if has_more else None for width in (hidden, 1)
    )
    limit = LIMITS[dtype] * (2 if gate.kind == "relu2" else 1)  # the square doubles the error of a rounding
    torch.testing.assert_close(
        experts_gpu(x, ids, weights, packed, base, base_gate),
        experts_reference(x, ids, weights, expected, base, base_gate),
        atol=limit,
        rtol=limit,
    )


@pytest.mark.slow
@DTYPES
def test_more_rows_than_are_sorted_at_once(device, dtype):
    packed, expected = layer(device, dtype, 3, 16, 16, SILU)
    x, (ids, weights) = torch.randn(600, 16, device=device).to(dtype), choose(device, 600, 3, 2)
    limit = LIMITS[dtype]
    found = experts_gpu(x, ids, weights, packed)
    torch.testing.assert_close(found, experts_reference(x, ids, weights, expected), atol=limit, rtol=limit)


def test_a_row_has_the_same_bits_in_any_batch_of_one_tile(device):
    """The sum has the order of the token's choice.

    Triton's interpreter multiplies with numpy, some of whose kernels add
    in an order that depends on the place of a row."""
    error = 0 if device.type == "cuda" else 1e-6
    packed, _ = layer(device, torch.float32, 4, 32, 32, SILU)
    x, (ids, weights) = torch.randn(9, 32, device=device), choose(device, 9, 4, 3)
    whole = experts_gpu(x, ids, weights, packed)
    for token in (0, 5, 8):
        part = slice(token, token + 1)
        found = experts_gpu(x[part], ids[part], weights[part], packed)
        torch.testing.assert_close(found, whole[part], atol=error, rtol=error)


def test_an_expert_that_does_not_exist_adds_nothing(device):
    """Kernels do not raise: requests are checked."""
    packed, expected = layer(device, torch.float32, 3, 16, 16, SILU)
    x = torch.randn(4, 16, device=device)
    ids = torch.tensor([[0, 3], [-1, 2], [7, -9], [1, 2]], dtype=torch.int32, device=device)
    weights = torch.rand(4, 2, device=device)
    is_known = (ids >= 0) & (ids < 3)
    reference = experts_reference(x, ids.clamp(0, 2), weights * is_known, expected)
    with memory_of_nan():  # outputs that are not computed
        found = experts_gpu(x, ids, weights, packed)
    torch.testing.assert_close(found, reference, atol=1e-5, rtol=1e-5)


def test_no_tokens_and_shapes_that_do_not_fit(device):
    packed, _ = layer(device, torch.float32, 3, 16, 16, SILU)
    ids, weights = choose(device, 2, 3, 2)
    assert experts_gpu(torch.empty(0, 16, device=device), ids[:0], weights[:0], packed).shape == (0, 16)
    with pytest.raises(ValueError, match=r"x is \(2, 8\)"):
        experts_gpu(torch.zeros(2, 8, device=device), ids, weights, packed)
    with pytest.raises(ValueError, match="logits of 9 experts, not of 8"):
        route_experts_gpu(torch.zeros(1, 9, device=device), None, Routing(8, 2))


def test_quantised_experts_are_computed_by_torch(device):
    if device.type != "cpu":
        pytest.skip("quantised on the host")
    experts = [ExpertWeights(torch.randn(32, 32), torch.randn(32, 16)) for _ in range(2)]
    packed = pack_experts_gpu(iter(experts), 2, SILU, "int8")
    x, (ids, weights) = torch.randn(3, 32), choose(device, 3, 2, 1)
    assert packed.gate_ups is None
    assert torch.equal(experts_gpu(x, ids, weights, packed), experts_reference(x, ids, weights, packed))


def test_the_gates_keep_nan():
    values = torch.tensor([[torch.nan, 1.0], [1.0, torch.nan]])
    for gate in GATES:
        assert expert_gate_reference(values, gate).isnan().sum() == 2
