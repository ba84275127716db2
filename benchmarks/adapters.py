"""What adapters cost: tokens per second with them, over those of the model alone.

    python -m benchmarks.adapters [--rounds 5] [--rank 16] [--quantization int4]

The shape of Qwen3-0.6B in bfloat16 with random weights; adapters of all linear layers, which this writes. Three cases
run in turns in one process, so that a machine that other programs use is equally slow for all; a ratio is the median of
the ratios of the rounds.

    decode            32 sequences with 8 adapters, over 32 without one
    prompt            1024 tokens with an adapter, over 1024 without one
    base, decode      32 sequences without an adapter in an engine that serves adapters, over one that does not
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
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
STEPS = 12  # of each decode measurement
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

    def seconds(self, num_rows: int, length: int, max_tokens: int, refs: list[AdapterRef]) -> list[float]:
        """Seconds of each step. refs: adapters of the rows in turn; none without any."""
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        for row in range(num_rows):
            ref = refs[row % len(refs)] if refs else None
            scope = CacheScope(adapter=ref.digest if ref else "")
            inputs = RequestInputs([7 + row] * length, sampling, scope, ref)
            self._scheduler.add(EngineRequest(request_id=str(row), inputs=inputs))
        seconds = []
        while self._scheduler.has_work:
            plan = self._scheduler.schedule()
            assert plan is not None
            began = time.perf_counter()
            result = self.runner.execute(plan)
            seconds.append(time.perf_counter() - began)
            self._scheduler.finish_step(plan, result)
        return seconds

    def decode(self, refs: list[AdapterRef]) -> float:
        return statistics.median(self.seconds(NUM_ROWS, 16, STEPS + 2, refs)[2:])

    def prompt(self, refs: list[AdapterRef]) -> float:
        return self.seconds(1, PROMPT, 1, refs)[0]


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
        cases: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
            "decode": (lambda: serving.decode(refs), lambda: serving.decode([])),
            "prompt": (lambda: serving.prompt(refs[:1]), lambda: serving.prompt([])),
            "base, decode": (lambda: serving.decode([]), lambda: plain.decode([])),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
        for done in range(asked.rounds + 1):
            for name, (with_adapters, without) in cases.items():
                pair = with_adapters(), without()
                if done:  # steps are captured in the first round
                    found[name].append(pair)
    print("| case | with adapters | without | speed | target |\n|---|---|---|---|---|")
    for name, pairs in found.items():
        own, other = (statistics.median(each) * 1e3 for each in zip(*pairs, strict=True))
        ratio = statistics.median(without / with_adapters for with_adapters, without in pairs)
        print(f"| {name} | {own:.1f} ms | {other:.1f} ms | {ratio:.3f} | {TARGETS[name]} |")


if __name__ == "__main__":
    main()
