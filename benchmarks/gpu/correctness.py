"""Compares every kernel with its reference, in each dtype of the device, on random values with NaN out of bounds.

A check yields pairs of found and expected values; the record contains the largest error, in units of the limit of one
rounding. A new kernel needs one entry in CHECKS; kernel modules without an entry are reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from stoker.engine.kernels import gpu, noise
from stoker.engine.kernels.activation import ACTIVATIONS, activate_and_mul_reference, activate_reference
from stoker.engine.kernels.add_rms_norm import add_rms_norm_reference
from stoker.engine.kernels.causal_convolution import KINDS, causal_convolution_reference
from stoker.engine.kernels.experts import ExpertGate, ExpertWeights, experts_reference, pack_experts_reference
from stoker.engine.kernels.gated_delta import GatedDeltaWeights, gated_delta_reference
from stoker.engine.kernels.head_variant import HeadVariant
from stoker.engine.kernels.norm_parts import PartNormWeights, norm_parts_reference
from stoker.engine.kernels.rms_norm_gated import ORDERS, RMSNormGatedWeights, rms_norm_gated_reference
from stoker.engine.kernels.rope_and_store import rope_and_store_reference
from stoker.engine.kernels.route_experts import Routing, route_experts_reference
from stoker.engine.kernels.sample_tokens import softmax_weights
from stoker.engine.kernels.selective_scan import SelectiveScanWeights, selective_scan_reference
from stoker.engine.kernels.state_space import StateSpaceWeights, state_space_reference

from .paged_batch import batch
from .part import Case, Context
from .shapes import LLAMA, SMALL, Shape

LIMITS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}  # of one rounding, absolute and relative
Pairs = Iterator[tuple[torch.Tensor, torch.Tensor]]  # found, expected
_PROGRAMS = 7  # in the interpreter; on a GPU two for each multiprocessor


@dataclass(frozen=True)
class Given:
    """Inputs of a check; it creates its operands from them."""

    shape: Shape
    dtype: torch.dtype
    device: torch.device

    def randn(self, *sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, device=self.device).to(self.dtype)

    def strided(self, values: torch.Tensor) -> torch.Tensor:
        """The same rows, with NaN between rows in memory."""
        wide = values.new_full((len(values), values.shape[1] + 8), torch.nan)
        wide[:, : values.shape[1]] = values
        return wide[:, : values.shape[1]]

    @property
    def has_few_variants(self) -> bool:
        """Whether only few variants run: on a GPU each takes seconds to compile, so the second dtype runs few."""
        return self.device.type == "cuda" and self.dtype == torch.float16

    @property
    def programs(self) -> int:
        if self.device.type != "cuda":
            return _PROGRAMS
        return 2 * torch.cuda.get_device_properties(self.device).multi_processor_count


def add_rms_norm(given: Given) -> Pairs:
    from stoker.engine.kernels.gpu.add_rms_norm import add_rms_norm_gpu

    x, residual = given.randn(5, given.shape.hidden), given.randn(5, given.shape.hidden)
    weight = given.randn(given.shape.hidden)
    for other in (None, residual):
        strided = None if other is None else given.strided(other)
        normed, total = add_rms_norm_gpu(given.strided(x), strided, weight, 0.1)
        rounded = x if other is None else x + other
        yield normed, add_rms_norm_reference(rounded.double(), None, weight.double(), 0.1)[0]
        yield total, rounded


def activation(given: Given) -> Pairs:
    from stoker.engine.kernels.gpu.activation import activate_and_mul_gpu, activate_gpu

    gate_up = given.randn(5, 2 * given.shape.intermediate)
    for each in ACTIVATIONS:
        yield activate_and_mul_gpu(given.strided(gate_up), each), activate_and_mul_reference(gate_up.double(), each)
        yield activate_gpu(given.strided(gate_up), each), activate_reference(gate_up.double(), each)


def scaling(given: Given) -> Pairs:
    from stoker.engine.kernels.gpu.scaling import add_scaled_gpu, scale_and_cap_gpu

    x, residual = given.randn(5, given.shape.hidden), given.randn(5, given.shape.hidden)
    yield add_scaled_gpu(x, residual, 0.22), residual.double() + 0.22 * x.double()
    yield scale_and_cap_gpu(x.clone(), 0.5), 0.5 * x.double()
    yield scale_and_cap_gpu(x.clone(), 0.5, 1.5), 1.5 * torch.tanh(0.5 * x.double() / 1.5)


def embed(given: Given) -> Pairs:
    from stoker.engine.kernels.gpu.embed import embed_gpu

    weight = given.randn(given.shape.vocab, given.shape.hidden)
    ids = torch.tensor([0, given.shape.vocab - 1, 7, 7], device=given.device)
    yield embed_gpu(ids, weight), weight[ids]
    outside = torch.tensor([-1, given.shape.vocab], device=given.device)
    yield embed_gpu(outside, weight), torch.zeros(2, given.shape.hidden)


def route_experts(given: Given) -> Pairs:
    from stoker.engine.kernels.gpu.route_experts import route_experts_gpu

    logits = torch.randperm(5 * 48, device=given.device).view(5, 48).to(given.dtype) / 16  # few are equal
    for scoring in ("softmax", "sigmoid", "softmax_of_chosen"):
        routing = Routing(48, 8, scoring, renormalises=True, num_groups=6, groups_per_token=3)
        found, expected = route_experts_gpu(logits, None, routing), route_experts_reference(logits, None, routing)
        yield found[0], expected[0]
        yield found[1].to(given.dtype), expected[1]
    routing = Routing(48, 3, "sparse_mixer", tolerance=0.3)
    found, expected = route_experts_gpu(logits, None, routing), route_experts_reference(logits, None, routing)
    yield found[0], expected[0]
    yield found[1].to(given.dtype), expected[1]


def experts(given: Given) -> Pairs:
    from stoker.engine.kernels.gpu.experts import experts_gpu, pack_experts_gpu

    hidden, inner, count = given.shape.hidden, given.shape.intermediate, 4
    weights = [
        ExpertWeights(given.randn(2 * inner, hidden) / hidden**0.5, given.randn(hidden, inner) / inner**0.5)
        for _ in range(count)
    ]
    gate = ExpertGate("silu")
    packed = pack_experts_gpu(weights, count, gate, None)
    exact = pack_experts_reference(
        [ExpertWeights(each.gate_up.double(), each.down.double()) for each in weights], count, gate, None
    )
    for tokens in (1, 5, 70):
        x, shared = given.randn(tokens, hidden), given.randn(tokens, hidden)
        ids = torch.rand(tokens, count, device=given.device).argsort(1)[:, :2].int()
        scores = torch.rand(tokens, 2, device=given.device)
        yield (
            experts_gpu(x, ids, scores, packed, shared, None),
            experts_reference(x.double(), ids, scores, exact, shared.double(), None),
        )


def rope_and_store(given: Given) -> Pairs:
    from stoker.engine.kernels.gpu.rope_and_store import rope_and_store_gpu

    shape, tokens = given.shape, 6
    qkv, cos_sin = given.randn(tokens, shape.qkv), torch.randn(40, shape.head_dim, device=given.device)
    positions = torch.tensor([0, 1, 39, 5, 5, 17], device=given.device)
    slots = torch.randperm(4 * shape.block_size)[:tokens].to(given.device)
    heads, cache = (shape.heads, shape.kv_heads), (4, shape.kv_heads, shape.block_size, shape.head_dim)
    one, own = [shape.head_dim] * 2, [count * shape.head_dim for count in heads]
    scales = torch.rand(40, device=given.device)
    for sizes, variant in (
        (None, HeadVariant()),
        (one, HeadVariant()),
        (own, HeadVariant(is_interleaved=True, is_layer_norm=True, query_scales=scales)),
        (own, HeadVariant(is_over_all_heads=True)),
        (one, HeadVariant(is_norm_last=True)),
    ):
        norms = [None, None] if sizes is None else [torch.randn(size, device=given.device) for size in sizes]
        caches = [torch.full(cache, torch.nan, device=given.device, dtype=given.dtype) for _ in range(4)]
        rest = (*norms, 0.1, cos_sin, positions, slots)
        expected = rope_and_store_reference(qkv, *rest, *caches[:2], *heads, variant)
        yield rope_and_store_gpu(given.strided(qkv), *rest, *caches[2:], *heads, variant), expected
        for ours, reference in zip(caches[2:], caches[:2], strict=True):
            yield ours.nan_to_num(1e4), reference.nan_to_num(1e4)  # both leave the same elements unwritten
    yield from rope_and_store_fp8(given, slots)
    untouched = [torch.full(cache, torch.nan, device=given.device, dtype=given.dtype) for _ in range(2)]
    rope_and_store_gpu(qkv, None, None, 0.1, cos_sin, positions, torch.full_like(slots, -1), *untouched, *heads)
    for each in untouched:
        yield each.isnan().float(), torch.ones(cache)


def rope_and_store_fp8(given: Given, slots: torch.Tensor) -> Pairs:
    """Many values beyond 448, the fp8 maximum. No rotation: a float32 rounding difference could become one of fp8."""
    from stoker.engine.kernels.gpu.rope_and_store import rope_and_store_gpu

    shape = given.shape
    qkv = given.randn(len(slots), shape.qkv // shape.head_dim, shape.head_dim)
    qkv = (qkv * torch.logspace(-5, 3, shape.head_dim, device=given.device).to(given.dtype)).flatten(1)
    cos_sin = torch.eye(2, device=given.device)[:1].repeat_interleave(shape.head_dim // 2, 1)
    kept = (4, shape.kv_heads, shape.block_size, shape.head_dim)
    caches = [torch.zeros(kept, device=given.device).to(torch.float8_e4m3fn) for _ in range(4)]
    rest = None, None, 0.1, cos_sin, torch.zeros_like(slots), slots
    rope_and_store_reference(qkv, *rest, *caches[:2], shape.heads, shape.kv_heads)
    rope_and_store_gpu(given.strided(qkv), *rest, *caches[2:], shape.heads, shape.kv_heads)
    for ours, reference in zip(caches[2:], caches[:2], strict=True):
        yield ours.float(), reference.float()


def add_layer_norm(given: Given) -> Pairs:
    from stoker.engine.kernels.gpu.add_layer_norm import add_layer_norm_gpu

    width = given.shape.hidden
    x, residual, weight, bias = given.randn(5, width), given.randn(5, width), given.randn(width), given.randn(width)
    normed, total = add_layer_norm_gpu(given.strided(x), given.strided(residual), weight, bias, 0.1)
    yield normed, F.layer_norm((x + residual).double(), (width,), weight.double(), bias.double(), 0.1)
    yield total, x + residual


def gemv(given: Given) -> Pairs:
    from stoker.engine.kernels.gpu.gemv import MAX_TOKENS
    from stoker.engine.kernels.gpu.gemv import gemv as run

    depth, width = given.shape.hidden, given.shape.intermediate
    weight, bias = given.randn(2 * width, depth) / depth**0.5, given.randn(width)
    for tokens in (MAX_TOKENS,) if given.has_few_variants else (1, 3, MAX_TOKENS):
        x = given.randn(tokens, depth)
        yield run(given.strided(x), weight[:width], bias), F.linear(x.double(), weight[:width].double(), bias.double())
        gated = activate_and_mul_reference(F.linear(x.double(), weight.double()))
        yield run(given.strided(x), weight, is_gated=True), gated


@dataclass(frozen=True)
class RecurrentRows:
    """Rows of one token and of several, new and continued ones, one of padding; and where their states are."""

    query_start: torch.Tensor
    context_lens: torch.Tensor
    seq_slots: torch.Tensor
    max_query_len: int


def recurrent(given: Given, run: Callable[..., Pairs]) -> Pairs:
    """run(step of R rows, the same without padding, tokens)."""
    for counts in ((1, 1, 1, 0), (1, 7, 70, 0)):
        before, slots = (3, 0, 5, 0), (4, 0, 2, -1)
        starts = [sum(counts[:row]) for row in range(len(counts) + 1)]
        columns = starts, [sum(each) for each in zip(before, counts, strict=True)], slots
        step = [torch.tensor(each, dtype=torch.int32, device=given.device) for each in columns]
        real = step[0][:-1], step[1][:-1], step[2][:-1]
        yield from run(RecurrentRows(*step, max(counts)), RecurrentRows(*real, max(counts)), starts[-1])


def causal_convolution(given: Given) -> Pairs:
    from stoker.engine.kernels.gpu.causal_convolution import causal_convolution_gpu

    channels, width = given.shape.hidden, 4

    def run(step: RecurrentRows, real: RecurrentRows, tokens: int) -> Pairs:
        x, state = given.randn(tokens, 3 * channels), given.randn(5, width - 1, channels)
        taps, bias = torch.randn(width, channels, device=given.device), torch.randn(channels, device=given.device)
        for kind in KINDS:
            kept, expected = state.clone(), state.clone()
            found = causal_convolution_gpu(given.strided(x), taps, bias, kept, step, kind)
            yield found, causal_convolution_reference(x, taps, bias, expected, real, kind)
            yield kept, expected

    yield from recurrent(given, run)


def rms_norm_gated(given: Given) -> Pairs:
    from stoker.engine.kernels.gpu.rms_norm_gated import rms_norm_gated_gpu

    width = given.shape.hidden
    x, projected = torch.randn(5, width, device=given.device), given.randn(5, width + 8)
    for order in ORDERS:
        weight = None if order == "none" else torch.randn(width, device=given.device)
        weights = RMSNormGatedWeights(order, weight, 0.1, 2)
        found = rms_norm_gated_gpu(x, given.strided(projected), 8, weights)
        yield found, rms_norm_gated_reference(x.double(), projected.double(), 8, weights)


def norm_parts(given: Given) -> Pairs:
    from stoker.engine.kernels.gpu.norm_parts import norm_parts_gpu

    sizes = given.shape.head_dim, 16, 16
    x = given.randn(5, sum(sizes))
    for gains in (None, torch.randn(sum(sizes), device=given.device)):
        weights = PartNormWeights(sizes, True, gains, 0.1)
        yield from zip(norm_parts_gpu(given.strided(x), weights), norm_parts_reference(x, weights), strict=True)


def selective_scan(given: Given) -> Pairs:
    from stoker.engine.kernels.gpu.selective_scan import selective_scan_gpu

    channels, size, device = given.shape.hidden, 16, given.device
    rates = -3 * torch.rand(size, channels, device=device)
    weights = SelectiveScanWeights(rates, *torch.randn(2, channels, device=device))

    def run(step: RecurrentRows, real: RecurrentRows, tokens: int) -> Pairs:
        inputs = [given.randn(tokens, width) for width in (channels, 2 * channels, channels, size, size)]
        states = [torch.randn(5, size, channels, device=device)]
        states.append(states[0].clone())
        x, projected, steps, b, c = map(given.strided, inputs)
        found = selective_scan_gpu(x, projected, steps, b, c, weights, states[0], step)
        x, projected, steps, b, c = inputs
        yield found, selective_scan_reference(x, projected, steps, b, c, weights, states[1], real)
        yield states[0], states[1]

    yield from recurrent(given, run)


def gated_delta(given: Given) -> Pairs:
    from stoker.engine.kernels.gpu.gated_delta import gated_delta_gpu

    key_heads, heads, size, device = 2, 4, given.shape.head_dim, given.device
    channels = (2 * key_heads + heads) * size
    vectors = torch.randn(2, heads, device=device)
    weights = GatedDeltaWeights(vectors[0], vectors[1], 1 + 0.1 * torch.randn(size, device=device), 0.1)

    def run(step: RecurrentRows, real: RecurrentRows, tokens: int) -> Pairs:
        mixed, projected = given.randn(tokens, channels), given.randn(tokens, channels + heads * (size + 2))
        states = [torch.randn(5, heads, size, size, device=device)]
        states.append(states[0].clone())
        found = gated_delta_gpu(mixed, given.strided(projected), weights, states[0], step)
        yield found, gated_delta_reference(mixed, projected, weights, states[1], real)
        yield states[0], states[1]

    yield from recurrent(given, run)


def state_space(given: Given) -> Pairs:
    from stoker.engine.kernels.gpu.state_space import state_space_gpu

    heads, groups, size, head_dim, device = 4, 2, given.shape.head_dim, 64, given.device
    channels = heads * head_dim + 2 * groups * size
    weights = StateSpaceWeights(*torch.randn(3, heads, device=device))

    def run(step: RecurrentRows, real: RecurrentRows, tokens: int) -> Pairs:
        mixed, projected = given.randn(tokens, channels), given.randn(tokens, channels + heads * (head_dim + 1))
        states = [torch.randn(5, heads, size, head_dim, device=device)]
        states.append(states[0].clone())
        found = state_space_gpu(mixed, given.strided(projected), weights, states[0], step)
        yield found, state_space_reference(mixed, projected, weights, states[1], real)
        yield states[0], states[1]

    yield from recurrent(given, run)


def is_best(sampled: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """sampled: [R]; scores: [R, V] float64."""
    found = scores.gather(1, sampled.long()[:, None])[:, 0]
    return ((found - scores.amax(-1)).abs() < 1e-4).double()


def sampler(given: Given) -> Pairs:
    """The whole sampler of a step: greedy, temperature, min-p, top-k, top-p, padding."""
    from tests.kernels.references import sampling_columns

    from stoker.engine.kernels.gpu.sample import sample, sampling_workspace

    rows, vocab, device = 20, given.shape.vocab, given.device
    logits = 3 * given.randn(rows, vocab)
    columns = sampling_columns(rows, vocab, device)
    columns.temperature.copy_(torch.linspace(0, 1.5, rows))
    columns.min_p[4:8] = 0.05
    columns.top_k[8:12] = 20
    columns.top_p[12:16] = 0.9
    columns.top_k[16:], columns.top_p[16:] = 40, 0.7
    seeds, positions = np.arange(rows, dtype=np.uint64) << np.uint64(30), np.arange(rows)
    halves = torch.from_numpy(seeds.view(np.int32).reshape(-1, 2)).to(device)
    columns.seed_low.copy_(halves[:, 0])
    columns.seed_high.copy_(halves[:, 1])
    keys = noise.row_keys(seeds, positions).to(device)
    weights = softmax_weights(logits, columns.temperature, columns.min_p).double()
    ordered, ids = weights.sort(dim=-1, descending=True, stable=True)
    top_k, top_p = columns.top_k[:, None], columns.top_p[:, None].double()
    ordered = ordered.masked_fill((torch.arange(vocab, device=device) >= top_k) & (top_k > 0), 0)
    before = ordered.cumsum(-1) - ordered
    ordered = ordered.masked_fill((before >= top_p * ordered.sum(-1, keepdim=True)) & (before > 0) & (top_p < 1), 0)
    weights = torch.zeros_like(weights).scatter(1, ids, ordered)
    scores = (weights / noise.exponential_noise(keys, torch.arange(vocab, device=device)[None])).log()
    slots = torch.arange(rows + 1, dtype=torch.int32, device=device)
    slots[rows] = -1
    padded = torch.cat((logits, torch.full_like(logits[:1], torch.nan)))
    where = torch.tensor([*positions, 0], dtype=torch.int32, device=device)
    workspace = sampling_workspace(rows + 1, vocab, device)
    sampled = torch.full((rows + 1,), 77, dtype=torch.int32, device=device)
    for _ in range(2):  # the second call runs with the workspace as the first left it
        sample(padded, slots, where, columns, sampled, workspace, is_fast_path=False)
        yield is_best(sampled[:rows], scores), torch.ones(rows)
        yield sampled[rows:], torch.tensor([-1])
    greedy = torch.empty_like(sampled[:4])
    sample(logits[:4], slots[:4], where[:4], columns, greedy, workspace, is_fast_path=True)
    yield is_best(greedy, scores[:4]), torch.ones(4)


def logprobs(given: Given) -> Pairs:
    from stoker.engine.kernels.gpu.sample_logprobs import logprobs_gpu

    logits = given.strided(3 * given.randn(5, given.shape.vocab))
    tokens = torch.tensor([0, 1, 2, 3, given.shape.vocab - 1], device=given.device)
    found = logprobs_gpu(logits, tokens.int(), 4, normalise=True)
    expected = logits.double().log_softmax(-1)
    own = expected.gather(1, tokens[:, None])
    yield found.own, own[:, 0]
    yield found.ranks, (expected > own).sum(-1) + 1
    yield found.top_values, expected.topk(4, -1).values
    yield expected.gather(1, found.top_ids.long()), expected.topk(4, -1).values


def step_tables(given: Given) -> Pairs:
    """The first and the last kernel of a step."""
    from tests.kernels.references import finish_step_reference, prepare_step_reference

    from stoker.engine.kernels.gpu import finish_step, prepare_step

    device, block = given.device, given.shape.block_size

    def int32(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    rows = prepare_step.StepRows(int32(3, 0, 2, -1), int32(17, 0, 70, 5), int32(0, 1, 12, 14, 14))
    tokens = torch.randint(0, 1 << 30, (5, 200), dtype=torch.int32, device=device)
    blocks = torch.randint(0, 1 << 30, (5, 200 // block + 1), dtype=torch.int32, device=device)
    made = []
    for prepare in (prepare_step.prepare_step, prepare_step_reference):
        columns = [torch.full((16,), -7, device=device) for _ in range(3)]
        tables = torch.full((4, 20), -7, dtype=torch.int32, device=device)
        out = prepare_step.StepTensors(*columns, int32(*[-7] * 4), tables, torch.full((4,), -7, device=device))
        prepare(rows, tokens, blocks, block, out)
        made.append(out)
    for name in prepare_step.StepTensors.__slots__:
        yield getattr(made[0], name), getattr(made[1], name)
    sampled, lengths, is_sampled = int32(7, 9, -1, 3), int32(18, 11, 72, 0), int32(1, 0, 1, 1)
    finished = []
    for finish in (finish_step.finish_step, finish_step_reference):
        counts = torch.full((5, 12), 2, dtype=torch.int16, device=device)
        finished.append((tokens.clone(), counts))
        finish(sampled, rows.slots, lengths, is_sampled, finished[-1][0], int32(1, 0, 1, 1, 0), counts)
    yield from zip(*finished, strict=True)


def attention(given: Given, is_prefill: bool) -> Pairs:
    from tests.kernels.references import attention_reference

    from stoker.engine.kernels.attention_variant import AttentionVariant
    from stoker.engine.kernels.gpu.decode_attention import decode_attention, decode_workspace
    from stoker.engine.kernels.gpu.prefill_attention import prefill_attention

    shape, scale = given.shape, given.shape.head_dim**-0.5
    values = torch.randn(2, shape.heads, device=given.device)
    variants = [
        (None, AttentionVariant()),
        (None, AttentionVariant(40, False, 0.9, values[0], values[1].abs() / 8)),
        (None, AttentionVariant(40, True)),
        (torch.float8_e4m3fn, AttentionVariant(k_scale=0.75, v_scale=1.5)),
    ]
    long = 3 if given.device.type != "cuda" else 40  # in units of 100 tokens
    rows = [(1, 33), (0, 0), (1, 1), (7, 7), (1, long * 100), (1, 64), (long * 11, long * 30), (70, 70), (1, 65)]
    for kv_dtype, variant in variants[: 1 if given.has_few_variants else None]:
        made = batch(
            rows, device=given.device, num_heads=shape.heads, num_kv_heads=shape.kv_heads, head_dim=shape.head_dim,
            block_size=shape.block_size, dtype=given.dtype, kv_dtype=kv_dtype,
        )  # fmt: skip
        if kv_dtype is not None:
            made = replace(made, q=made.q.half().to(given.dtype))  # with fp8 keys, queries are float16
        out = torch.full((len(made.q), shape.heads * shape.head_dim), torch.nan).to(given.device, given.dtype)
        operands = made.q, made.k_cache, made.v_cache, made, scale, out
        if is_prefill:
            prefill_attention(*operands, given.programs, variant)
        else:
            sizes = len(rows), shape.heads, shape.kv_heads, shape.head_dim
            decode_attention(*operands, decode_workspace(*sizes, given.device, given.programs), variant)
        counts = made.query_start.diff()
        is_mine = (counts > 1 if is_prefill else counts == 1).repeat_interleave(counts)
        expected = attention_reference(made.q, made.k_cache, made.v_cache, made, scale, variant)
        yield out[is_mine], expected[is_mine]
        yield out[~is_mine].isnan().float(), torch.ones(out[~is_mine].shape)  # rows of the other kernel are not written


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    modules: tuple[str, ...]  # of engine/kernels/gpu that it covers
    run: Callable[[Given], Pairs]
    limit: float = 1.0  # number of successive roundings


CHECKS = [
    Check("add_rms_norm", ("add_rms_norm",), add_rms_norm),
    Check("activation", ("activation",), activation),
    Check("scaling", ("scaling",), scaling),
    Check("embed", ("embed",), embed),
    Check("rope_and_store", ("rope_and_store",), rope_and_store),
    Check("add_layer_norm", ("add_layer_norm",), add_layer_norm),
    Check("route_experts", ("route_experts",), route_experts),
    Check("experts", ("experts",), experts, limit=3.0),
    Check("causal_convolution", ("causal_convolution", "token_rows"), causal_convolution),
    Check("rms_norm_gated", ("rms_norm_gated",), rms_norm_gated),
    Check("norm_parts", ("norm_parts",), norm_parts),
    Check("selective_scan", ("selective_scan",), selective_scan, limit=3.0),
    # Sums of many products, whose terms cancel.
    Check("gated_delta", ("gated_delta", "recurrent"), gated_delta, limit=3.0),
    Check("state_space", ("state_space",), state_space, limit=3.0),
    Check("gemv", ("gemv",), gemv),
    Check("sample", ("sample", "sample_row", "sample_ranked", "gumbel_max"), sampler),
    Check("logprobs", ("sample_logprobs",), logprobs),
    Check("prepare_step, finish_step", ("prepare_step", "finish_step"), step_tables),
    Check(
        "decode_attention",
        ("decode_attention", "attention_tile", "attention_plan"),
        partial(attention, is_prefill=False),
    ),
    Check("prefill_attention", ("prefill_attention", "launch"), partial(attention, is_prefill=True)),
]


def worst_error(pairs: Pairs, limit: float) -> float:
    """Largest error in units of `limit`, absolute and relative; infinite if a value is NaN."""
    worst = 0.0
    for found, expected in pairs:
        if found.shape != expected.shape:
            raise ValueError(f"found {tuple(found.shape)}, expected {tuple(expected.shape)}")
        if found.numel() == 0:
            continue
        expected = expected.double().to(found.device)
        error = float(((found.double() - expected).abs() / (limit * (1 + expected.abs()))).amax())
        worst = max(worst, math.inf if math.isnan(error) else error)
    return worst


def check(context: Context, checked: Check, given: Given) -> None:
    torch.manual_seed(0)
    with torch.inference_mode():
        worst = worst_error(checked.run(given), checked.limit * LIMITS[given.dtype])
    error = None if worst <= 1 else "wrong"
    dtype_name = str(given.dtype).removeprefix("torch.")
    value = worst if math.isfinite(worst) else None
    context.record(checked.name, f"{given.shape.name}, {dtype_name}", value, "of the limit", 1.0, None, error, False)


def unchecked(context: Context) -> None:
    """Reports kernel modules that no check covers."""
    covered = {module for each in CHECKS for module in each.modules}
    for file in sorted(Path(gpu.__file__).parent.glob("*.py")):
        if "@triton.jit" in file.read_text() and file.stem not in covered:
            context.record(file.stem, "", error="no check for this module", is_time=False)


def cases(context: Context) -> list[Case]:
    device = torch.device(context.config.device)
    dtypes = [torch.bfloat16, torch.float16] if device.type == "cuda" else [torch.float32, torch.float16]
    shape = SMALL if context.is_reduced else LLAMA
    made = [
        Case(f"{each.name}, {dtype}", partial(check, checked=each, given=Given(shape, dtype, device)))
        for dtype in dtypes
        for each in CHECKS
    ]
    return [*made, Case("modules without a check", unchecked)]
