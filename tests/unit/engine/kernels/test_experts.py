"""Layers of experts, compared with their formula in float64 and, bit by bit, with the linear layers of each expert."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from tests.slow_cases import slow, slow_but

from stoker.engine.kernels.experts import (
    ExpertGate,
    ExpertWeights,
    GroupedExpert,
    PackedExperts,
    expert_gate_reference,
)
from stoker.engine.kernels.grouped import stacked
from stoker.engine.kernels.quantised import dequantise_reference, quantise_reference
from stoker.engine.kernels.route_experts import Routing

from .grouped_weights import KINDS, grouped_of
from .levels import LEVEL_NAMES, assert_close, kernels_of, sums_of_rounding_errors

LEVELS = pytest.mark.parametrize("level", LEVEL_NAMES)
OURS = pytest.mark.parametrize("level", LEVEL_NAMES[1:])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
SCHEMES = pytest.mark.parametrize("scheme", [None, "int8", "int4"])
SILU = ExpertGate("silu")
GATES = [
    SILU,
    ExpertGate("gelu_tanh"),
    ExpertGate("clamped_swiglu", alpha=1.702, limit=1.5),
    ExpertGate("clamped_swiglu", alpha=1.0, limit=1.5, offset=0.0),
]


def random_experts(count, hidden, inner, dtype, has_bias=False):
    def scaled(*shape):
        return (torch.randn(*shape) / shape[-1] ** 0.5).to(dtype)

    return [
        ExpertWeights(
            scaled(2 * inner, hidden),
            scaled(hidden, inner),
            torch.randn(2 * inner).to(dtype) if has_bias else None,
            torch.randn(hidden).to(dtype) if has_bias else None,
        )
        for _ in range(count)
    ]


def choose(tokens, num_experts, per_token):
    """Different experts for each token, in no order."""
    ids = torch.stack([torch.randperm(num_experts)[:per_token] for _ in range(tokens)]) if tokens else None
    return (torch.empty(0, per_token) if ids is None else ids).int(), torch.rand(tokens, per_token)


def exact_gate(gate_up, gate):
    gates, ups = gate_up.chunk(2, -1)
    if gate.kind == "silu":
        return F.silu(gates) * ups
    if gate.kind == "gelu_tanh":
        return F.gelu(gates, approximate="tanh") * ups
    gates, ups = gates.clamp(max=gate.limit), ups.clamp(-gate.limit, gate.limit)
    return (ups + gate.offset) * gates * torch.sigmoid(gate.alpha * gates)


def exact(x, ids, weights, experts, gate, scheme=None):
    """In float64; and the sum of magnitudes, to which rounding errors are proportional."""
    x = x.double()
    total, magnitude = torch.zeros_like(x), torch.zeros_like(x)
    for expert, own in enumerate(experts):
        gate_up, down = (_effective(each, scheme) for each in (own.gate_up, own.down))
        for token, place in (ids == expert).nonzero().tolist():
            hidden = x[token] @ gate_up.T + (0 if own.gate_up_bias is None else own.gate_up_bias.double())
            gated = exact_gate(hidden, gate)
            weight = weights[token, place].double()
            bias = torch.zeros(x.shape[1]).double() if own.down_bias is None else own.down_bias.double()
            total[token] += weight * (gated @ down.T + bias)
            magnitude[token] += weight * (gated.abs() @ down.abs().T + bias.abs())
    return total, magnitude


def _effective(weight, scheme):
    if scheme is None:
        return weight.double()
    return dequantise_reference(*quantise_reference(weight, scheme), weight.shape[1])[: len(weight)].double()


def assert_within_rounding(out, expected, magnitude, scheme=None):
    """Gate, up, their product and the output are rounded to the type of x, so each term has a few relative errors.

    With more than a few rows, int4 weights are rounded to bfloat16 (cpu/unpacking.h).
    """
    relative = 2e-6 if out.dtype == torch.float32 and scheme != "int4" else 2**-8
    assert out.isfinite().all()
    error = (out.double() - expected).abs()
    assert bool((error <= 3 * relative * (magnitude + expected.abs())).all()), float(error.max())


@LEVELS
@DTYPES
@SCHEMES
@pytest.mark.parametrize(
    ("tokens", "gate"),
    [(9, SILU), (9, GATES[2]), (9, GATES[3]), slow(9, GATES[1]), slow(1, SILU), slow(2, SILU), slow(70, SILU)],
    ids=lambda value: getattr(value, "kind", value),
)
@pytest.mark.quick_cases(6)
def test_the_output_is_the_weighted_sum_of_the_experts(level, dtype, scheme, tokens, gate):
    kernels = kernels_of(level, dtype, threads=2)
    experts = random_experts(4, 96, 128, dtype, has_bias=gate.kind == "clamped_swiglu")
    x, (ids, weights) = torch.randn(tokens, 96).to(dtype), choose(tokens, 4, 3)
    packed = kernels.pack_experts(iter(experts), len(experts), gate, scheme)
    out = kernels.experts(x, ids, weights, packed, None, None)
    kernels_of(level, dtype)
    assert out.dtype == dtype
    assert_within_rounding(out, *exact(x, ids, weights, experts, gate, scheme), scheme)


@LEVELS
@DTYPES
@pytest.mark.parametrize(("hidden", "inner"), [(32, 16), (32, 7), (96, 40), (160, 33), (40, 24)])
def test_odd_widths(level, dtype, hidden, inner):
    """The inner width is padded to what the kernels support; the last panel of the output may have fewer columns."""
    kernels = kernels_of(level, dtype, threads=3)
    experts = random_experts(3, hidden, inner, dtype)
    x, (ids, weights) = torch.randn(5, hidden).to(dtype), choose(5, 3, 2)
    packed = kernels.pack_experts(iter(experts), len(experts), SILU, None)
    multiplies = level not in ("torch", "portable") or (level == "portable" and dtype == torch.bfloat16)
    assert (packed.gate_ups is not None) == (multiplies and (hidden % 32 == 0 or dtype == torch.float32))
    out = kernels.experts(x, ids, weights, packed, None, None)
    kernels_of(level, dtype)
    assert_within_rounding(out, *exact(x, ids, weights, experts, SILU))


@LEVELS
@DTYPES
@pytest.mark.parametrize("has_gate", [False, True])
def test_the_output_of_shared_experts_is_part_of_the_sum(level, dtype, has_gate):
    kernels = kernels_of(level, dtype)
    experts = random_experts(4, 64, 64, dtype)
    x, base, (ids, weights) = torch.randn(7, 64).to(dtype), torch.randn(7, 64).to(dtype), choose(7, 4, 2)
    base_gate = torch.randn(7, 1).to(dtype) if has_gate else None
    out = kernels.experts(
        x, ids, weights, kernels.pack_experts(iter(experts), len(experts), SILU, None), base, base_gate
    )
    shared = base.double() * (torch.sigmoid(base_gate.double()) if has_gate else 1)
    total, magnitude = exact(x, ids, weights, experts, SILU)
    assert_within_rounding(out, total + shared, magnitude + shared.abs())


@OURS
@DTYPES
@pytest.mark.parametrize(
    ("scheme", "rounds_rows"), [(None, False), ("int8", False), ("int4", False), ("int8", True), ("int4", True)]
)
@pytest.mark.parametrize("counts", [[1, 0, 1], [5, 3, 40], [0, 150, 1], [300, 0, 0]])
@pytest.mark.quick_cases(4)
def test_an_expert_has_the_bits_of_its_linear_layers(level, dtype, scheme, rounds_rows, counts):
    """Rows, chunks and panels are divided by the same rules, so every format has the same products."""
    if level == "portable" and dtype == torch.float32 and scheme is None:
        pytest.skip("torch multiplies")
    kernels = kernels_of(level, dtype, threads=2, rounds_rows=rounds_rows, has_quantised=True)
    experts = random_experts(3, 2048, 192, dtype)
    chosen = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))[torch.randperm(sum(counts))]
    x = torch.randn(len(chosen), 2048).to(dtype)
    packed = kernels.pack_experts(iter(experts), len(experts), SILU, scheme)
    assert packed.gate_ups is not None
    found = kernels.experts(x, chosen[:, None].int(), torch.ones(len(chosen), 1), packed, None, None)
    for expert, own in enumerate(experts):
        if not (is_own := chosen == expert).any():
            continue
        gate_up, down = (
            kernels.pack_linear(each, None) if scheme is None else kernels.quantise_linear(each, None, scheme)
            for each in (own.gate_up, own.down)
        )
        expected = kernels.linear(kernels.activate_and_mul(kernels.linear(x[is_own], gate_up)), down)
        assert torch.equal(found[is_own], expected)
    kernels_of(level, dtype)


@OURS
@DTYPES
@pytest.mark.parametrize("kind", slow_but(KINDS, "gptq act-order", "q6_k", "mxfp4"))
@pytest.mark.parametrize("counts", [[1, 0, 1], slow([5, 3, 70])])
def test_an_expert_with_codes_has_the_bits_of_its_linear_layers(level, dtype, kind, counts):
    kernels = kernels_of(level, dtype, threads=2, has_quantised=True)
    assert kernels.pack_grouped is not None
    gate = ExpertGate("clamped_swiglu") if kind == "mxfp4" else SILU
    experts = []
    for _ in counts:
        gates = grouped_of(kind, 256, 512)
        parts = gates, replace(grouped_of(kind, 256, 512), order=gates.order)
        biases = (torch.randn(512).to(dtype), torch.randn(512).to(dtype)) if kind == "mxfp4" else ()
        experts.append(GroupedExpert(parts, grouped_of(kind, 512, 256), *biases))
    assert all(each.can_be_packed for each in experts)
    chosen = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))[torch.randperm(sum(counts))]
    x = (torch.randn(len(chosen), 512) / 64).to(dtype)
    packed = kernels.pack_experts(iter(experts), len(experts), gate, None)
    found = kernels.experts(x, chosen[:, None].int(), torch.ones(len(chosen), 1), packed, None, None)
    for expert, own in enumerate(experts):
        if not (is_own := chosen == expert).any():
            continue
        gate_up = kernels.pack_grouped([stacked(own.gate_up)], own.gate_up_bias, dtype)
        down = kernels.pack_grouped([own.down], own.down_bias, dtype)
        both = kernels.linear(x[is_own], gate_up)
        gated = kernels.activate_and_mul(both) if gate is SILU else expert_gate_reference(both, gate)
        expected = kernels.linear(gated, down)
        if gate is SILU:
            assert torch.equal(found[is_own], expected)
        else:
            torch.testing.assert_close(found[is_own], expected, rtol=2**-6, atol=2**-6 * float(expected.abs().max()))
    kernels_of(level, dtype)


def test_codes_that_the_layout_does_not_take():
    one, other = grouped_of("q4_0", 64, 256), grouped_of("q4_1", 64, 256)
    assert GroupedExpert((one, one), one).can_be_packed
    assert not GroupedExpert((one, other), one).can_be_packed
    assert not GroupedExpert((one,), replace(one, codes=one.codes[:, :96])).can_be_packed


@OURS
@DTYPES
def test_results_do_not_depend_on_the_number_of_threads(level, dtype):
    experts = random_experts(8, 224, 112, dtype)
    x, (ids, weights) = torch.randn(30, 224).to(dtype), choose(30, 8, 3)
    found = []
    for threads in (1, 2, 3, 7):
        kernels = kernels_of(level, dtype, threads=threads)
        packed = kernels.pack_experts(iter(experts), len(experts), SILU, None)
        found.append(kernels.experts(x, ids, weights, packed, None, None))
        found.append(torch.cat([kernels.experts(x[:1], ids[:1], weights[:1], packed, None, None), x[1:]]))
    kernels_of(level, dtype)
    if level == "portable" and dtype == torch.float32:
        return  # torch's product may divide sums differently
    assert all(torch.equal(one, other) for one, other in pairwise(found[::2]))
    assert all(torch.equal(one, other) for one, other in pairwise(found[1::2]))


@LEVELS
@DTYPES
@pytest.mark.parametrize("scheme", [None, slow("int8"), slow("int4")])
def test_a_batch_invariant_row_does_not_depend_on_the_others(level, dtype, scheme):
    kernels = kernels_of(level, dtype, threads=2, batch_invariant=True, has_quantised=scheme is not None)
    rows = 9 if level == "torch" else 90  # torch computes each row alone
    x, gate_up = sums_of_rounding_errors(rows, 2 * 64, 256)
    x *= 2.0**12  # gates of rounding errors would all be linear
    down = torch.randn(256, 64)
    experts = [ExpertWeights((gate_up * sign).to(dtype), (down * sign).to(dtype)) for sign in (1, -1, 0.7, 1.3)]
    x, (ids, weights) = x.to(dtype), choose(rows, 4, 3)
    base, base_gate = torch.randn(rows, 256).to(dtype), torch.randn(rows, 1).to(dtype)
    packed = kernels.pack_experts(iter(experts), len(experts), SILU, scheme)
    whole = kernels.experts(x, ids, weights, packed, base, base_gate)
    for first, end in ((0, 1), (7, 8), (rows - 1, rows), (3, 8), (rows // 9, rows * 2 // 3)):
        part = slice(first, end)
        alone = kernels.experts(
            x[part].clone(), ids[part].clone(), weights[part].clone(), packed, base[part].clone(),
            base_gate[part].clone(),
        )  # fmt: skip
        assert torch.equal(alone, whole[part])
    kernels_of(level, dtype)


@OURS
@DTYPES
def test_the_order_of_a_tokens_experts_has_no_effect(level, dtype):
    """The sum has the order of the experts' indices."""
    kernels = kernels_of(level, dtype)
    packed = kernels.pack_experts(iter(random_experts(8, 64, 64, dtype)), 8, SILU, None)
    x, (ids, weights) = torch.randn(5, 64).to(dtype), choose(5, 8, 4)
    one = kernels.experts(x, ids, weights, packed, None, None)
    other = kernels.experts(x, ids.flip(1).contiguous(), weights.flip(1).contiguous(), packed, None, None)
    assert torch.equal(one, other)


