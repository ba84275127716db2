"""Part `profile`: kernels of a steady decode step with their times, and processor time of the host."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile

from .engine import Engine
from .part import Case, Context
from .requests import steady_cases
from .speed import model_named

_STEPS = 6  # of each measurement
_MAX_KERNELS = 25  # recorded, those with the longest times


def profiled(context: Context, rows: int, length: int) -> None:
    engine = context.shared("engine", lambda: Engine(context, model_named("qwen3-0.6b", context)))
    engine.finish_start()
    is_gpu = context.config.engine_device == "cuda" and context.config.device == "cuda"
    steps = 1 if context.is_reduced else _STEPS
    of = f"{engine.model.shape.name}, {rows} x {length}"

    def work(step: Callable[[], object]) -> None:
        host, began = time.process_time(), time.perf_counter()
        for _ in range(steps):
            step()
        seconds = (time.perf_counter() - began) / steps
        context.record("step", of, seconds * 1e6, "us")
        context.record("step, processor time", of, (time.process_time() - host) / steps * 1e6, "us")
        activity = ProfilerActivity.CUDA if is_gpu else ProfilerActivity.CPU
        with profile(activities=[activity]) as taken:
            for _ in range(steps):
                step()
            if is_gpu:
                torch.cuda.synchronize()
        spent = {
            event.key: ((event.self_device_time_total if is_gpu else event.self_cpu_time_total) / steps, event.count)
            for event in taken.key_averages()
        }
        spent = {name: each for name, each in spent.items() if each[0] > 0}
        total = sum(us for us, _ in spent.values())
        context.record("all kernels", of, total, "us", seconds * 1e6)
        for name, (us, count) in sorted(spent.items(), key=lambda each: -each[1][0])[:_MAX_KERNELS]:
            # Here the ratio is the fraction of all kernels' time.
            context.record(f"kernel {name[:90]}", f"{of}, {count / steps:g} a step", us, "us", total)

    engine.run_steps(rows, length, work)


def cases(context: Context) -> list[Case]:
    return [
        Case(f"{rows} x {length}", partial(profiled, rows=rows, length=length), 0.0 if context.is_reduced else 4.0)
        for rows, length in steady_cases(context)[: 1 if context.is_reduced else 3]
        if rows != 64
    ]
