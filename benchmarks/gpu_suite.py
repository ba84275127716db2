"""Everything that is to be known about the engine on a GPU, in one command of at most ten minutes.

    python -m benchmarks.gpu_suite [--out gpu.json] [--minutes 10] [--only kernels,qwen3-0.6b] [--reduced]
    python -m benchmarks.gpu_suite --table gpu.json       the tables of docs/performance.md, from such a file

What the machine does at best, every kernel against its reference and over its floor, engines of true shapes and random
weights, transformers at the same work, which kernels a step runs, and what graphs and planning ahead bring. The file is
whole after every measurement. Each part has a process of its own and a share of the minutes: what breaks costs its own
result, and what no longer fits is recorded as skipped.

Without a GPU the same runs in Triton's interpreter at tiny shapes, and no time is told.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import get_args

from stoker.config.schema.device import DeviceConfig

from .gpu.conductor import Conductor, Part
from .gpu.part import Order
from .gpu.record import Record, RecordFile, read_records
from .gpu.table import tables

_WHOLE_S = 600.0
MACHINE = Part("machine", "benchmarks.gpu.machine", 25)  # always: floors are made of it
PARTS = [
    Part("correctness", "benchmarks.gpu.correctness", 75),
    Part("kernels", "benchmarks.gpu.kernel_times", 115),
    Part("qwen3-0.6b", "benchmarks.gpu.model_speed", 85),
    Part("llama-3.1-8b", "benchmarks.gpu.model_speed", 95),
    Part("profile", "benchmarks.gpu.step_kernels", 30),
    Part("transformers", "benchmarks.gpu.peer", 95),
    Part("ready", "benchmarks.gpu.ready", 35, each_alone=True),
    Part("ablations", "benchmarks.gpu.ablations", 45, each_alone=True),
]


def has_gpu() -> bool:
    return os.path.exists("/proc/driver/nvidia")  # without a CUDA context in this process


def common_order(is_reduced: bool, engine_device: str | None) -> Order:
    is_gpu = has_gpu()
    untimed = None
    if not is_gpu:
        os.environ["TRITON_INTERPRET"] = "1"  # read by the parts' processes
        untimed = "not measured: interpreter"
    elif is_reduced:
        untimed = "not measured: reduced"
    takes_cuda = "cuda" in get_args(DeviceConfig.model_fields["device"].annotation)
    return Order(
        part="",
        started=0.0,
        deadline=0.0,
        device="cuda" if is_gpu else "cpu",
        engine_device=engine_device or ("cuda" if takes_cuda else "cpu"),
        is_reduced=is_reduced or not is_gpu,
        untimed=untimed,
        bytes_per_second=None,
        flops_per_second=None,
    )


def show(record: Record) -> None:
    value = "" if record.value is None else f"{record.value:.4g} {record.unit}"
    ratio = "" if record.ratio is None else f"  x floor {record.ratio:.2f}"
    error = "" if record.error is None else f"  [{record.error}]"
    print(f"{record.part}: {record.name} ({record.shape}) {value}{ratio}{error}", flush=True)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--minutes", type=float, default=_WHOLE_S / 60)
    parser.add_argument("--only", help=f"some of {', '.join(part.name for part in PARTS)}; comma-separated")
    parser.add_argument("--reduced", action="store_true", help="tiny shapes, no times: whether everything runs")
    parser.add_argument("--engine-device", choices=("cpu", "cuda"), help="what deployments ask for; default: cuda")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the tables of a file, and measure nothing")
    chosen = parser.parse_args(words)
    if chosen.table:
        print(tables(*read_records(chosen.table)))
        return
    names = chosen.only.split(",") if chosen.only else [part.name for part in PARTS]
    if unknown := set(names) - {part.name for part in (MACHINE, *PARTS)}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    began = time.time()
    records = RecordFile(chosen.out)
    order = common_order(chosen.reduced, chosen.engine_device)
    conductor = Conductor(records, order, 60 * chosen.minutes, show)
    conductor.play(MACHINE, 1.0)
    scale = 60 * chosen.minutes / _WHOLE_S
    for part in PARTS:
        if part.name in names:
            conductor.play(part, scale)
    print(f"\n{tables(records.machine, records.records)}\n\n{time.time() - began:.0f} s; {chosen.out}", file=sys.stdout)


if __name__ == "__main__":
    main()
