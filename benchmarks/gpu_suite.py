"""GPU benchmark suite: measures the engine on a GPU in one command that takes at most ten minutes.

    python -m benchmarks.gpu_suite [--out gpu.json] [--minutes 10] [--only kernels,qwen3-0.6b] [--reduced]
    python -m benchmarks.gpu_suite --table gpu.json       print the tables of benchmarks/LOG.md from a file

Measures the machine's peak speeds, the error and time of every kernel, engines with real shapes and random weights,
transformers with the same work, the kernels of a step, and the effect of CUDA graphs and asynchronous scheduling. The
floor of a time is its lower bound at the machine's peak speeds. The output file is complete after every measurement.
Each part runs in a separate process with a share of the time: a failure loses only its own result, and parts that do
not fit into the time are recorded as skipped.

Where vLLM is installed, its parts measure the same requests with it. They run last, in the time that is left:

    python -m benchmarks.gpu_suite --only "qwen3-0.6b,vllm qwen3-0.6b" [--vllm-path FOLDER]     gives them all of it

Without a GPU the suite runs in Triton's interpreter with tiny shapes and reports no times.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import get_args

from stoker.config.resolve.gpu import NoGpu, read_gpu
from stoker.config.schema.device import DeviceConfig

from .gpu.part import PartConfig
from .gpu.record import Record, RecordFile, read_records
from .gpu.runner import Part, SuiteRunner
from .gpu.table import VLLM, tables

_TOTAL_S = 600.0
MACHINE = Part("machine", "benchmarks.gpu.machine", 25)  # always runs: floors are computed from it
PARTS = [
    Part("correctness", "benchmarks.gpu.correctness", 75),
    Part("kernels", "benchmarks.gpu.kernel_times", 115),
    Part("qwen3-0.6b", "benchmarks.gpu.model_speed", 85),
    Part("llama-3.1-8b", "benchmarks.gpu.model_speed", 95),
    Part("profile", "benchmarks.gpu.step_kernels", 30),
    Part("transformers", "benchmarks.gpu.peer", 50),
    Part("ready", "benchmarks.gpu.ready", 35, each_alone=True),
    Part("ablations", "benchmarks.gpu.ablations", 45, each_alone=True),
    Part("memory moves", "benchmarks.gpu.memory_moves", 90, each_alone=True),
    *(Part(f"{VLLM}{name}", "benchmarks.gpu.vllm_engine", 165) for name in ("qwen3-0.6b", "llama-3.1-8b")),
]


def gpu_memory() -> int | None:
    """Bytes of memory of the GPU; None without one."""
    try:
        return read_gpu().total_memory_bytes  # does not create a CUDA context in this process
    except NoGpu:
        return None


def common_config(is_reduced: bool, engine_device: str | None) -> PartConfig:
    memory_bytes = gpu_memory()
    is_gpu = memory_bytes is not None
    untimed = None
    if not is_gpu:
        os.environ["TRITON_INTERPRET"] = "1"  # read by the processes of the parts
        untimed = "not measured: interpreter"
    elif is_reduced:
        untimed = "not measured: reduced"
    takes_cuda = "cuda" in get_args(DeviceConfig.model_fields["device"].annotation)
    return PartConfig(
        part="",
        started_at=0.0,
        deadline=0.0,
        device="cuda" if is_gpu else "cpu",
        engine_device=engine_device or ("cuda" if takes_cuda else "cpu"),
        is_reduced=is_reduced or not is_gpu,
        untimed=untimed,
        bytes_per_second=None,
        flops_per_second=None,
        memory_bytes=memory_bytes,
    )


def show(record: Record) -> None:
    value = "" if record.value is None else f"{record.value:.4g} {record.unit}"
    ratio = "" if record.ratio is None else f"  x floor {record.ratio:.2f}"
    error = "" if record.error is None else f"  [{record.error}]"
    print(f"{record.part}: {record.name} ({record.shape}) {value}{ratio}{error}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--minutes", type=float, default=_TOTAL_S / 60)
    parser.add_argument("--only", help=f"comma-separated, in this order, of {', '.join(part.name for part in PARTS)}")
    parser.add_argument(
        "--reduced", action="store_true", help="tiny shapes and no times: only checks that everything runs"
    )
    parser.add_argument("--engine-device", choices=("cpu", "cuda"), help="device of the deployments; default: cuda")
    parser.add_argument(
        "--vllm-path", metavar="FOLDER", help="folder with vLLM and its packages; default: where Python finds modules"
    )
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the tables of FILE without measuring")
    chosen = parser.parse_args(arguments)
    if chosen.table:
        print(tables(*read_records(chosen.table)))
        return
    by_name = {part.name: part for part in PARTS}
    names = chosen.only.split(",") if chosen.only else list(by_name)
    if unknown := set(names) - {MACHINE.name, *by_name}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    began = time.time()
    records = RecordFile(chosen.out)
    config = common_config(chosen.reduced, chosen.engine_device)
    runner = SuiteRunner(records, config, 60 * chosen.minutes, show)
    runner.run(MACHINE, 1.0)
    scale = 60 * chosen.minutes / _TOTAL_S
    for name in names:
        if name in by_name:
            part = by_name[name]
            runner.run(replace(part, python_path=chosen.vllm_path) if name.startswith(VLLM) else part, scale)
    print(f"\n{tables(records.machine, records.records)}\n\n{time.time() - began:.0f} s; {chosen.out}", file=sys.stdout)


if __name__ == "__main__":
    main()
