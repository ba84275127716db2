"""`make bench-peers`: Stoker, vLLM, OpenVINO GenAI, llama.cpp and transformers side by side on a CPU.

    python -m benchmarks.peers.run [--engines stoker,vllm] [--workloads decode-1,...] [--rounds 3] [--quick]
    python -m benchmarks.peers.run --model gemma-3-1b      another shape of benchmarks/models

Engines run one at a time, each in a separate process and environment under .peers/, and alternate in every round, so
that a temporary slowdown of the machine affects all of them. The tables show the ratios within a round. Results are
written as they are measured: the same command continues an interrupted run. If an engine cannot be installed or
started, or fails, the reason is reported and the other engines run.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stoker.cli.collect_env import cpu_line

from .contest import KV_GIB, MAX_LEN, STREAMS, make
from .contestants import CONTESTANTS, QUICK, WORKLOADS
from .environments import HOME, MODELS, SetupError, python_of, weights
from .plot import svg
from .process import Failed
from .record import Record, run_round
from .table import tables

MODEL = "qwen3-0.6b"


def environment(model: str, workloads: list[str]) -> dict[str, Any]:
    return {
        "model": model,
        "date": time.strftime("%Y-%m-%d"),
        "cpu": cpu_line(),
        "cores": sorted(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("stoker", "torch", "transformers")},
        "load_at_start": os.getloadavg()[0],
        "kv_gib": KV_GIB,
        "max_model_len": MAX_LEN,
        "max_num_seqs": STREAMS,
        "workloads": workloads,
    }


def load() -> float:
    return round(os.getloadavg()[0], 2)


def prepare(record: Record, names: list[str], model: str) -> None:
    """Installs and converts before the measurements, so that no compiler runs at the same time."""
    for name in names:
        try:
            python_of(CONTESTANTS[name].environment)
            weights(CONTESTANTS[name].weights, model)
        except SetupError as error:
            record.leave_out(name, f"setup failed: {error}")


def listed(text: str, known: list[str], what: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in known:
            raise SystemExit(f"error: unknown {what} `{name}`; known: {', '.join(known)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = sorted(folder.name for folder in MODELS.iterdir())
    parser.add_argument("--model", default=MODEL, choices=models, help=f"default: {MODEL}")
    parser.add_argument("--engines", help=f"of {', '.join(CONTESTANTS)}; default: all")
    parser.add_argument("--workloads", help=f"of {', '.join(WORKLOADS)}; default: all")
    parser.add_argument("--rounds", type=int, help="default: 3, or 1 with --quick")
    parser.add_argument(
        "--quick", action="store_true", help=f"one round of {', '.join(QUICK)}, to check that all engines run"
    )
    parser.add_argument(
        "--output", type=Path, help="JSON; tables (.md) and a plot (.svg) are written to the same folder"
    )
    parser.add_argument("--prepare", action="store_true", help="install and convert only")
    options = parser.parse_args()
    names = listed(options.engines, list(CONTESTANTS), "engine") if options.engines else list(CONTESTANTS)
    default = QUICK if options.quick else WORKLOADS
    workloads = listed(options.workloads, list(WORKLOADS), "workload") if options.workloads else list(default)
    rounds = options.rounds or (1 if options.quick else 3)
    kind, model = "quick" if options.quick else "peers", options.model
    output: Path = options.output or HOME / (f"{kind}.json" if model == MODEL else f"{kind}-{model}.json")
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        record = Record(output)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the running engine is ended too
    record.clear_failures()
    record.content["environment"] = record.content["environment"] or environment(model, workloads)
    prepare(record, names, model)
    if options.prepare:
        return
    make_one = partial(make, model=model)
    for number, contestant, todo in record.plan([CONTESTANTS[name] for name in names], workloads, rounds):
        began, num_cells = time.monotonic(), len(record.content["cells"])
        run_round(record, number, contestant, todo, make_one, load, Failed)
        took = f"{time.monotonic() - began:.0f} s"
        print(f"round {number + 1}, {contestant.name}, {took}", file=sys.stderr)
        for cell in record.content["cells"][num_cells:]:
            result = cell.get("error") or f"{cell['rate']:.1f}/s in {cell['seconds']:.2f} s"
            print(f"  {cell['workload']}: {result}", file=sys.stderr)
        if contestant.name in record.content["left_out"]:
            print(f"  left out: {record.content['left_out'][contestant.name]}", file=sys.stderr)
        output.with_suffix(".md").write_text(tables(record))
        output.with_suffix(".svg").write_text(svg(record))
    print(f"{record.content['environment']}\n\n{tables(record)}\n{output}")


if __name__ == "__main__":
    main()