@OURS
@DTYPES
@SCHEMES
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.quick_cases(8)
def test_a_captured_step_routes_again(level, dtype, scheme, threads, tokens):
    """The experts of a replayed step are those of its own tokens."""
    if level == "portable" and dtype == torch.float32:
        pytest.skip("torch multiplies the router")
    kernels = kernels_of(level, dtype, threads=threads)
    assert kernels.capture is not None
    packed = kernels.pack_experts(iter(random_experts(16, 64, 128, dtype)), 16, SILU, scheme)
    router = kernels.pack_linear(torch.randn(16, 64), None)
    x, routing = torch.randn(tokens, 64).to(dtype), Routing(16, 4, renormalises=True)
    if not router.is_packed:
        pytest.skip("torch multiplies the router, in float32")

    def compute():
        ids, weights = kernels.route_experts(kernels.linear(kernels.to_float32(x), router), None, routing)
        return kernels.experts(x, ids, weights, packed, x, None)

    with torch.inference_mode():
        captured = kernels.capture(compute)
        for _ in range(4):
            x.copy_(torch.randn(tokens, 64))
            captured.replay()
            assert torch.equal(captured.output, compute())
    kernels_of(level, dtype)


@OURS
@pytest.mark.parametrize("expert", [4, 2**31 - 1])
def test_an_expert_that_does_not_exist_is_refused(level, expert):
    kernels = kernels_of(level, torch.bfloat16)
    packed = kernels.pack_experts(iter(random_experts(4, 64, 64, torch.bfloat16)), 4, SILU, None)
    ids = torch.tensor([[0, 1], [2, expert]], dtype=torch.int32)
    with pytest.raises(IndexError, match="not below 4"):
        kernels.experts(torch.zeros(2, 64).bfloat16(), ids, torch.ones(2, 2), packed, None, None)


