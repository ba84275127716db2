"""Part `ablations`: the same steps of the small model with one option changed, each in a separate process."""

from __future__ import annotations

from functools import partial

from .engine import Engine
from .part import Case, Context
from .requests import steady_cases
from .speed import model_named, record_steady

_OPTIONS = {
    "as it is": {},
    "without graphs": {"enforce_eager": True},
    "without planning ahead": {"async_scheduling": False},
    "planning ahead": {"async_scheduling": True},
    "weights of half of the layers in host memory": {"cpu_offload_gb": 0.4},
}


def with_options(context: Context, name: str) -> None:
    engine = Engine(context, model_named("qwen3-0.6b", context), **_OPTIONS[name])
    engine.finish_start()
    for rows, length in [case for case in steady_cases(context) if case[0] != 64][: 1 if context.is_reduced else 2]:
        record_steady(context, engine, f"decode, {name}", rows, length)


def cases(context: Context) -> list[Case]:
    names = list(_OPTIONS)[: 2 if context.is_reduced else None]  # the interpreter takes seconds for every start
    return [Case(name, partial(with_options, name=name), 0.0 if context.is_reduced else 6.0) for name in names]
