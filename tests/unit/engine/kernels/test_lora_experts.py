"""Layers of experts with adapters, compared bit by bit with linear layers and their deltas, and with the formula."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from stoker.engine.kernels import KernelSet
from stoker.engine.kernels.experts import ExpertGate, ExpertWeights, PackedExperts, expert_gate_reference
from stoker.engine.kernels.lora_add import LoraLayer, LoraWeights, in_panels
from stoker.engine.kernels.lora_experts import ExpertLora, LoraExperts, adapted_experts_reference

from .levels import LEVEL_NAMES, assert_close, kernels_of
from .test_experts import choose, random_experts
from .test_lora_add import Rows

LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)
# Experts in float32 are computed by torch at the level `portable`.
OURS = pytest.mark.parametrize("level", [each for each in LEVEL_NAMES[1:] if each != "portable"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
CPU = torch.device("cpu")
HIDDEN = 96
SLOTS = 3


def matrices(ranks: tuple[int, ...], widths: tuple[int, ...], depth: int, dtype: torch.dtype) -> LoraWeights:
    first = tuple(sum(ranks[:part]) for part in range(len(ranks)))
    a = (torch.randn(sum(ranks), depth) / depth**0.5).to(dtype)
    b = tuple(in_panels(torch.randn(width, rank).to(dtype)) for rank, width in zip(ranks, widths, strict=True))
    return LoraWeights(a, first, b)


def adapters_of(count: int, inner: int, dtype: torch.dtype, *, has_gates: bool = True) -> LoraExperts:
    """Slot 0 changes all products, slot 1 the ups of one expert and the downs of another; slot 2 is empty."""
    layer = LoraExperts(count, HIDDEN, inner, SLOTS, CPU, has_gates=has_gates)
    widths = layer.gate_up_widths
    every = {
        expert: ExpertLora(
            matrices((5, 16)[: len(widths)], widths, HIDDEN, dtype), matrices((9,), (HIDDEN,), inner, dtype)
        )
        for expert in range(count)
    }
    layer.place(0, every)
    ups = matrices((0, 3)[-len(widths) :], widths, HIDDEN, dtype)
    downs = matrices((2,), (HIDDEN,), inner, dtype)
    layer.place(1, {1: ExpertLora(ups, None), 2: ExpertLora(None, downs)})
    return layer


def one_by_one(
    kernels: KernelSet,
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    packed: PackedExperts,
    slots: torch.Tensor,
    layer: LoraExperts,
) -> torch.Tensor:
    """The sum of the outputs of experts, each computed by linear layers and lora_add."""
    total = torch.zeros(x.shape)
    for expert in range(layer.num_experts):
        tokens, places = (ids == expert).nonzero(as_tuple=True)
        if not len(tokens):
            continue
        own, rows = packed.experts[expert], Rows.of(slots[tokens].tolist(), SLOTS)
        loras = LoraLayer(layer.gate_up_widths, HIDDEN, SLOTS, CPU), LoraLayer((HIDDEN,), layer.inner, SLOTS, CPU)
        for slot, by_expert in enumerate(layer.slots):
            found = by_expert.get(expert, ExpertLora(None, None))
            loras[0].place(slot, found.gate_up)
            loras[1].place(slot, found.down)
        gate_up = in_order(kernels.linear(x[tokens], own.gate_up), layer)
        kernels.lora_add(x[tokens], gate_up, rows, loras[0])
        gated = expert_gate_reference(gate_up, packed.gate)
        padded = F.pad(gated, (0, own.down.in_features - layer.inner))
        out = kernels.linear(padded, own.down)
        kernels.lora_add(gated, out, rows, loras[1])
        total.index_add_(0, tokens, out.float() * weights[tokens, places, None])
    return total.to(x.dtype)


def in_order(gate_up: torch.Tensor, layer: LoraExperts) -> torch.Tensor:
    """Gates, then ups, of a product whose panels of both are in turns, without padding."""
    parts = len(layer.gate_up_widths)
    split = gate_up.unflatten(1, (-1, parts, 16)).transpose(1, 2).flatten(2)[:, :, : layer.inner]
    return split.flatten(1).contiguous()


def random_step(tokens: int, num_experts: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ids, weights = choose(tokens, num_experts, 2)
    return torch.randn(tokens, HIDDEN).to(dtype), ids, weights


@LEVELS
@DTYPES
@pytest.mark.parametrize("scheme", [None, "int8", "int4"])
@pytest.mark.parametrize(("tokens", "inner"), [(1, 64), (9, 128), (9, 40), (90, 64)])
@pytest.mark.quick_cases(6)
def test_each_row_has_the_deltas_of_its_adapter(level, dtype, scheme, tokens, inner):
    """The products are those of linear layers, to which lora_add adds; only the activation is rounded differently."""
    kernels = kernels_of(level, dtype, threads=2)
    packed = kernels.pack_experts(iter(random_experts(4, HIDDEN, inner, dtype)), 4, ExpertGate("silu"), scheme)
    layer = adapters_of(4, inner, dtype)
    x, ids, weights = random_step(tokens, 4, dtype)
    slots = torch.randint(-1, SLOTS, (tokens,)).int()
    out = kernels.adapted_experts(x, ids, weights, packed, None, None, slots, layer)
    if packed.gate_ups is None:  # torch computes it
        expected = adapted_experts_reference(x, ids, weights, packed, None, None, slots, layer)
    else:
        expected = one_by_one(kernels, x, ids, weights, packed, slots, layer)
    assert_close(out, expected.double(), absolute=1e-4 if dtype == torch.float32 else 2**-4)
    plain = kernels.experts(x, ids, weights, packed, None, None)
    is_base = slots < 0
    assert torch.equal(out[is_base], plain[is_base])
    if tokens > 1:
        assert not torch.equal(out[slots == 0], plain[slots == 0])


@LEVELS
@DTYPES
@pytest.mark.parametrize(
    "gate", [ExpertGate("clamped_swiglu", limit=1.5), ExpertGate("relu2", has_gates=False)], ids=["clamped", "ungated"]
)
def test_gates_of_every_kind_and_shared_experts(level, dtype, gate):
    inner = 64
    kernels = kernels_of(level, dtype, threads=2)
    experts = random_experts(3, HIDDEN, inner, dtype, has_bias=True)
    if not gate.has_gates:
        experts = [
            ExpertWeights(each.gate_up[:inner], each.down, each.gate_up_bias[:inner], each.down_bias)
            for each in experts
        ]
    layer = adapters_of(3, inner, dtype, has_gates=gate.has_gates)
    x, ids, weights = random_step(7, 3, dtype)
    base, base_gate = torch.randn(7, HIDDEN).to(dtype), torch.randn(7, 1).to(dtype)
    slots = torch.tensor([0, 0, 1, -1, 2, 1, 0], dtype=torch.int32)
    torchs = kernels_of("torch", dtype)
    expected = torchs.adapted_experts(
        x, ids, weights, torchs.pack_experts(iter(experts), 3, gate, None), base, base_gate, slots, layer
    )
    kernels = kernels_of(level, dtype, threads=2)
    packed = kernels.pack_experts(iter(experts), 3, gate, None)
    out = kernels.adapted_experts(x, ids, weights, packed, base, base_gate, slots, layer)
    assert_close(out, expected.double(), absolute=1e-4 if dtype == torch.float32 else 2**-4)
    without = kernels.experts(x, ids, weights, packed, base, base_gate)
    assert torch.equal(out[3], without[3])


@LEVELS
@DTYPES
def test_a_row_does_not_depend_on_the_other_rows(level, dtype):
    kernels = kernels_of(level, dtype, threads=2, batch_invariant=True)
    packed = kernels.pack_experts(iter(random_experts(4, HIDDEN, 64, dtype)), 4, ExpertGate("silu"), None)
    layer = adapters_of(4, 64, dtype)
    x, ids, weights = random_step(40, 4, dtype)
    slots = torch.tensor([0, 1, -1, 2, 0] * 8, dtype=torch.int32)
    together = kernels.adapted_experts(x, ids, weights, packed, None, None, slots, layer)
    for row in (0, 1, 2, 17, 39):
        one = slice(row, row + 1)
        alone = kernels.adapted_experts(x[one], ids[one], weights[one], packed, None, None, slots[one], layer)
        assert torch.equal(alone[0], together[row])


@OURS
def test_experts_of_other_processes_are_left_out(level):
    kernels = kernels_of(level, torch.float32)
    packed = kernels.pack_experts(iter(random_experts(4, HIDDEN, 64, torch.float32)), 4, ExpertGate("silu"), None)
    layer = adapters_of(4, 64, torch.float32)
    x, ids, weights = random_step(6, 4, torch.float32)
    ids[2], ids[4, 1] = -1, -1
    slots = torch.zeros(6, dtype=torch.int32)
    out = kernels.adapted_experts(x, ids, weights, packed, None, None, slots, layer)
    assert not out[2].any()
    assert_close(out, one_by_one(kernels, x, ids, weights, packed, slots, layer).double(), absolute=1e-4)


@OURS
def test_a_captured_call_reads_slots_and_adapters_when_it_is_replayed(level):
    dtype = torch.bfloat16
    kernels = kernels_of(level, dtype)
    assert kernels.capture is not None
    packed = kernels.pack_experts(iter(random_experts(4, HIDDEN, 64, dtype)), 4, ExpertGate("silu"), None)
    layer = adapters_of(4, 64, dtype)
    x, ids, weights = random_step(3, 4, dtype)
    slots, found = torch.tensor([-1, -1, -1], dtype=torch.int32), []
    graph = kernels.capture(
        lambda: found.append(kernels.adapted_experts(x, ids, weights, packed, None, None, slots, layer))
    )
    layer.place(1, {expert: ExpertLora(None, matrices((4,), (HIDDEN,), 64, dtype)) for expert in range(4)})
    slots.copy_(torch.tensor([0, 1, -1]))
    graph.replay()
    expected = kernels.adapted_experts(x, ids, weights, packed, None, None, slots, layer)
    assert torch.equal(found[-1], expected)
    plain = kernels.experts(x, ids, weights, packed, None, None)
    assert [torch.equal(row, own) for row, own in zip(expected, plain, strict=True)] == [False, False, True]


@OURS
def test_other_shapes_are_refused(level):
    kernels = kernels_of(level, torch.float32)
    packed = kernels.pack_experts(iter(random_experts(4, HIDDEN, 64, torch.float32)), 4, ExpertGate("silu"), None)
    x, ids, weights = random_step(2, 4, torch.float32)
    with pytest.raises(ValueError, match="have adapters for 3"):
        kernels.adapted_experts(
            x, ids, weights, packed, None, None, torch.zeros(2).int(), adapters_of(3, 64, torch.float32)
        )
    with pytest.raises(ValueError, match="2 tokens have 1 slots"):
        kernels.adapted_experts(
            x, ids, weights, packed, None, None, torch.zeros(1).int(), adapters_of(4, 64, torch.float32)
        )
