"""Speed of the same engine at every instruction-set level that this machine supports, and without a compiler.

    python -m benchmarks.levels [--levels avx512_bf16,avx2,torch,no-compiler] [--seconds 6]

Each level runs in a separate process, started with STOKER_CPU_FEATURES. Prints tokens per second of three workloads
at the shape of Qwen3-0.6B (bfloat16, random weights), and the kernels of the start-up table. If a workload would take
much longer than --seconds, fewer tokens are measured; the result is then marked with ~.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker.config.cpu_features import LEVELS, VARIABLE, this_cpu

ROOT = Path(__file__).parent
NO_COMPILER = "no-compiler"
DECODE_TOKENS, PREFILL_TOKENS, MIXED_ROWS = 64, 512, 8
WORKLOADS = ("decode-1", f"prefill-{PREFILL_TOKENS}", f"mixed-{MIXED_ROWS}")


def all_levels() -> list[str]:
    cpu = this_cpu()
    return [*(name for name, level in LEVELS.items() if cpu.has(level)), "torch", NO_COMPILER]


def measure(level: str, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, VARIABLE: "auto" if level == NO_COMPILER else level}
        if level == NO_COMPILER:
            environment |= {"CXX": "/nonexistent/c++", "XDG_CACHE_HOME": empty}
        command = [sys.executable, "-m", "benchmarks.levels", "--worker", "--seconds", str(seconds)]
        done = subprocess.run(command, cwd=ROOT.parent, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


class Worker:
    """One engine; the environment sets its level."""

    def __init__(self, seconds: float) -> None:
        from stoker import LLM

        self._seconds = seconds
        self._num_prompts = 0
        self.llm = LLM(
            str(ROOT / "models" / "qwen3-0.6b"), load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16",
            max_model_len=1024, max_num_seqs=MIXED_ROWS, kv_cache_memory_bytes=1 << 29,
        )  # fmt: skip

    def run(self) -> dict[str, Any]:
        self._generate([(32, 2)])
        rates = dict(zip(WORKLOADS, (self._decode(), self._prefill(), self._mixed()), strict=True))
        return {"rates": rates, "table": self.llm.info.kernels}

    def _generate(self, requests: list[tuple[int, int]]) -> float:
        """requests: numbers of prompt and output tokens. Returns seconds."""
        from stoker import SamplingParams

        self._num_prompts += 1
        prompts = [
            {"prompt_token_ids": [(self._num_prompts * 31 + row * 7 + position) % 999 for position in range(num_in)]}
            for row, (num_in, _) in enumerate(requests)
        ]
        samplings = [SamplingParams(temperature=0, max_tokens=num_out, ignore_eos=True) for _, num_out in requests]
        began = time.perf_counter()
        self.llm.generate(prompts, samplings, use_tqdm=False)
        return time.perf_counter() - began

    def _sizes(self, full: int, per_token: float) -> Iterator[int]:
        """Yields, twice, the number of tokens that fits in half the time, at most `full`."""
        fitting = min(full, max(4, int(self._seconds / 2 / per_token)))
        yield from (fitting, fitting)

    def _decode(self) -> tuple[float, bool]:
        prompt = 32
        per_token = self._generate([(prompt, 4)]) / 4
        return _best(
            (DECODE_TOKENS, size, self._generate([(prompt, size)])) for size in self._sizes(DECODE_TOKENS, per_token)
        )

    def _prefill(self) -> tuple[float, bool]:
        per_token = self._generate([(32, 1)]) / 32
        return _best(
            (PREFILL_TOKENS, size, self._generate([(size, 1)])) for size in self._sizes(PREFILL_TOKENS, per_token)
        )

    def _mixed(self) -> tuple[float, bool]:
        """Prompts of 16 to 128 tokens; only output tokens are counted."""
        prompts = [16 * (row + 1) for row in range(MIXED_ROWS)]
        full = 32
        prefill = self._generate([(length, 1) for length in prompts])
        per_token = max(self._generate([(length, 5) for length in prompts]) - prefill, prefill / 8) / 4
        return _best(
            (full, size, self._generate([(length, size) for length in prompts]) / MIXED_ROWS)
            for size in self._sizes(full, per_token)
        )


def _best(runs: Iterator[tuple[int, int, float]]) -> tuple[float, bool]:
    """Tokens per second, and whether all tokens were measured."""
    found = [(size / seconds, size == full) for full, size, seconds in runs]
    return max(found)


def show(found: dict[str, dict[str, Any]]) -> None:
    print("| level | " + " | ".join(f"{workload}, tokens/s" for workload in WORKLOADS) + " |")
    print("|---" * (len(WORKLOADS) + 1) + "|")
    for level, result in found.items():
        rates = [f"{'' if is_whole else '~'}{rate:.1f}" for rate, is_whole in result["rates"].values()]
        print(f"| {level} | " + " | ".join(rates) + " |")
    print("\nKernels in the start-up table:\n")
    for level, result in found.items():
        stages: dict[str, list[str]] = {}
        for stage, kernel in result["table"].items():
            stages.setdefault(kernel, []).append(stage)
        for kernel, names in stages.items():
            print(f"- {level}: {', '.join(names)}: {kernel}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", default=",".join(all_levels()))
    parser.add_argument("--seconds", type=float, default=6.0, help="approximate time per workload and level")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        answers, sys.stdout = sys.stdout, sys.stderr  # keeps output of libraries out of the answer
        print(json.dumps(Worker(chosen.seconds).run()), file=answers)
        return
    show({level: measure(level, chosen.seconds) for level in chosen.levels.split(",")})


if __name__ == "__main__":
    main()
