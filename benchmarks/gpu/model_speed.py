"""Parts `qwen3-0.6b` and `llama-3.1-8b`: one engine of that shape and all measurements that have targets."""

from __future__ import annotations

import time
from functools import partial

from .engine import Engine
from .part import Case, Context
from .requests import prefill_cases, steady_cases, workload
from .speed import model_named, record_prefill, record_steady, record_workload


def _engine(context: Context) -> Engine:
    return context.shared("engine", lambda: Engine(context, model_named(context.config.part, context)))


def ready(context: Context) -> None:
    """Time from the start of this process. Triton's cache may contain kernels of an earlier run."""
    engine = _engine(context)
    seconds = time.time() - context.config.started_at
    context.record("ready, first start", engine.model.shape.name, seconds, "s")
    for phase, taken in engine.core.info.phases.items():
        context.record(f"ready, first start: {phase}", engine.model.shape.name, taken, "s")
    context.record("graphs captured after it is ready", engine.model.shape.name, engine.finish_start(), "s")
    context.record_machine(**{f"kernels, {stage}": kernel for stage, kernel in engine.core.info.kernels.items()})


def decode(context: Context, rows: int, length: int) -> None:
    record_steady(context, _engine(context), "decode", rows, length)


def prefill(context: Context, tokens: int) -> None:
    record_prefill(context, _engine(context), "prefill", tokens)


def mixed(context: Context) -> None:
    record_workload(context, _engine(context), "workload of 256", workload(context))


def cases(context: Context) -> list[Case]:
    seconds = 0.0 if context.is_reduced else 4.0
    steps = [
        Case(f"decode, {rows} x {length}", partial(decode, rows=rows, length=length), seconds)
        for rows, length in steady_cases(context)
    ]
    prefills = [
        Case(f"prefill, {tokens}", partial(prefill, tokens=tokens), seconds) for tokens in prefill_cases(context)
    ]
    if context.is_reduced and context.config.part != "qwen3-0.6b":
        return [Case("ready", ready, 0.0)]  # both parts use the same small model
    # Targets exist for one request, a full batch and the workload, so these run first.
    whole = Case("workload of 256", mixed, 2 * seconds)
    return [Case("ready", ready, 2 * seconds), steps[0], whole, *prefills, *steps[1:]]
