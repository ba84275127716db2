"""Part `ready`: time from process start to a warmed-up engine, with caches on disk from an earlier start."""

from __future__ import annotations

import time
from functools import partial

from .engine import Engine
from .part import Case, Context
from .speed import model_named


def start(context: Context, name: str) -> None:
    engine = Engine(context, model_named(name, context))
    seconds = time.time() - context.config.started_at
    context.record("ready, warm", engine.model.shape.name, seconds, "s")
    for phase, taken in engine.core.info.phases.items():
        context.record(f"ready, warm: {phase}", engine.model.shape.name, taken, "s")


def cases(context: Context) -> list[Case]:
    return [Case(name, partial(start, name=name), 0.0 if context.is_reduced else 6.0) for name in _models(context)]


def _models(context: Context) -> list[str]:
    return ["qwen3-0.6b"] if context.is_reduced else ["qwen3-0.6b", "llama-3.1-8b"]