@pytest.mark.parametrize("level", LEVEL_NAMES)
@pytest.mark.parametrize("tokens", [1, 7])
def test_experts_of_other_processes_add_nothing(level, tokens):
    """Of those of a token, some or all are elsewhere."""
    kernels, num_experts = kernels_of(level, torch.float32), 6
    experts = random_experts(num_experts, 64, 64, torch.float32)
    ids, weights = choose(tokens, num_experts, 3)
    x, base = torch.randn(tokens, 64), torch.randn(tokens, 64)
    whole = kernels.pack_experts(iter(experts), num_experts, SILU, None)
    expected = kernels.experts(x, ids, weights, whole, None, None)
    total = torch.zeros(tokens, 64)
    for own in (range(0, 6, 4), range(1, 6, 4), range(2, 6, 4), range(3, 6, 4)):
        packed = kernels.pack_experts((experts[index] for index in own), len(own), SILU, None)
        total += kernels.experts(x, kernels.own_experts(ids, own), weights, packed, None, None)
    assert_close(total, expected.double(), 1e-5)
    none = kernels.own_experts(ids, range(6, 7))
    packed = kernels.pack_experts(iter(experts[:1]), 1, SILU, None)
    assert torch.equal(kernels.experts(x, none, weights, packed, base, None), base)


