"""`make bench`: runs the same workloads on Stoker and other engines and compares them.

    python -m benchmarks.run [--engines stoker,transformers] [--workloads decode-1,...] [--rounds 3] [--output FILE]

Each engine runs in a separate process and stays loaded. Each round runs every workload on every engine in turn, so that
a temporary slowdown of the machine affects all engines. The table shows the ratio of medians.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stoker.cli.collect_env import cpu_line

ROOT = Path(__file__).parent
ENGINES = ["stoker", "stoker-no-prefix-cache", "transformers"]
WORKLOADS = ["decode-1", "prefill-1024", "prefill-2048", "mixed-32", "prefix-16"]


class Worker:
    def __init__(self, engine: str, model: Path, vocab_size: int) -> None:
        command = [sys.executable, "-m", "benchmarks.worker", engine, str(model), str(vocab_size)]
        self.process = subprocess.Popen(
            command, cwd=ROOT.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.start = self._read()

    def run(self, workload: str, seed: int) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"workload": workload, "seed": seed}) + "\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)

    def _read(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"benchmark worker exited with code {self.process.wait()}")
        return json.loads(line)


def environment() -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": cpu_line(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("stoker", "torch", "transformers")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "qwen3-0.6b", help="a folder with config.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="also write all measurements, as JSON")
    options = parser.parse_args()
    engines, workloads = options.engines.split(","), options.workloads.split(",")
    vocab_size = json.loads((options.model / "config.json").read_text())["vocab_size"]

    workers = {engine: Worker(engine, options.model.resolve(), vocab_size) for engine in engines}
    for worker in workers.values():  # warm-up is not measured
        worker.run("prefill-1024", seed=-1)
        worker.run("decode-1", seed=-1)
    runs: dict[str, dict[str, list[dict[str, float]]]] = {w: {e: [] for e in engines} for w in workloads}
    for round_number in range(options.rounds):
        for workload in workloads:
            for engine in engines:
                result = workers[engine].run(workload, seed=round_number)
                runs[workload][engine].append(result)
                print(f"{workload} {engine}: {result['rate']:.1f}/s in {result['seconds']:.2f} s", file=sys.stderr)
    for worker in workers.values():
        worker.close()

    median = {w: {e: statistics.median(r["rate"] for r in runs[w][e]) for e in engines} for w in workloads}
    head = ["workload (tokens/s)", *engines, *(f"{engines[0]} / {peer}" for peer in engines[1:])]
    rows = [
        [w, *(f"{median[w][e]:.1f}" for e in engines)]
        + [f"{median[w][engines[0]] / median[w][peer]:.2f}x" for peer in engines[1:]]
        for w in workloads
    ]
    gib = 1024**3
    peaks = {e: max(r["peak_rss_bytes"] for w in workloads for r in runs[w][e]) for e in engines}
    blank = [""] * (len(engines) - 1)
    rows.append(["ready, s", *(f"{workers[e].start['ready_s']:.1f}" for e in engines), *blank])
    rows.append(["peak RSS, GiB", *(f"{peaks[e] / gib:.2f}" for e in engines), *blank])
    plans = {e: workers[e].start["weights_bytes"] + workers[e].start["kv_cache_bytes"] for e in engines}
    rows.append(["weights + KV, GiB", *(f"{plans[e] / gib:.2f}" for e in engines), *blank])
    details = environment()
    print(f"\n{options.model.name}, bfloat16, dummy weights; medians of {options.rounds}; {details}\n")
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    if options.output:
        record = {"environment": details, "engines": {e: workers[e].start for e in engines}, "runs": runs}
        options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
