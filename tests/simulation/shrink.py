"""Shortens a story that breaks a world: removes parts, large ones first, as long as it still breaks."""

from __future__ import annotations

import re
import time
from dataclasses import fields
from typing import Any

from stoker.engine.api import SamplingParams

from .simulation import Add
from .worlds import AnyWorld, Broken


def _kind(error: Exception) -> tuple[type[Exception], str]:
    """The error without names and numbers."""
    return type(error), re.sub(r"\w*\d\w*", "", str(error))


def breaks(world: AnyWorld, script: list[Any], error: Exception) -> bool:
    """Whether the story ends with an error of the same kind."""
    found = _replayed(world, script)
    return found is not None and _kind(found) == _kind(error)


def _replayed(world: AnyWorld, script: list[Any]) -> Exception | None:
    simulation = world.begin()
    try:
        for action in script:
            simulation.apply(action)
    except Exception as error:
        return error
    finally:
        simulation.close()
    return None


def shrink(broken: Broken, limit_s: float = 60.0) -> list[Any]:
    """The shortest story found within the time."""
    script, until = list(broken.script), time.monotonic() + limit_s
    size = len(script) // 2
    while size and time.monotonic() < until:
        start, has_shrunk = 0, False
        while start < len(script) and time.monotonic() < until:
            shorter = script[:start] + script[start + size :]
            if breaks(broken.world, shorter, broken.error):
                script, has_shrunk = shorter, True
            else:
                start += size
        if not has_shrunk or size > 1:
            size //= 2
    return script


def report(broken: Broken, limit_s: float = 60.0) -> str:
    """The world, the shortened story line by line, and the error."""
    script = shrink(broken, limit_s)
    error = _replayed(broken.world, script) or broken.error
    lines = [
        str(broken),
        str(broken.world.settings),
        f"{broken.world.depth} steps in flight; {len(script)} of {len(broken.script)} actions are needed:",
        *(f"  {_line(action)}" for action in script),
        f"  {type(error).__name__}: {error}",
    ]
    return "\n".join(lines)


def _line(action: object) -> str:
    """The action, without sampling parameters that have their defaults."""
    if not isinstance(action, Add):
        return str(action)
    changed = ", ".join(
        f"{each.name}={getattr(action.sampling, each.name)!r}"
        for each in fields(SamplingParams)
        if getattr(action.sampling, each.name) != getattr(_DEFAULT, each.name)
    )
    further = f"priority={action.priority}"
    if action.is_for_others or action.source is not None:
        further += f", is_for_others={action.is_for_others}, source={action.source}"
    if action.adapter:
        further += f", adapter={action.adapter!r}"
    if action.tasks:
        further += f", tasks={action.tasks}"
    return f"Add({action.request_id!r}, {action.prompt}, SamplingParams({changed}), {further})"


_DEFAULT = SamplingParams()
