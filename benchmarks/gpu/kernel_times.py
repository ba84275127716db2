"""Times every kernel at real shapes, relative to its floor (lower bound) and next to torch's implementation.

An Op creates its operands and the functions to time; `ours` is the function of the kernel set. Runs alternate between
several copies of the operands, so that operands are not in the L2 cache. A new kernel needs one function here and one
line in `ops`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from stoker.engine.kernels import Grouped, GroupScales, KernelSet
from stoker.model.quantised import GroupLayout

from .paged_batch import Batch
from .part import Case, Context, first_line
from .shapes import LLAMA, QWEN, SMALL, Cost, Shape
from .timing import Run, Timer

_COPIED_BYTES = 3 * 2**30  # maximum size of all copies of the operands
_MAX_COPIES = 8
_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "efficient, heads repeated": SDPBackend.EFFICIENT_ATTENTION,
}
Runs = dict[str, Run]


@dataclass(frozen=True, slots=True)
class Bench:
    kernels: KernelSet
    device: torch.device
    dtype: torch.dtype

    def randn(self, *sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, device=self.device, dtype=self.dtype)


@dataclass(frozen=True, slots=True)
class Op:
    name: str
    shape: str
    cost: Cost
    make: Callable[[Bench], Runs]
    seconds: float = 4.0  # approximate duration, with compilation
    without_graph: tuple[str, ...] = ()  # runs that copy from the device, so they cannot be captured


def norm(shape: Shape, tokens: int) -> Op:
    def make(bench: Bench) -> Runs:
        x, residual, weight = bench.randn(tokens, shape.hidden), bench.randn(tokens, shape.hidden), bench.randn(1)
        weight = weight.expand(shape.hidden).contiguous()
        return {
            "ours": lambda: bench.kernels.add_rms_norm(x, residual, weight, 1e-6),
            "torch rms_norm": lambda: F.rms_norm(x + residual, (shape.hidden,), weight, 1e-6),
        }

    return Op("norm", f"{shape.name}, {tokens} tokens", (8.0 * tokens * shape.hidden, 0), make)


def linear(shape: Shape, layer: str, tokens: int) -> Op:
    outputs, inputs = (shape.vocab, shape.hidden) if layer == "output layer" else shape.linears[layer]

    def make(bench: Bench) -> Runs:
        x, weight = bench.randn(tokens, inputs), bench.randn(outputs, inputs)
        packed = bench.kernels.pack_linear(weight, None)
        return {"ours": lambda: bench.kernels.linear(x, packed), "torch F.linear": lambda: F.linear(x, weight)}

    moved = 2.0 * (outputs * inputs + tokens * (inputs + outputs))
    return Op(f"linear, {layer}", f"{shape.name}, {tokens} tokens", (moved, 2.0 * tokens * outputs * inputs), make)


def codes(shape: Shape, layer: str, tokens: int, bits: Literal[4, 8]) -> Op:
    """A linear layer over a checkpoint's own codes: GPTQ in groups of 128, or fp8 with scales of 128 inputs."""
    outputs, inputs = shape.linears[layer]
    group = min(128, inputs)
    layout = GroupLayout(bits, group, 2, offset="zeros" if bits == 4 else "")

    def make(bench: Bench) -> Runs:
        own = torch.randint(0, 16 if bits == 4 else 127, (outputs, inputs), device=bench.device, dtype=torch.uint8)
        scales = GroupScales(torch.rand(outputs, inputs // group, device=bench.device).half() / 64)
        if bits == 4:
            weight = Grouped(own, torch.arange(16.0), scales, zeros=torch.full_like(scales.values, 8).float())
        else:
            levels = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num(0.0)
            weight = Grouped(own, levels, scales)
        pack = bench.kernels.pack_grouped
        packed = None if pack is None else pack([weight], None, bench.dtype)
        assert packed is not None, "the kernels of GPUs take these groups"
        x, dense = bench.randn(tokens, inputs), bench.randn(outputs, inputs)
        return {"ours": lambda: bench.kernels.linear(x, packed), "torch, dequantised": lambda: F.linear(x, dense)}

    moved = layout.row_bytes(outputs, inputs) + 2.0 * tokens * (inputs + outputs)
    what = "GPTQ" if bits == 4 else "fp8"
    return Op(
        f"linear, {what}, {layer}", f"{shape.name}, {tokens} tokens", (moved, 2.0 * tokens * outputs * inputs), make
    )


def rope(shape: Shape, tokens: int) -> Op:
    def make(bench: Bench) -> Runs:
        qkv, cos_sin = bench.randn(tokens, shape.qkv), torch.randn(4096, shape.head_dim, device=bench.device)
        norms = [bench.randn(shape.head_dim) if shape.has_head_norms else None for _ in range(2)]
        blocks = -(-tokens // shape.block_size)
        caches = bench.randn(2, blocks, shape.kv_heads, shape.block_size, shape.head_dim)
        slots = torch.randperm(tokens, device=bench.device)
        rest = (*norms, 1e-6, cos_sin, slots % 4096, slots, *caches, shape.heads, shape.kv_heads)
        return {"ours": lambda: bench.kernels.rope_and_store(qkv, *rest)}

    return Op("rope and store", f"{shape.name}, {tokens} tokens", (4.0 * tokens * shape.qkv, 0), make)


def gate(shape: Shape, tokens: int) -> Op:
    def make(bench: Bench) -> Runs:
        gate_up = bench.randn(tokens, 2 * shape.intermediate)

        def torchs() -> torch.Tensor:
            gates, ups = gate_up.chunk(2, -1)
            return F.silu(gates) * ups

        return {"ours": lambda: bench.kernels.activate_and_mul(gate_up), "torch silu, mul": torchs}

    return Op("gate", f"{shape.name}, {tokens} tokens", (6.0 * tokens * shape.intermediate, 0), make)


def paged(bench: Bench, shape: Shape, rows: list[tuple[int, int]]) -> Batch:
    """rows: queries and context length of each. Blocks are in random order."""
    counts, lengths = zip(*rows, strict=True)
    needed = [-(-length // shape.block_size) for length in lengths]
    ids = torch.randperm(sum(needed)).int()
    table = torch.zeros(len(rows), max(needed), dtype=torch.int32)
    for row, part in enumerate(ids.split(needed)):
        table[row, : len(part)] = part
    caches = [bench.randn(len(ids), shape.kv_heads, shape.block_size, shape.head_dim) for _ in range(2)]
    q = bench.randn(sum(counts), shape.heads, shape.head_dim)
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    on_device = (each.to(bench.device) for each in (starts, torch.tensor(lengths).int(), table))
    return Batch(q, *caches, *on_device, max_query_len=max(counts), max_context_len=max(lengths))


def attend(bench: Bench, shape: Shape, rows: list[tuple[int, int]]) -> Runs:
    """Ways to attend: ours, and SDPA if all rows are equal, on contiguous keys and values instead of blocks."""
    made, scale = paged(bench, shape, rows), shape.head_dim**-0.5
    ways: Runs = {"ours": lambda: bench.kernels.paged_attention(made.q, made.k_cache, made.v_cache, made, scale)}
    queries, length = rows[0]
    if len(set(rows)) > 1 or queries not in (1, length):
        return ways
    q = bench.randn(len(rows), shape.heads, queries, shape.head_dim)
    k, v = (bench.randn(len(rows), shape.kv_heads, length, shape.head_dim) for _ in range(2))
    if bench.device.type != "cuda":
        return ways
    wide = [each.repeat_interleave(shape.heads // shape.kv_heads, 1) for each in (k, v)]

    def torchs(backend: SDPBackend) -> torch.Tensor:
        has_groups = backend != SDPBackend.EFFICIENT_ATTENTION
        keys, values = (k, v) if has_groups else wide
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(
                q, keys, values, is_causal=queries > 1, scale=scale, enable_gqa=has_groups
            )

    return ways | {f"torch SDPA, {name}, contiguous": partial(torchs, each) for name, each in _BACKENDS.items()}


def decode(shape: Shape, batch: int, context: int) -> Op:
    tokens = batch * context
    cost = 4.0 * shape.kv_heads * shape.head_dim * tokens, 4.0 * shape.heads * shape.head_dim * tokens
    make = partial(attend, shape=shape, rows=[(1, context)] * batch)
    return Op("decode attention", f"{shape.name}, {batch} x {context}", cost, make, seconds=6.0)


def mixed_decode(shape: Shape, batch: int, max_context: int) -> Op:
    lengths = np.random.default_rng(0).integers(1, max_context, batch).tolist()
    tokens = sum(lengths)
    cost = 4.0 * shape.kv_heads * shape.head_dim * tokens, 4.0 * shape.heads * shape.head_dim * tokens
    make = partial(attend, shape=shape, rows=[(1, length) for length in lengths])
    return Op("decode attention", f"{shape.name}, {batch} x 1 to {max_context}", cost, make, seconds=6.0)


def prefill(shape: Shape, queries: int, context: int) -> Op:
    pairs = queries * (context - (queries - 1) / 2)
    moved = 2.0 * shape.head_dim * (2 * context * shape.kv_heads + 2 * queries * shape.heads)
    make = partial(attend, shape=shape, rows=[(queries, context)])
    name = f"{shape.name}, {queries}" + (f" after {context - queries}" if queries < context else "")
    return Op("prefill attention", name, (moved, 4.0 * shape.heads * shape.head_dim * pairs), make, seconds=6.0)


def sampler(shape: Shape, rows: int, temperature: float, top_k: int = 0, top_p: float = 1.0) -> Op:
    """The whole sampler, next to torch's argmax, or sort, topk and multinomial, which synchronise with the device."""
    is_fast_path = top_k == 0 and top_p == 1
    torchs_way = (
        "torch argmax" if not temperature else f"torch {'topk, ' if top_k else 'sort, ' * (top_p < 1)}multinomial"
    )

    def make(bench: Bench) -> Runs:
        from tests.kernels.references import sampling_columns

        from stoker.engine.kernels.gpu.sample import sample, sampling_workspace

        logits = 3 * bench.randn(rows, shape.vocab)
        columns = sampling_columns(rows, shape.vocab, bench.device)
        columns.temperature.fill_(temperature)
        columns.top_k.fill_(top_k)
        columns.top_p.fill_(top_p)
        slots = torch.arange(rows, dtype=torch.int32, device=bench.device)
        sampled, workspace = torch.empty_like(slots), sampling_workspace(rows, shape.vocab, bench.device)

        def ours() -> None:
            sample(logits, slots, slots, columns, sampled, workspace, is_fast_path=is_fast_path)

        def torchs() -> torch.Tensor:
            if temperature == 0:
                return logits.argmax(-1)
            if is_fast_path:
                return torch.multinomial((logits.float() / temperature).softmax(-1), 1)
            if top_k:
                values, ids = logits.float().topk(top_k, -1)
                return ids.gather(1, torch.multinomial((values / temperature).softmax(-1), 1))
            values, ids = logits.float().sort(-1, descending=True)
            weights = (values / temperature).softmax(-1)
            kept = weights.masked_fill(weights.cumsum(-1) - weights > top_p, 0.0)
            return ids.gather(1, torch.multinomial(kept, 1))

        return {"ours": ours, torchs_way: torchs}

    sampling = f"top-k {top_k}" if top_k else f"top-p {top_p}" if top_p < 1 else f"temperature {temperature}"
    name = f"{shape.vocab} logits, {rows} rows, {sampling}"
    waits = (torchs_way,) if temperature else ()
    return Op("sampler", name, (2.0 * rows * shape.vocab, 0), make, without_graph=waits)


def fused(shape: Shape, tokens: int, is_gated: bool) -> Op:
    """A linear layer fused with the residual sum and norm before it and the gate after it, next to torch's ops."""
    layer = "gate and up" if is_gated else "qkv"
    outputs, inputs = shape.linears[layer]

    def make(bench: Bench) -> Runs:
        x, residual, weight = bench.randn(tokens, inputs), bench.randn(tokens, inputs), bench.randn(outputs, inputs)
        gains = torch.ones(inputs, device=bench.device, dtype=bench.dtype)
        packed = bench.kernels.pack_linear(weight, None)
        run = bench.kernels.norm_gate_up if is_gated else bench.kernels.norm_linear

        def torchs() -> torch.Tensor:
            found = F.linear(F.rms_norm(x + residual, (inputs,), gains, 1e-6), weight)
            return F.silu(found[:, : outputs // 2]) * found[:, outputs // 2 :] if is_gated else found

        return {"ours": lambda: run(x, residual, gains, 1e-6, packed), "torch ops": torchs}

    moved = 2.0 * (outputs * inputs + tokens * (3 * inputs + outputs // (1 + is_gated)))
    name = "norm, gate and up, gate" if is_gated else "norm, qkv"
    return Op(name, f"{shape.name}, {tokens} tokens", (moved, 2.0 * tokens * outputs * inputs), make)


def tables(shape: Shape, rows: int, context: int) -> Op:
    """Builds a decode step from slot tables on the device. It moves few bytes, so launch overhead dominates."""

    def make(bench: Bench) -> Runs:
        from stoker.engine.kernels.gpu.prepare_step import StepRows, StepTensors, prepare_step

        def int32_zeros(*sizes: int) -> torch.Tensor:
            return torch.zeros(sizes, dtype=torch.int32, device=bench.device)

        slots = torch.arange(rows, dtype=torch.int32, device=bench.device)
        starts = torch.arange(rows + 1, dtype=torch.int32, device=bench.device)
        blocks = -(-context // shape.block_size)
        given = StepRows(slots, torch.full_like(slots, context - 1), starts)
        out = StepTensors(
            *(int32_zeros(rows).long() for _ in range(3)),
            int32_zeros(rows),
            int32_zeros(rows, blocks),
            int32_zeros(rows).long(),
        )
        token_table, block_table = int32_zeros(rows, context + 1), int32_zeros(rows, blocks)
        return {"ours": lambda: prepare_step(given, token_table, block_table, shape.block_size, out)}

    return Op("prepare_step", f"{rows} x {context}", (40.0 * rows + 8.0 * rows * context / shape.block_size, 0), make)


def ops(is_reduced: bool) -> list[Op]:
    """Ops that have targets come first."""
    if is_reduced:
        return [
            decode(SMALL, 3, 40), mixed_decode(SMALL, 3, 50), prefill(SMALL, 40, 40), prefill(SMALL, 8, 40),
            *(linear(SMALL, layer, 1) for layer in SMALL.linears), norm(SMALL, 3), rope(SMALL, 3), gate(SMALL, 3),
            sampler(SMALL, 2, 0.7), sampler(SMALL, 2, 0.0), sampler(SMALL, 2, 0.7, top_k=40),
            sampler(SMALL, 2, 0.7, top_p=0.9), fused(SMALL, 1, False), fused(SMALL, 1, True), tables(SMALL, 2, 40),
            codes(SMALL, "out", 1, 4), codes(SMALL, "out", 20, 8),
        ]  # fmt: skip
    return [
        decode(LLAMA, 64, 2048), decode(LLAMA, 256, 512), decode(LLAMA, 1, 8192), decode(QWEN, 256, 2048),
        mixed_decode(QWEN, 256, 2048),
        prefill(LLAMA, 8192, 8192), prefill(LLAMA, 2048, 2048), prefill(QWEN, 2048, 2048), prefill(LLAMA, 2048, 8192),
        *(linear(LLAMA, layer, 1) for layer in LLAMA.linears), linear(LLAMA, "output layer", 1),
        *(linear(QWEN, layer, 1) for layer in QWEN.linears), linear(QWEN, "output layer", 1),
        *(linear(LLAMA, "gate and up", tokens) for tokens in (16, 64, 256)), linear(LLAMA, "down", 64),
        *(linear(QWEN, "gate and up", tokens) for tokens in (64, 256)), linear(QWEN, "output layer", 64),
        *(codes(LLAMA, "gate and up", tokens, bits) for bits in (4, 8) for tokens in (1, 16, 256)),
        *(fused(shape, 1, is_gated) for shape in (QWEN, LLAMA) for is_gated in (False, True)),
        norm(QWEN, 1), norm(LLAMA, 256), rope(QWEN, 1), rope(LLAMA, 256), gate(QWEN, 1), gate(LLAMA, 256),
        sampler(QWEN, 1, 0.7), sampler(QWEN, 256, 0.7), sampler(QWEN, 256, 0.0),
        sampler(QWEN, 256, 0.7, top_p=0.9), sampler(QWEN, 256, 0.7, top_k=40), tables(QWEN, 256, 2048),
    ]  # fmt: skip


def make_bench(context: Context) -> Bench:
    from stoker.engine.kernels.gpu.kernels import gpu_kernels

    device = torch.device(context.config.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32  # the interpreter's bfloat16 is wrong
    return Bench(gpu_kernels(device, max_rows=512), device, dtype)


def measure(context: Context, op: Op) -> None:
    bench = context.shared("bench", lambda: make_bench(context))
    timer = context.shared("timer", lambda: Timer(bench.device))
    copies = 1
    if bench.device.type == "cuda" and not context.is_reduced:
        copies = int(max(2, min(_MAX_COPIES, _COPIED_BYTES / max(op.cost[0], 1.0))))
    with torch.inference_mode():
        sets = [op.make(bench) for _ in range(copies)]
        for way in sets[0]:
            report(context, op, way, timer, [each[way] for each in sets])
    del sets
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()


def report(context: Context, op: Op, way: str, timer: Timer, runs: list[Run]) -> None:
    name = op.name if way == "ours" else f"{op.name}: {way}"
    try:
        timing = timer.measure(runs, way not in op.without_graph)
    except Exception as error:
        if not context.is_usable():
            raise
        context.record(name, op.shape, error=first_line(error))
        return
    floor = context.seconds_at_best(*op.cost)
    context.record(name, op.shape, timing and timing.us, "us", floor and floor * 1e6, timing and timing.spread)


def cases(context: Context) -> list[Case]:
    return [
        Case(f"{op.name}, {op.shape}", partial(measure, op=op), 0.0 if context.is_reduced else op.seconds)
        for op in ops(context.is_reduced)
    ]
