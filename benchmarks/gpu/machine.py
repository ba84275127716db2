"""Description of the machine and its peak speeds, bytes and operations per second, from which floors are computed."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from .part import Case, Context
from .timing import Timer

_READ_BYTES = 4 * 2**30
_SQUARE = 8192


def description(context: Context) -> None:
    found = {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
    }
    for package in ("torch", "triton", "transformers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    driver = Path("/proc/driver/nvidia/version")
    if driver.exists():
        found["driver"] = driver.read_text().splitlines()[0]
    if context.config.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "device": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "memory, GiB": round(properties.total_memory / 2**30, 1),
            "cuda": torch.version.cuda,
        }
        for name in ("L2_cache_size", "clock_rate", "memory_clock_rate"):  # only in newer torch versions
            if (value := getattr(properties, name, None)) is not None:
                found[name] = value
    else:
        found["device"] = "none: Triton's interpreter"
    context.record_machine(**found)


def memory(context: Context) -> None:
    device = torch.device(context.config.device)
    num_elements = (2**14 if context.is_reduced else _READ_BYTES) // 4
    timer = Timer(device)
    source = torch.ones(num_elements, device=device)
    total = torch.zeros((), device=device)
    target = torch.empty_like(source)
    ways = {
        "sum": (lambda: torch.sum(source, 0, out=total), source.nbytes),
        "largest": (lambda: torch.amax(source, 0, out=total), source.nbytes),
        "copy": (lambda: target.copy_(source), 2 * source.nbytes),
    }
    best, spread = 0.0, None
    for name, (run, moved) in ways.items():
        timing = timer.measure([run])
        speed = 0.0 if timing is None else moved / timing.us * 1e6
        if timing is not None and speed > best:
            best, spread = speed, timing.spread
        context.record(f"memory, {name}", f"{source.nbytes / 2**20:.2f} MiB", speed, "byte/s")
    context.record("memory read", "the best of these", best, "byte/s", spread=spread)


def product(context: Context) -> None:
    device = torch.device(context.config.device)
    side = 64 if context.is_reduced else _SQUARE
    timer = Timer(device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    timing = timer.measure([lambda: left @ right] * 4)
    value = None if timing is None else 2 * side**3 / timing.us * 1e6
    spread = None if timing is None else timing.spread
    context.record("matrix product", f"{side} x {side} x {side}, {dtype}", value, "FLOP/s", spread=spread)


def cases(context: Context) -> list[Case]:
    return [Case("description", description), Case("memory", memory), Case("product", product)]
