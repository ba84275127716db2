"""Profile of a step: milliseconds of each part, its floor, and the whole step.

    python -m benchmarks.step_profile [--rows 1 32 128] [--context 160] [--quantization int8]
    python -m benchmarks.step_profile --prompt 1024              one row of a whole prompt
    python -m benchmarks.step_profile --rows 32 --chunk 256      decode rows beside the first tokens of a prompt
    python -m benchmarks.step_profile --model qwen3.5-0.8b       another shape of benchmarks/models
    python -m benchmarks.step_profile --sampling [--rows 32]     sampling time by sampling parameters

For the parts, the model's ops run one by one and each is timed; the whole step is the runner's own, which may execute
ops differently. The floor is a lower bound: bytes divided by the measured read bandwidth, or floating-point operations
divided by the measured speed, whichever is longer. Weights are random.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as in the engine; read when torch is loaded

import torch

from stoker.config import load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.engine.api import RequestInputs, SamplingParams
from stoker.engine.kernels import KernelSet
from stoker.engine.kernels.attention_variant import PLAIN, AttentionVariant
from stoker.engine.kernels.experts import PackedExperts
from stoker.engine.layers.step_input import StepInput
from stoker.engine.runner import loaded_model
from stoker.engine.runner.body import forward_of
from stoker.engine.runner.load_runner import load_runner
from stoker.engine.runner.step_input import build_step_input
from stoker.engine.sampling.sampler import Sampler
from stoker.engine.step.plan import Admission, StepPlan
from stoker.model.cache_groups import MAX_GROUPS
from stoker.model.quantised import SCHEMES

from .floors import Floors

MODELS = Path(__file__).parent / "models"
BLOCK = 16
REPEATS = 12  # of each decode step; medians are reported
PROMPT_REPEATS = 4
GREEDY = SamplingParams(temperature=0, max_tokens=None)
SAMPLINGS = {
    "greedy": GREEDY,
    "temperature 0.7": SamplingParams(temperature=0.7),
    "top-p 0.9": SamplingParams(temperature=0.7, top_p=0.9),
    "top-k 40": SamplingParams(temperature=0.7, top_k=40),
    "penalties": SamplingParams(temperature=0.7, presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.1),
    "top-p 0.9 and penalties": SamplingParams(temperature=0.7, top_p=0.9, frequency_penalty=0.5),
}
Cost = tuple[float, float]  # bytes, floating-point operations


def _linear_cost(x: torch.Tensor, packed: Any) -> Cost:
    rows = x.shape[0]
    moved = packed.num_bytes + x.nbytes + rows * packed.out_features * x.itemsize
    return moved, 2.0 * rows * packed.out_features * packed.in_features


def _attention_cost(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    step: StepInput,
    scale: float,
    variant: AttentionVariant = PLAIN,
) -> Cost:
    """Each row reads the keys and values that its queries see once; each query multiplies those that it sees."""
    kv_heads, _, head_dim = k_cache.shape[1:]
    contexts, counts = step.context_lens.tolist(), step.query_start.diff().tolist()
    window = variant.window or max(contexts)
    read = sum(min(context, window + count - 1) for context, count in zip(contexts, counts, strict=True))
    seen = int((step.positions + 1).clamp(max=window).sum())
    return 2.0 * read * kv_heads * head_dim * k_cache.itemsize + 2 * q.nbytes, 4.0 * seen * q[0].numel()


def _experts_cost(x: torch.Tensor, ids: torch.Tensor, _: torch.Tensor, packed: PackedExperts, *more: Any) -> Cost:
    """The experts in use are read once."""
    one = packed.experts[0]
    used = sum(packed.experts[expert].num_bytes for expert in ids.unique().tolist())
    multiplied = sum(part.out_features * part.in_features for part in (one.gate_up, one.down))
    return used + 2.0 * x.nbytes, 2.0 * ids.numel() * multiplied


def _delta_cost(mixed: torch.Tensor, projected: torch.Tensor, _: Any, state: torch.Tensor, step: StepInput) -> Cost:
    """Each row reads and writes its state once; each token takes 4 multiply-adds per element."""
    moved = 2.0 * step.num_rows * state[0].nbytes + mixed.nbytes + projected.nbytes
    return moved, 8.0 * len(mixed) * state[0].numel()


def _state_space_cost(
    mixed: torch.Tensor, projected: torch.Tensor, _: Any, state: torch.Tensor, step: StepInput
) -> Cost:
    """Cost as above, with 2 multiply-adds and one product."""
    return 2.0 * step.num_rows * state[0].nbytes + mixed.nbytes, 5.0 * len(mixed) * state[0].numel()


def _selective_scan_cost(x: torch.Tensor, *given: Any) -> Cost:
    """Inputs, time steps and gates are read and outputs written; each row reads and writes its state once."""
    state, step = given[5], given[6]
    return 2.0 * step.num_rows * state[0].nbytes + 4.0 * x.nbytes, 6.0 * len(x) * state[0].numel()


COSTS: dict[str, Callable[..., Cost]] = {
    "embed": lambda token_ids, packed: (4.0 * len(token_ids) * packed.in_features, 0.0),
    "add_rms_norm": lambda x, residual, *_: (x.nbytes * (2.0 if residual is None else 4.0), 0.0),
    "linear": _linear_cost,
    "rope_and_store": lambda qkv, *_: (2.0 * qkv.nbytes, 0.0),
    "paged_attention": _attention_cost,
    "activate_and_mul": lambda x, *_: (1.5 * x.nbytes, 0.0),
    "gate_outputs": lambda x, *_: (3.0 * x.nbytes, 0.0),
    "causal_convolution": lambda x, taps, *_: (2.0 * len(x) * taps.shape[1] * x.itemsize, 0.0),
    "gated_delta": _delta_cost,
    "state_space": _state_space_cost,
    "norm_parts": lambda x, *_: (2.0 * x.nbytes, 0.0),
    "selective_scan": _selective_scan_cost,
    "rms_norm_gated": lambda x, *_: (2.0 * x.nbytes, 0.0),
    "route_experts": lambda logits, *_: (float(logits.nbytes), 0.0),
    "experts": _experts_cost,
    "add_scaled": lambda x, *_: (3.0 * x.nbytes, 0.0),
}


class Clock:
    """Wraps the ops of a kernel set and records the time of each since the last `take`, and its cost."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self.costs: dict[str, list[Cost]] = defaultdict(list)

    def around(self, kernels: KernelSet) -> KernelSet:
        return dataclasses.replace(kernels, **{op: self._timed(op, getattr(kernels, op)) for op in COSTS})

    def take(self) -> dict[str, float]:
        taken, self._seconds = dict(self._seconds), defaultdict(float)
        return taken

    def clear(self) -> None:
        self.take()
        self.calls.clear()
        self.costs.clear()

    def _timed(self, op: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            result = run(*arguments)
            seconds = time.perf_counter() - began
            name = op if op != "linear" else f"linear {arguments[1].out_features} x {arguments[1].in_features}"
            self._seconds[name] += seconds
            self.calls[name] += 1
            self.costs[name].append(COSTS[op](*arguments))
            return result

        return timed


class Bench:
    def __init__(
        self, model: str, max_rows: int, context: int, quantization: str | None, repeats: int, chunk: int = 0
    ) -> None:
        self.context, self.repeats = context, repeats
        longest = max(context, chunk) + 512
        per_group = max(max_rows * -(-context // BLOCK) + -(-chunk // BLOCK), -(-longest // BLOCK))
        arguments = {
            "model": str(MODELS / model),
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "dtype": "bfloat16",
            "max_model_len": longest,
            "max_num_seqs": max_rows + 1,
            "max_num_batched_tokens": max_rows + longest,
            "num_gpu_blocks_override": MAX_GROUPS * per_group,
            "block_size": BLOCK,
            **({"quantization": quantization} if quantization else {}),
        }
        deployment = load_deployment([], arguments=arguments)
        resolved = resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())
        self.clock = Clock()
        select = loaded_model.select_kernels
        loaded_model.select_kernels = lambda *args, **kwargs: self.clock.around(select(*args, **kwargs))
        self.runner = load_runner(resolved)
        self._sampler = Sampler(self.runner.slots.sampling, self.runner.loaded.kernels)
        self.vocab_size = resolved.model_spec.vocab_size
        blocks = np.random.default_rng(0).permutation(resolved.cache_groups.num_groups * per_group)
        self._blocks = blocks.reshape(-1, per_group).tolist()  # of each group
        torch.set_num_threads(resolved.device.num_threads)
        self.floors = Floors((torch.bfloat16,))

    def plan(self, rows: int, sampling: SamplingParams, *, is_prompt: bool = False, chunk: int = 0) -> StepPlan:
        """A step of decode rows whose context counts as computed, or of prompts, and of a prompt of `chunk` tokens.
        It can be executed repeatedly."""
        ids, rows = np.random.default_rng(1), rows + (chunk > 0)
        contexts, counts = np.full((2, rows), [[self.context], [self.context if is_prompt else 1]], np.int32)
        if chunk:
            contexts[-1] = counts[-1] = chunk
        ends = np.cumsum(-(-contexts // BLOCK))  # the blocks of a row are those before its end
        admissions = [
            Admission(
                slot=row,
                inputs=RequestInputs(ids.integers(0, self.vocab_size, context // 2).tolist(), sampling),
                generated=ids.integers(0, self.vocab_size, context - context // 2).tolist(),
                block_ids=[blocks[end - -(-context // BLOCK) : end] for blocks in self._blocks],
                seed=row,
            )
            for row, (context, end) in enumerate(zip(contexts.tolist(), ends.tolist(), strict=True))
        ]
        none, slots = np.empty(0, np.int32), np.arange(rows, dtype=np.int32)
        trues = np.ones(rows, np.bool_)
        first = StepPlan(0, [], admissions, none, none.reshape(0, 1), slots, contexts - counts, counts, trues)
        self.runner.execute(first)  # lazy initialisation happens here
        return dataclasses.replace(first, admissions=[])

    def whole(self, plan: StepPlan) -> float:
        """Milliseconds of the runner's own step."""
        self.runner.execute(plan)
        return _median_ms(lambda: self.runner.execute(plan), self.repeats)

    def parts(self, plan: StepPlan) -> dict[str, float]:
        """Milliseconds of each part, run separately."""
        runner, found = self.runner, []
        slots, lengths = plan.slots, runner.slots.num_tokens[plan.slots]
        loaded, sampler = runner.loaded, self._sampler
        forward = forward_of(loaded)
        self.clock.clear()
        with torch.inference_mode():
            for _ in range(self.repeats):
                began = time.perf_counter()
                steps = build_step_input(plan, runner.slots, torch.device("cpu"))
                laid_out = time.perf_counter()
                last = None if len(slots) == steps[0].num_tokens else steps[0].query_start[1:].long() - 1
                logits = loaded.whole.logits(*forward(loaded.cache.views(steps), None, last))
                computed = time.perf_counter()
                sampler.sample(logits, slots, lengths, runner.slots.token_ids)
                sampled = time.perf_counter()
                parts = self.clock.take()
                parts["between the ops"] = computed - laid_out - sum(parts.values())
                parts |= {"plan to tensors": laid_out - began, "sampling": sampled - computed}
                found.append(parts)
        self.clock.costs["sampling"] = [(float(logits.nbytes), 0.0)] * self.repeats
        return {name: statistics.median(parts[name] for parts in found) * 1e3 for name in found[0]}

    def sampling_ms(self, rows: int, sampling: SamplingParams) -> float:
        """Milliseconds of the sampler alone, on random logits."""
        runner, plan = self.runner, self.plan(rows, sampling)
        logits = (3 * torch.randn(rows, self.vocab_size, generator=torch.Generator().manual_seed(0))).bfloat16()
        lengths = runner.slots.num_tokens[plan.slots]
        with torch.inference_mode():
            return _median_ms(
                lambda: self._sampler.sample(logits, plan.slots, lengths, runner.slots.token_ids), self.repeats
            )


def _median_ms(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def show_parts(bench: Bench, rows: int, *, is_prompt: bool, chunk: int) -> None:
    plan = bench.plan(rows, GREEDY, is_prompt=is_prompt, chunk=chunk)
    whole, parts = bench.whole(plan), bench.parts(plan)
    total, all_floors = sum(parts.values()), 0.0
    speed = plan.num_batched_tokens / whole * 1e3
    kind = "prompts of" if is_prompt else "rows, context"
    beside = f", and {chunk} tokens of a prompt" if chunk else ""
    print(f"\n{rows} {kind} {bench.context}{beside}: {whole:.2f} ms, {speed:.1f} tokens/s\n")
    print("| part | calls | ms | share | floor, ms | x floor |\n|---|---|---|---|---|---|")
    for name, ms in sorted(parts.items(), key=lambda part: -part[1]):
        costs = bench.clock.costs.get(name, [])
        floor = sum(bench.floors.seconds(*cost, torch.bfloat16) for cost in costs) / bench.repeats * 1e3
        all_floors += floor
        calls = bench.clock.calls[name] // bench.repeats
        columns = f"{floor:.2f} | {ms / floor:.2f}" if floor else " | "
        print(f"| {name} | {calls or ''} | {ms:.2f} | {ms / total:.1%} | {columns} |")
    print(f"| sum of the parts | | {total:.2f} | | {all_floors:.2f} | {total / all_floors:.2f} |")
    print(f"| **whole step** | | {whole:.2f} | | {all_floors:.2f} | {whole / all_floors:.2f} |", flush=True)


def show_sampling(bench: Bench, rows: int) -> None:
    step = bench.whole(bench.plan(rows, GREEDY))
    print(f"\n{rows} rows of {bench.vocab_size} logits; a greedy step takes {step:.1f} ms\n")
    print("| sampling parameters | sampling, ms | share of a step |\n|---|---|---|")
    rest = step - bench.sampling_ms(rows, GREEDY)
    for name, sampling in SAMPLINGS.items():
        ms = bench.sampling_ms(rows, sampling)
        print(f"| {name} | {ms:.2f} | {ms / (rest + ms):.1%} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3-0.6b", help="a folder of benchmarks/models")
    parser.add_argument("--prompt", type=int, help="tokens of a whole prompt in each row, in place of a decode step")
    parser.add_argument("--chunk", type=int, default=0, help="tokens of one prompt more in each step")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--context", type=int, default=160)
    parser.add_argument("--quantization", choices=SCHEMES)
    parser.add_argument("--sampling", action="store_true")
    chosen = parser.parse_args()
    rows = [1] if chosen.prompt else chosen.rows
    repeats = PROMPT_REPEATS if chosen.prompt else REPEATS
    bench = Bench(chosen.model, max(rows), chosen.prompt or chosen.context, chosen.quantization, repeats, chosen.chunk)
    print(f"{chosen.model}; {chosen.quantization or 'bfloat16'}; {torch.get_num_threads()} threads; {bench.floors}")
    for count in rows:
        if chosen.sampling:
            show_sampling(bench, count)
        else:
            show_parts(bench, count, is_prompt=chosen.prompt is not None, chunk=chosen.chunk)


if __name__ == "__main__":
    main()
