"""Part `ablations`: the same steps of the small model with one thing switched, each in a process of its own."""

from __future__ import annotations

from functools import partial

from .engine import Engine, model_named, tell_steady
from .part import Case, Context
from .requests import steady_cases

_SWITCHED = {
    "as it is": {},
    "without graphs": {"enforce_eager": True},
    "without planning ahead": {"async_scheduling": False},
    "planning ahead": {"async_scheduling": True},
}


def switched(context: Context, name: str) -> None:
    engine = Engine(context, model_named("qwen3-0.6b", context), **_SWITCHED[name])
    engine.finish_start()
    for rows, length in [case for case in steady_cases(context) if case[0] != 64][: 1 if context.is_reduced else 2]:
        tell_steady(context, engine, f"decode, {name}", rows, length)


def cases(context: Context) -> list[Case]:
    names = list(_SWITCHED)[: 2 if context.is_reduced else None]  # the interpreter takes seconds for every start
    return [Case(name, partial(switched, name=name), 0.0 if context.is_reduced else 6.0) for name in names]
