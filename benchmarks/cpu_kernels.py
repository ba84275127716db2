"""Times the CPU kernels next to torch's implementations and relative to a floor, in one run.

    PYTHONPATH=.dev python benchmarks/cpu_kernels.py [--threads 1] [--features avx512] [--only linear]

Shapes are those of Qwen3-0.6B in bfloat16, of experts those of Qwen3-30B-A3B. The floor is a lower bound on an op's
time: the longer of its bytes divided by the read bandwidth and its operations divided by the multiplication speed,
both measured in the same run. The speed is that of tiles (AMX) in registers where the machine has them, else that of
vectors with panels in the first-level cache. Times are the best of several rounds; the implementations alternate
within each round. With one thread, its processor time is measured, so other processes have little effect. A virtual
core may share its physical core with a thread of another machine, which slows it down for seconds, tiles most: a short
probe, which loads tiles where the machine has them, runs before and after each sample, and samples next to a slow probe
are left out, unless there are no others: then the line ends with "disturbed".
"""

from __future__ import annotations

import argparse
import ctypes
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from stoker.config.cpu_features import choose_level, this_cpu, wanted_level
from stoker.config.cpu_library import LibrarySpec
from stoker.engine.kernels import KernelSet, RMSNormGatedWeights, SelectiveScanWeights, StateSpaceWeights
from stoker.engine.kernels.cpu.library import load_library
from stoker.engine.kernels.experts import ExpertGate, ExpertWeights, GroupedExpert, PackedExperts
from stoker.engine.kernels.grouped import Grouped, GroupScales
from stoker.engine.kernels.linear import PackedLinear
from stoker.engine.kernels.route_experts import Routing
from stoker.engine.kernels.select_kernels import select_kernels
from stoker.model.quantised import SCHEMES

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCAB, BLOCK = 1024, 16, 8, 128, 3072, 151_936, 16
NUM_EXPERTS, EXPERTS_PER_TOKEN, EXPERT_HIDDEN, EXPERT_INNER = 128, 8, 2048, 768
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
FORMATS = tuple(dict.fromkeys(held for scheme in SCHEMES.values() for held in scheme))  # int8, int4
LAYER = ((QKV, HIDDEN), (HIDDEN, HEADS * HEAD_DIM), (2 * INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE))
PROBE_ROUNDS = 200  # some 100 us
DISTURBED = 1.25  # limit of a probe, relative to the fastest one
Run = Callable[[], object]


@dataclass(frozen=True)
class Sample:
    seconds: float
    slower_probe: float  # seconds, of the probes before and after


@dataclass(frozen=True)
class Step:
    query_start: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    max_query_len: int
    max_context_len: int


@dataclass(frozen=True)
class RecurrentRows:
    query_start: torch.Tensor
    context_lens: torch.Tensor
    seq_slots: torch.Tensor
    max_query_len: int