@OURS
def test_shapes_that_do_not_fit_are_refused(level):
    kernels = kernels_of(level, torch.bfloat16)
    packed = kernels.pack_experts(iter(random_experts(4, 64, 64, torch.bfloat16)), 4, SILU, None)
    ids, weights = choose(3, 4, 2)
    with pytest.raises(ValueError, match=r"x is \(3, 32\)"):
        kernels.experts(torch.zeros(3, 32).bfloat16(), ids, weights, packed, None, None)
    with pytest.raises(ValueError, match=r"weights \(2, 2\)"):
        kernels.experts(torch.zeros(3, 64).bfloat16(), ids, weights[:2], packed, None, None)


@LEVELS
def test_no_tokens(level):
    kernels = kernels_of(level, torch.bfloat16)
    packed = kernels.pack_experts(iter(random_experts(4, 64, 64, torch.bfloat16)), 4, SILU, None)
    ids, weights = choose(0, 4, 2)
    assert kernels.experts(torch.empty(0, 64).bfloat16(), ids, weights, packed, None, None).shape == (0, 64)


@OURS
@DTYPES
def test_experts_of_torch_are_packed_later(level, dtype):
    """While the library is compiled, torch computes."""
    kernels, torchs = kernels_of(level, dtype), kernels_of("torch", dtype)
    experts = random_experts(4, 64, 48, dtype, has_bias=True)
    x, (ids, weights) = torch.randn(3, 64).to(dtype), choose(3, 4, 2)
    for scheme in (None, "int8"):
        before = torchs.pack_experts(iter(experts), len(experts), SILU, scheme)
        after = kernels.repack_experts(before)
        assert (after is before) == (scheme is not None or (level, dtype) == ("portable", torch.float32))
        out = kernels.experts(x, ids, weights, after, None, None)
        assert_within_rounding(out, *exact(x, ids, weights, experts, SILU, scheme))
        assert kernels.repack_experts(after) is after


