"""Prefill of one prompt with and without `cache.kv_sharing_fast_prefill`, in turns in one process.

    python -m benchmarks.shared_keys [--model gemma-4-e2b] [--tokens 1024] [--rounds 3]

Weights are random. The embedding and the table of per-layer inputs have 4096 rows, so that both engines fit into
memory; prefill reads one row of each per token, and computes logits for one token.
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

from stoker.config import load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.engine.api import EngineRequest, RequestInputs, SamplingParams
from stoker.engine.core import Scheduler
from stoker.engine.executor.scheduler import scheduler_settings
from stoker.engine.runner.load_runner import load_runner

MODELS = Path(__file__).parent / "models"
ROWS = 4096


class Engine:
    def __init__(self, model: Path, tokens: int, *, is_fast: bool) -> None:
        words = ["--model", str(model), "--load-format", "dummy", "--skip-tokenizer-init", "--no-enable-prefix-caching"]
        words += ["--max-model-len", str(tokens + 64), "--num-gpu-blocks-override", "256"]
        words += [] if is_fast else ["--no-kv-sharing-fast-prefill"]
        deployment = load_deployment([], words, {})
        resolved = resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())
        self.runner = load_runner(resolved)
        self.runner.warm_up()
        self._scheduler = Scheduler(scheduler_settings(resolved))

    def prefill(self, tokens: int) -> float:
        """Seconds until the first token of the answer."""
        prompt = [5 + 7 * place % 4000 for place in range(tokens)]
        sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        self._scheduler.add(EngineRequest(request_id="0", inputs=RequestInputs(prompt, sampling)))
        began = time.perf_counter()
        while self._scheduler.has_work:
            plan = self._scheduler.schedule()
            assert plan is not None
            self._scheduler.finish_step(plan, self.runner.execute(plan))
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="gemma-4-e2b", help="a folder of benchmarks/models, with layers that share")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    config = json.loads((MODELS / arguments.model / "config.json").read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        small = config | {"vocab_size": ROWS, "vocab_size_per_layer_input": ROWS}
        (Path(folder) / "config.json").write_text(json.dumps(small))
        engines = {is_fast: Engine(Path(folder), arguments.tokens, is_fast=is_fast) for is_fast in (True, False)}
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for engine in engines.values():
        engine.prefill(64)
    for _ in range(arguments.rounds):
        for is_fast, engine in engines.items():
            seconds[is_fast].append(engine.prefill(arguments.tokens))
    fast, full = (statistics.median(seconds[is_fast]) for is_fast in (True, False))
    ratio = statistics.median(slow / quick for quick, slow in zip(seconds[True], seconds[False], strict=True))
    print(f"{arguments.tokens} tokens: fast prefill {fast:.2f} s, all tokens in all layers {full:.2f} s, {ratio:.2f}x")


if __name__ == "__main__":
    main()
