"""Decode of one request, the own implementation against the modules of transformers, in turns in one process.

    python -m benchmarks.model_impl [--model qwen3-0.6b] [--rounds 8]

Weights are random. The time is that of a step; the median over all steps and the fastest step are reported.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as in the engine; read when torch is loaded

from stoker.config import load_deployment, read_machine_spec, read_model_files, resolve_deployment
from stoker.engine.api import EngineRequest, RequestInputs, SamplingParams
from stoker.engine.core import Scheduler
from stoker.engine.executor.scheduler import scheduler_settings
from stoker.engine.runner.load_runner import load_runner

MODELS = Path(__file__).parent / "models"
TOKENS = 12  # of each request


class Engine:
    def __init__(self, model: Path, implementation: str) -> None:
        words = [
            "--model",
            str(model),
            "--model-impl",
            implementation,
            "--load-format",
            "dummy",
            "--max-model-len",
            "256",
        ]
        deployment = load_deployment([], [*words, "--skip-tokenizer-init", "--num-gpu-blocks-override", "64"], {})
        resolved = resolve_deployment(deployment, read_model_files(deployment), read_machine_spec())
        self.runner = load_runner(resolved)
        self.runner.warm_up()
        self._scheduler = Scheduler(scheduler_settings(resolved))

    def decode(self) -> list[float]:
        """Seconds of each step of one request after its first token."""
        sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
        self._scheduler.add(EngineRequest(request_id="0", inputs=RequestInputs([5, 6, 7], sampling)))
        seconds = []
        while self._scheduler.has_work:
            plan = self._scheduler.schedule()
            assert plan is not None
            began = time.perf_counter()
            result = self.runner.execute(plan)
            seconds.append(time.perf_counter() - began)
            self._scheduler.finish_step(plan, result)
        return seconds[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--rounds", type=int, default=8)
    asked = parser.parse_args()
    engines = {name: Engine(MODELS / asked.model, name) for name in ("native", "transformers")}
    steps: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(asked.rounds):
        for name, engine in engines.items():
            steps[name] += engine.decode()
    for what, of in (("median", statistics.median), ("fastest", min)):
        own, library = (of(steps[name]) * 1e3 for name in engines)
        print(f"{what} step: native {own:.2f} ms, transformers {library:.2f} ms, {library / own:.2f}x")


if __name__ == "__main__":
    main()