@LEVELS
@DTYPES
@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.kind)
def test_large_gates_saturate_and_nan_remains(level, dtype, gate):
    """exp overflows float32 above 88, and a clamp must not replace NaN by its limit."""
    kernels = kernels_of(level, dtype)
    values = torch.tensor([-1e30, -200.0, -89.0, 0.0, 89.0, 200.0, torch.nan, 3.0])
    gate_up = torch.zeros(16, 32)
    gate_up[:8, 0], gate_up[8:, 1] = 1, 1
    x = torch.zeros(8, 32)
    x[:, 0], x[:, 1] = values, 1
    down = torch.zeros(32, 8)
    down[0, 0] = 1
    packed = kernels.pack_experts(iter([ExpertWeights(gate_up.to(dtype), down.to(dtype))]), 1, gate, None)
    ids, ones = torch.zeros(8, 1, dtype=torch.int32), torch.ones(8, 1)
    out = kernels.experts(x.to(dtype), ids, ones, packed, None, None)[:, 0]
    expected = exact_gate(torch.stack((values, torch.ones(8)), 1).to(dtype).double(), gate)[:, 0]
    assert out[6].isnan()
    assert_close(out[torch.arange(8) != 6], expected[torch.arange(8) != 6], absolute=1e-6)


def test_the_bytes_of_a_layer_are_counted():
    experts = random_experts(3, 64, 64, torch.bfloat16)
    kernels = kernels_of("torch", torch.bfloat16)
    packed = kernels.pack_experts(iter(experts), len(experts), SILU, None)
    assert isinstance(packed, PackedExperts)
    assert packed.num_bytes == 3 * 3 * 64 * 64 * 2


@DTYPES
def test_the_gate_of_the_reference(dtype):
    for gate in GATES:
        gate_up = (torch.randn(9, 14) * 4).to(dtype)
        found = expert_gate_reference(gate_up, gate)
        assert_close(found, exact_gate(gate_up.double(), gate), absolute=1e-5)
    assert replace(GATES[2], limit=7.0) == ExpertGate("clamped_swiglu")


@LEVELS
@DTYPES
@pytest.mark.parametrize("scheme", [None, "int8"])
@pytest.mark.parametrize("inner", [7, slow(16), slow(100), slow(200)])
def test_experts_without_gates(level, dtype, scheme, inner):
    """Several threads divide the panels, whose number is padded to pairs."""
    torch.manual_seed(inner)
    gate = ExpertGate("relu2", has_gates=False)
    experts = [replace(each, gate_up=each.gate_up[:inner]) for each in random_experts(4, 64, inner, dtype)]
    x, (ids, weights) = torch.randn(9, 64).to(dtype), choose(9, 4, 2)
    kernels = kernels_of(level, dtype, threads=2)
    found = kernels.experts(x, ids, weights, kernels.pack_experts(iter(experts), 4, gate, scheme), None, None)
    total, magnitude = torch.zeros(9, 64).double(), torch.zeros(9, 64).double()
    for expert, own in enumerate(experts):
        up, down = _effective(own.gate_up, scheme), _effective(own.down, scheme)
        for token, place in (ids == expert).nonzero().tolist():
            hidden = F.relu(x[token].double() @ up.T).square()
            total[token] += weights[token, place] * (hidden @ down.T)
            magnitude[token] += weights[token, place] * (hidden @ down.abs().T)
    assert_within_rounding(found, total, magnitude, scheme)