class Bench:
    def __init__(self, threads: int, features: str, rounds: int) -> None:
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self.rounds = rounds
        self.clock = time.thread_time if threads == 1 else time.perf_counter
        choose = partial(select_kernels, "cpu", torch.bfloat16, HEAD_DIM, features, quantization="int8")
        self.torch, self.ours, self.rounding = KernelSet(), choose(), choose(activations="int8")
        for stage, choice in self.ours.table.items():
            print(f"# {stage}: {choice}")
        library = load_library(LibrarySpec(choose_level(features, this_cpu())[0], has_quantised=True))
        for kernels in (self.ours, self.rounding):
            kernels.set_num_threads(threads)
        has_tiles = hasattr(library.handle, "multiply_cached_tiles_bfloat16")
        name = "multiply_cached_tiles" if has_tiles else "multiply_all"
        probe = library.op(name, torch.bfloat16, [ctypes.c_int64], ctypes.c_int64)
        self.probe = lambda: probe(PROBE_ROUNDS)
        self.fastest_probe = float("inf")
        self.advise_huge_pages = library.function("advise_huge_pages", [ctypes.c_void_p, ctypes.c_int64])
        read_all = library.function("read_all", [ctypes.c_void_p, ctypes.c_int64], ctypes.c_float)
        memory = self.empty(2**27, dtype=torch.float32).fill_(1)  # 512 MiB: much larger than the caches
        seconds = self._best({"read": lambda: read_all(memory.data_ptr(), memory.numel())})["read"].seconds
        self.bytes_per_second = memory.nbytes / seconds
        print(f"# {threads} threads, memory read at {self.bytes_per_second / 1e9:.1f} GB/s")
        names = {torch.float32: "multiply_all_float32", torch.bfloat16: "multiply_all_bfloat16"}
        names[torch.int8] = "multiply_all_int8"
        self.flops_per_second = {
            dtype: self._multiply_speed(library.function(name, [ctypes.c_int64], ctypes.c_int64), threads)
            for dtype, name in names.items()
        }
        for dtype, speed in self.flops_per_second.items():
            print(f"# {dtype}: vectors multiply at {speed / 1e9:.0f} GFLOP/s")
        for dtype in (torch.bfloat16, torch.int8):
            if hasattr(library.handle, name := names[dtype].replace("all", "tiles")):
                speed = self._multiply_speed(library.function(name, [ctypes.c_int64], ctypes.c_int64), threads)
                print(f"# {dtype}: tiles multiply at {speed / 1e9:.0f} GFLOP/s in registers")
                self.flops_per_second[dtype] = speed
        print(f"{'op':34} {'ours ms':>9} {'floor ms':>9} {'x floor':>8} {'GFLOP/s':>8} {'of peak':>8}  x others' time")

    def empty(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """Memory with huge pages, as weights and the KV cache use."""
        tensor = torch.empty(*shape, dtype=dtype)
        self.advise_huge_pages(tensor.data_ptr(), tensor.nbytes)
        return tensor

    def _multiply_speed(self, multiply_all: Callable[[int], int], threads: int) -> float:
        rounds = 2000
        seconds = self._best({"multiply": lambda: multiply_all(rounds)})["multiply"].seconds
        return multiply_all(rounds) * threads / seconds

    def _best(self, runs: dict[str, Run]) -> dict[str, Sample]:
        """The fastest undisturbed sample of each, or the fastest of all if every one was disturbed."""
        samples: dict[str, list[Sample]] = {name: [] for name in runs}
        for number in range(self.rounds + 1):
            for name, run in runs.items():
                before, seconds, after = self._probe(), self._seconds(run), self._probe()
                if number:  # the first round warms up
                    samples[name].append(Sample(seconds, max(before, after)))
                    self.fastest_probe = min(self.fastest_probe, before, after)
        limit = DISTURBED * self.fastest_probe
        return {
            name: min([each for each in found if each.slower_probe < limit] or found, key=lambda each: each.seconds)
            for name, found in samples.items()
        }

    def _probe(self) -> float:
        """The fastest of three: the first one reads what the sample before it has displaced from the caches."""
        return min(self._seconds(self.probe) for _ in range(3))

    def _seconds(self, run: Run) -> float:
        began = self.clock()
        run()
        return self.clock() - began

    def compare(
        self,
        op: str,
        num_bytes: float,
        flops: float,
        ours: Run,
        dtype: torch.dtype = torch.bfloat16,
        **others: Run,
    ) -> None:
        best = self._best({"ours": ours, **others})
        is_disturbed = any(each.slower_probe >= DISTURBED * self.fastest_probe for each in best.values())
        mine = best.pop("ours").seconds
        peak = self.flops_per_second[dtype]
        floor = max(num_bytes / self.bytes_per_second, flops / peak)
        ratios = ", ".join(f"{name} {mine / each.seconds:.2f}" for name, each in best.items())
        line = f"{op:34} {mine * 1e3:9.3f} {floor * 1e3:9.3f} {mine / floor:8.2f}"
        line += f" {flops / mine / 1e9:8.0f} {flops / mine / peak:8.0%}  {ratios}"
        print(line + ", disturbed" * is_disturbed, flush=True)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).bfloat16()


