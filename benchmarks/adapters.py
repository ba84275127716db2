"""What adapters cost: tokens per second with them, over those of the model alone.

    python -m benchmarks.adapters [--rounds 5] [--rank 16] [--quantization int4]

The shape of Qwen3-0.6B in bfloat16 with random weights; adapters of all linear layers, which this writes. Two engines
are in one process, one that serves adapters and one that does not, and make their steps in turns, so that a machine
that other programs use is equally slow for both. The ratio is that of the medians over all steps; the fastest steps are
the least disturbed.

    decode            32 sequences with 8 adapters, over 32 of the other engine
    prompt            1024 tokens with an adapter
    base, decode      32 sequences without an adapter
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as in the engine; read when torch is loaded

import torch
from safetensors.torch import save_file

from stoker.config import load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.config.checkpoint.adapter_files import adapter_digest
from stoker.engine.api import AdapterRef, CacheScope, EngineRequest, RequestInputs, SamplingParams
from stoker.engine.core import Scheduler
from stoker.engine.core.adapter_slots import AdapterSettings
from stoker.engine.executor.scheduler import scheduler_settings
from stoker.engine.lora.settings import LoraSettings
from stoker.engine.runner.load_runner import load_runner

MODEL = Path(__file__).parent / "models" / "qwen3-0.6b"
NUM_ADAPTERS, NUM_ROWS, PROMPT = 8, 32, 1024
STEPS = 24  # of each decode measurement
TARGETS = {"decode": 0.85, "prompt": 0.93, "base, decode": 0.99}


class Engine:
    def __init__(self, arguments: list[str]) -> None:
        words = ["--model", str(MODEL), "--dtype", "bfloat16", "--load-format", "dummy", "--skip-tokenizer-init"]
        words += ["--max-model-len", "2048", "--max-num-batched-tokens", "2048", "--max-num-seqs", str(NUM_ROWS)]
        words += ["--num-gpu-blocks-override", "512", "--no-enable-prefix-caching", *arguments]
        deployment = load_deployment([], words, {})
        resolved = resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())
        self.spec = resolved.model_spec
        self.runner = load_runner(resolved)
        self.runner.warm_up()
        settings, adapters = LoraSettings.of(resolved), self.runner.loaded.adapters
        own = None if settings is None or adapters is None else AdapterSettings(settings.max_loras, adapters.load)
        self._scheduler = Scheduler(scheduler_settings(resolved, adapters=own))

    def begin(self, num_rows: int, length: int, max_tokens: int, refs: list[AdapterRef]) -> None:
        """refs: adapters of the rows in turn; none without any."""
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        for row in range(num_rows):
            ref = refs[row % len(refs)] if refs else None
            scope = CacheScope(adapter=ref.digest if ref else "")
            inputs = RequestInputs([7 + row] * length, sampling, scope, ref)
            self._scheduler.add(EngineRequest(request_id=str(row), inputs=inputs))

    def step(self) -> tuple[int, float] | None:
        """The number of rows of a step, and its seconds; None when all requests have ended."""
        plan = self._scheduler.schedule() if self._scheduler.has_work else None
        if plan is None:
            return None
        began = time.perf_counter()
        result = self.runner.execute(plan)
        took = time.perf_counter() - began
        self._scheduler.finish_step(plan, result)
        return plan.num_rows, took


def in_turns(first: Engine, second: Engine, num_rows: int) -> tuple[list[float], list[float]]:
    """Seconds of the steps of each that have all rows."""
    seconds: tuple[list[float], list[float]] = ([], [])
    while True:
        steps = first.step(), second.step()
        for step, own in zip(steps, seconds, strict=True):
            if step is not None and step[0] == num_rows:
                own.append(step[1])
        if steps == (None, None):
            return seconds


def write_adapter(folder: Path, engine: Engine, rank: int, seed: int) -> AdapterRef:
    """All linear layers of the decoder layers."""
    random = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    ends = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    ends += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    shapes = {name.removesuffix(".weight"): shape for name, shape in engine.runner.loaded.model.wanted()}
    for name, shape in shapes.items():
        if name.endswith(ends):
            outputs, inputs = shape
            for part, size in (("A", (rank, inputs)), ("B", (outputs, rank))):
                matrix = torch.randn(size, generator=random) / size[1] ** 0.5
                tensors[f"base_model.model.{name}.lora_{part}.weight"] = matrix.bfloat16()
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": [end.split(".")[1] for end in ends]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return AdapterRef(folder.name, adapter_digest(folder), str(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--quantization")
    asked = parser.parse_args()
    common = ["--quantization", asked.quantization] if asked.quantization else []
    plain = Engine(common)
    rank = next(each for each in (8, 16, 32, 64, 128, 256) if each >= asked.rank)
    serving = Engine([*common, "--enable-lora", "--max-loras", str(NUM_ADAPTERS), "--max-lora-rank", str(rank)])
    with tempfile.TemporaryDirectory() as place:
        refs = [write_adapter(Path(place) / str(seed), serving, asked.rank, seed) for seed in range(NUM_ADAPTERS)]
        cases = {  # rows, tokens of a prompt, tokens of an answer, adapters
            "decode": (NUM_ROWS, 16, STEPS, refs),
            "prompt": (1, PROMPT, 1, refs[:1]),
            "base, decode": (NUM_ROWS, 16, STEPS, []),
        }
        found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in cases}
        for done in range(asked.rounds + 1):
            for name, (num_rows, length, max_tokens, own) in cases.items():
                serving.begin(num_rows, length, max_tokens, own)
                plain.begin(num_rows, length, max_tokens, [])
                steps = in_turns(serving, plain, num_rows)
                if done:  # steps are captured in the first round
                    for seconds, more in zip(found[name], steps, strict=True):
                        seconds += more
    print("| case | with adapters | without | speed | of the fastest steps | target |\n|---|---|---|---|---|---|")
    for name, pair in found.items():
        own_ms, other_ms = (statistics.median(each) * 1e3 for each in pair)
        ratios = f"{other_ms / own_ms:.3f} | {min(pair[1]) / min(pair[0]):.3f} | {TARGETS[name]}"
        print(f"| {name} | {own_ms:.1f} ms | {other_ms:.1f} ms | {ratios} |")


if __name__ == "__main__":
    main()