def bench_linear(bench: Bench, layers: int = 4) -> None:
    """The four linears of a layer, for enough layers that weights are read from memory; then the output layer."""
    weights = [randn(*shape) for _ in range(layers) for shape in LAYER]
    head = randn(VOCAB, HIDDEN)
    for tokens in (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 2048):
        compare_linears(bench, f"linears of {layers} layers, {tokens} tokens", weights, tokens)
    for tokens in (1, 8, 32, 256):
        compare_linears(bench, f"float32 linears, {tokens} tokens", [weight.float() for weight in weights], tokens)
    for tokens in (1, 32):
        compare_linears(bench, f"output layer, {tokens} tokens", [head], tokens)
    ids, packed = torch.randint(VOCAB, (1024,)), bench.ours.pack_linear(head, None)
    bench.compare(
        "embedding from packed panels, 1024",
        2 * 2 * ids.numel() * HIDDEN,
        0,
        lambda: bench.ours.embed(ids, packed),
        F_embedding=lambda: F.embedding(ids, head),
    )


def bench_quantised(bench: Bench, layers: int = 8) -> None:
    """The same linears with int8 and int4 weights, relative to their own floor and to bfloat16; then with activations
    in int8, relative to activations in bfloat16; then the output layer, which is int4 with `int4_pure`."""
    weights = [randn(*shape) for _ in range(layers) for shape in LAYER]
    plain = [bench.ours.pack_linear(weight, None) for weight in weights]
    for held in FORMATS:
        codes = [bench.ours.quantise_linear(weight, None, held) for weight in weights]
        rounding = [bench.rounding.quantise_linear(weight, None, held) for weight in weights]
        for tokens in (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024):
            inputs = {depth: randn(tokens, depth) for depth in {weight.shape[1] for weight in weights}}

            def multiply(layers: list[PackedLinear], inputs: dict[int, torch.Tensor] = inputs) -> list[torch.Tensor]:
                return [bench.ours.linear(inputs[each.in_features], each) for each in layers]

            num_bytes = sum(each.num_bytes for each in codes)
            flops = 2 * tokens * sum(weight.numel() for weight in weights)
            name = f"linears of {layers} layers, {tokens} tokens"
            ours = partial(multiply, codes)
            bench.compare(f"{held} {name}", num_bytes, flops, ours, bfloat16=partial(multiply, plain))
            bench.compare(
                f"{held} x int8 {name}",
                num_bytes,
                flops,
                partial(multiply, rounding),
                torch.int8,
                activations_bf16=ours,
            )
    head, ids = randn(VOCAB, HIDDEN), torch.randint(VOCAB, (1024,))
    plain_head = bench.ours.pack_linear(head, None)
    for held in FORMATS:
        output = bench.ours.quantise_linear(head, None, held)
        for tokens in (1, 32):
            x = randn(tokens, HIDDEN)
            bench.compare(
                f"{held} output layer, {tokens} tokens",
                output.num_bytes,
                2 * tokens * head.numel(),
                partial(bench.ours.linear, x, output),
                bfloat16=partial(bench.ours.linear, x, plain_head),
            )
        bench.compare(
            f"embedding from {held} panels, 1024",
            3 * ids.numel() * HIDDEN,
            0,
            partial(bench.ours.embed, ids, output),
            bfloat16=partial(bench.ours.embed, ids, plain_head),
        )


def compare_linears(bench: Bench, name: str, weights: list[torch.Tensor], tokens: int) -> None:
    packed = [bench.ours.pack_linear(weight, None) for weight in weights]
    dtype = weights[0].dtype
    others: dict[str, Run] = {"F_linear": lambda: [F.linear(inputs[each.shape[1]], each) for each in weights]}
    if dtype == torch.bfloat16:  # weights in oneDNN's order, as torch's compiler packs them for inference
        prepacked = [torch.ops.mkldnn._reorder_linear_weight(weight, 1024) for weight in weights]

        def multiply_prepacked() -> None:
            for weight, each in zip(weights, prepacked, strict=True):
                torch.ops.mkldnn._linear_pointwise(inputs[weight.shape[1]], each, None, "none", [], "")

        others["prepacked"] = multiply_prepacked
    inputs = {depth: randn(tokens, depth).to(dtype) for depth in {weight.shape[1] for weight in weights}}
    num_weights = sum(weight.numel() for weight in weights)
    bench.compare(
        name,
        dtype.itemsize * num_weights,
        2 * num_weights * tokens,
        lambda: [bench.ours.linear(inputs[each.in_features], each) for each in packed],
        dtype,
        **others,
    )


def bench_experts(bench: Bench) -> None:
    """A layer of experts of Qwen3-30B-A3B, for as many choices of experts as read about 400 MB, relative to the linear
    layers of the same experts with the same rows: the same bytes and products, without routing, gates and sums."""
    gate = ExpertGate("silu")
    routing = Routing(NUM_EXPERTS, EXPERTS_PER_TOKEN, renormalises=True)
    shapes = (2 * EXPERT_INNER, EXPERT_HIDDEN), (EXPERT_HIDDEN, EXPERT_INNER)
    for held in (None, *FORMATS, "Q4_K"):
        packed = _packed_experts(bench, held, gate, shapes)
        for tokens in (1, 8, 32, 1024):
            x = randn(tokens, EXPERT_HIDDEN)
            active = min(NUM_EXPERTS, tokens * EXPERTS_PER_TOKEN)
            repeats = max(1, 400_000_000 * NUM_EXPERTS // (packed.num_bytes * active))
            logits = [randn(tokens, NUM_EXPERTS) for _ in range(repeats)]
            chosen = [bench.ours.route_experts(each, None, routing)[0] for each in logits]
            rows = [[(int(e), int((ids == e).sum())) for e in ids.unique()] for ids in chosen]
            inputs = {
                count: (randn(count, EXPERT_HIDDEN), randn(count, EXPERT_INNER)) for each in rows for _, count in each
            }

            def ours(packed: PackedExperts = packed, x: torch.Tensor = x, logits: list[torch.Tensor] = logits) -> None:
                for each in logits:
                    bench.ours.experts(x, *bench.ours.route_experts(each, None, routing), packed, None, None)

            def linears(
                packed: PackedExperts = packed,
                rows: list[list[tuple[int, int]]] = rows,
                inputs: dict[int, tuple[torch.Tensor, torch.Tensor]] = inputs,
            ) -> None:
                for each in rows:
                    for expert, count in each:
                        bench.ours.linear(inputs[count][0], packed.experts[expert].gate_up)
                        bench.ours.linear(inputs[count][1], packed.experts[expert].down)

            num_bytes = sum(packed.experts[expert].num_bytes for each in rows for expert, _ in each)
            flops = 2 * repeats * tokens * EXPERTS_PER_TOKEN * sum(math.prod(shape) for shape in shapes)
            name = f"{held or 'bfloat16'} experts x {repeats}, {tokens} tokens"
            bench.compare(name, num_bytes, flops, ours, linears=linears)


def _packed_experts(
    bench: Bench, held: str | None, gate: ExpertGate, shapes: tuple[tuple[int, int], tuple[int, int]]
) -> PackedExperts:
    """held: a scheme, or Q4_K for the codes of such a file."""

    def grouped(outputs: int, inputs: int) -> Grouped:
        codes = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8)
        of_groups = torch.randint(0, 64, (outputs, inputs // 32), dtype=torch.uint8)
        scales = GroupScales(of_groups, torch.rand(outputs, inputs // 256).half() / 64)
        return Grouped(codes, torch.arange(16.0), scales, minima=scales)

    def experts() -> Iterator[ExpertWeights | GroupedExpert]:
        for _ in range(NUM_EXPERTS):
            if held != "Q4_K":
                yield ExpertWeights(*(randn(*shape) for shape in shapes))
                continue
            (outputs, hidden), down = shapes
            yield GroupedExpert((grouped(outputs // 2, hidden), grouped(outputs // 2, hidden)), grouped(*down))

    return bench.ours.pack_experts(experts(), NUM_EXPERTS, gate, None if held == "Q4_K" else held)


def paged_step(rows: list[tuple[int, int]]) -> tuple[Step, int]:
    """rows: (query_len, context_len). Returns the step, with blocks in random order, and the number of blocks."""
    counts = [-(-context // BLOCK) for _, context in rows]
    ids = torch.randperm(sum(counts), dtype=torch.int32)
    tables = torch.zeros(len(rows), max(counts), dtype=torch.int32)
    for row, part in enumerate(ids.split(counts)):
        tables[row, : len(part)] = part
    starts = torch.tensor([0, *(query for query, _ in rows)]).cumsum(0).int()
    contexts = torch.tensor([context for _, context in rows], dtype=torch.int32)
    return Step(starts, contexts, tables, max(query for query, _ in rows), int(contexts.max())), sum(counts)


def bench_attention(bench: Bench) -> None:
    cases = {
        "decode, 1 x 512": ([(1, 512)], 28),
        "decode, 1 x 4096": ([(1, 4096)], 8),
        "decode, 32 x 160": ([(1, 160)] * 32, 4),
        "decode, 32 x 512": ([(1, 512)] * 32, 2),
        "decode, 128 x 1024": ([(1, 1024)] * 128, 1),
        "prefill, 1024": ([(1024, 1024)], 1),
        "prefill, 2048": ([(2048, 2048)], 1),
        "prefill, 256 after 1024": ([(256, 1280)], 1),
        "prefill 512 and 16 x decode 512": ([(512, 512)] + [(1, 512)] * 16, 1),
    }
    for name, (rows, layers) in cases.items():
        step, num_blocks = paged_step(rows)
        caches = bench.empty(layers, 2, num_blocks, KV_HEADS, BLOCK, HEAD_DIM).normal_()
        q = randn(int(step.query_start[-1]), HEADS, HEAD_DIM)
        num_bytes = layers * sum(context for _, context in rows) * KV_HEADS * HEAD_DIM * 2 * 2
        pairs = sum(query * (context - query) + query * (query + 1) / 2 for query, context in rows)

        def run(kernels: KernelSet, q: torch.Tensor = q, caches: torch.Tensor = caches, step: Step = step) -> None:
            for cache in caches:
                kernels.paged_attention(q, cache[0], cache[1], step, HEAD_DIM**-0.5)

        others: dict[str, Run] = {"gather_and_SDPA": lambda: run(bench.torch)}
        if len(rows) == 1 and rows[0][0] == rows[0][1]:
            # What a model without paging would do: contiguous keys and values.
            q1, k1, v1 = (randn(1, heads, rows[0][0], HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
            others["contiguous_SDPA"] = partial(
                F.scaled_dot_product_attention, q1, k1, v1, is_causal=True, enable_gqa=True
            )
        bench.compare(name, num_bytes, 4 * HEADS * HEAD_DIM * pairs * layers, lambda: run(bench.ours), **others)


def bench_latent(bench: Bench) -> None:
    """Attention over latents of 512 + 64 elements: of 16 heads (DeepSeek-V2-Lite) and of 64 (Kimi K2)."""
    rank, width = 512, 576
    cases = {
        "latent decode, 1 x 4096": ([(1, 4096)], 16, 8),
        "latent decode, 32 x 512": ([(1, 512)] * 32, 16, 4),
        "latent decode, 1 x 4096, 64 heads": ([(1, 4096)], 64, 2),
        "latent prefill, 256 after 1024": ([(256, 1280)], 16, 1),
    }
    for name, (rows, heads, layers) in cases.items():
        step, num_blocks = paged_step(rows)
        caches = bench.empty(layers, num_blocks, 1, BLOCK, width).normal_()
        q = randn(int(step.query_start[-1]), heads, width)
        num_bytes = layers * sum(context for _, context in rows) * width * 2
        pairs = sum(query * (context - query) + query * (query + 1) / 2 for query, context in rows)

        def run(kernels: KernelSet, q: torch.Tensor = q, caches: torch.Tensor = caches, step: Step = step) -> None:
            for cache in caches:
                kernels.latent_attention(q, cache, step, 192**-0.5, rank)

        flops = 2 * heads * (width + rank) * pairs * layers
        bench.compare(name, num_bytes, flops, lambda: run(bench.ours), gather_and_multiply=lambda: run(bench.torch))
    for tokens in (1, 32):
        heads, plain = 16, 128
        queries, positions = randn(tokens, heads * 192), torch.arange(tokens)
        keys, cos_sin = bench.empty(8, heads, plain, rank).normal_(), torch.randn(tokens, 64)

        def absorb(
            kernels: KernelSet,
            queries: torch.Tensor = queries,
            keys: torch.Tensor = keys,
            cos_sin: torch.Tensor = cos_sin,
            positions: torch.Tensor = positions,
        ) -> None:
            for each in keys:
                kernels.absorb_queries(queries, each, cos_sin, True, positions)

        size = heads * plain * rank
        bench.compare(
            f"absorb_queries, {tokens} tokens",
            8 * size * 2,
            8 * 2 * size * tokens,
            partial(absorb, bench.ours),
            torch=partial(absorb, bench.torch),
        )


def bench_states(bench: Bench) -> None:
    """The state space of Mamba-2 and the gated RMS norm of its outputs, of the 23 layers of Nemotron 3 Nano."""
    heads, head_dim, groups, state_size, layers = 64, 64, 8, 128, 23
    width, channels = heads * head_dim, heads * head_dim + 2 * groups * state_size
    weights = StateSpaceWeights(torch.zeros(heads), torch.zeros(heads), torch.ones(heads))
    norm = RMSNormGatedWeights("after_gate", torch.ones(width), 1e-5, groups)
    for name, rows, tokens in (("decode, 1 row", 1, 1), ("decode, 32 rows", 32, 1), ("prompt of 1024", 1, 1024)):
        total = rows * tokens
        mixed, projected = randn(total, channels), randn(total, channels + width + heads)
        states = bench.empty(layers, rows, heads, state_size, head_dim, dtype=torch.float32).fill_(0)
        step = RecurrentRows(
            torch.arange(rows + 1, dtype=torch.int32) * tokens,
            torch.full((rows,), tokens + 1, dtype=torch.int32),
            torch.arange(rows, dtype=torch.int32),
            tokens,
        )

        def scan(
            mixed: torch.Tensor = mixed,
            projected: torch.Tensor = projected,
            states: torch.Tensor = states,
            step: RecurrentRows = step,
        ) -> None:
            for state in states:
                bench.ours.state_space(mixed, projected, weights, state, step)

        elements = layers * rows * heads * state_size * head_dim
        bench.compare(f"state_space, {name}", 8.0 * elements, 5.0 * elements * tokens, scan, torch.float32)
        x = torch.randn(total, width)
        bench.compare(
            f"rms_norm_gated, {name}",
            8.0 * x.numel(),
            0,
            partial(bench.ours.rms_norm_gated, x, projected, channels, norm),
            torch=partial(bench.torch.rms_norm_gated, x, projected, channels, norm),
        )


def bench_elementwise(bench: Bench) -> None:
    for tokens in (1, 32, 1024):
        compare_elementwise(bench, tokens)


def compare_elementwise(bench: Bench, tokens: int) -> None:
    angles = torch.outer(torch.arange(4096.0), 1e6 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM))
    cos_sin = torch.cat([angles.cos(), angles.sin()], -1)
    norm, head_norm, positions = torch.randn(HIDDEN), torch.randn(HEAD_DIM), torch.arange(tokens)
    x, residual, gate_up, qkv = (randn(tokens, width) for width in (HIDDEN, HIDDEN, 2 * INTERMEDIATE, QKV))
    k_cache, v_cache = torch.zeros(2, -(-tokens // BLOCK), KV_HEADS, BLOCK, HEAD_DIM, dtype=torch.bfloat16)

    def norm_with(kernels: KernelSet) -> object:
        return kernels.add_rms_norm(x, residual, norm, 1e-6)

    def rope_with(kernels: KernelSet) -> object:
        return kernels.rope_and_store(
            qkv, head_norm, head_norm, 1e-6, cos_sin, positions, positions, k_cache, v_cache, HEADS, KV_HEADS
        )

    def gate_with(kernels: KernelSet) -> object:
        return kernels.activate_and_mul(gate_up)

    for op, num_bytes, run in (
        ("add_rms_norm", 8 * HIDDEN, norm_with),
        ("rope_and_store", 4 * QKV, rope_with),
        ("activate_and_mul", 6 * INTERMEDIATE, gate_with),
    ):
        bench.compare(
            f"{op}, {tokens} tokens", num_bytes * tokens, 0, partial(run, bench.ours), torch=partial(run, bench.torch)
        )


def bench_scan(bench: Bench) -> None:
    """The selective scan of Mamba, of the 64 layers of Falcon Mamba 7B, whose states are larger than the caches."""
    channels, state_size, layers = 8192, 16, 64
    vector = torch.zeros(channels)
    weights = SelectiveScanWeights(-torch.rand(state_size, channels), vector, vector)
    for name, rows, tokens in (("decode, 1 row", 1, 1), ("decode, 16 rows", 16, 1), ("prompt of 128", 1, 128)):
        total = rows * tokens
        inputs = [randn(total, width) for width in (channels, 2 * channels, channels, state_size, state_size)]
        states = bench.empty(layers, rows, state_size, channels, dtype=torch.float32).fill_(0)
        step = RecurrentRows(
            torch.arange(rows + 1, dtype=torch.int32) * tokens,
            torch.full((rows,), tokens + 1, dtype=torch.int32),
            torch.arange(rows, dtype=torch.int32),
            tokens,
        )

        def scan(
            inputs: list[torch.Tensor] = inputs, states: torch.Tensor = states, step: RecurrentRows = step
        ) -> None:
            x, projected, steps, b, c = inputs
            for state in states:
                bench.ours.selective_scan(x, projected, steps, b, c, weights, state, step)

        elements = layers * rows * state_size * channels
        bench.compare(f"selective_scan, {name}", 8.0 * elements, 6.0 * elements * tokens, scan, torch.float32)


def main() -> None:
    parts = {
        "linear": bench_linear,
        "quantised": bench_quantised,
        "attention": bench_attention,
        "latent": bench_latent,
        "states": bench_states,
        "scan": bench_scan,
        "elementwise": bench_elementwise,
        "experts": bench_experts,
    }
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments.add_argument("--features", default=wanted_level(), help="auto or a level; default: STOKER_CPU_FEATURES")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--only", choices=parts)
    chosen = arguments.parse_args()
    with torch.inference_mode():
        bench = Bench(chosen.threads, chosen.features, chosen.rounds)
        for name, part in parts.items():
            if chosen.only in (None, name):
                part(bench)


if __name__ == "__main__":
    main()
