"""Logits processors by import path: those that the deployment installs, and those that requests name.

What one must be: logits_processor.py. This module loads no torch, because requests are checked where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..api import InvalidRequest, ProcessorCall, check_allowed
from ..plugins import PluginError, import_class, import_named, make

Processor = Callable[..., Any]  # a LogitsProcessor, whose types belong to torch


def install(paths: Sequence[str]) -> tuple[Processor, ...]:
    """One of each class of `model.logits_processors`. Raises PluginError."""
    return tuple(make(path, import_class(path, ("__call__",))) for path in paths)


def check_named(calls: Sequence[ProcessorCall], pattern: str | None) -> None:
    """Raises InvalidRequest for processors that may not be named, do not exist or cannot be made."""
    check_allowed(calls, pattern)
    for call in calls:
        try:
            make_named(call)
        except PluginError as error:
            raise InvalidRequest(f"the logits processor {error}", param="logits_processors") from None


def make_named(call: ProcessorCall) -> Processor:
    """What a request asks for: the named object itself, or what it makes of the arguments. Raises PluginError."""
    found = import_named(call.qualname)
    if isinstance(found, type) or call.args or call.kwargs:
        found = make(call.qualname, found, *call.args, **call.kwargs)
    if not callable(found):
        raise PluginError(f"{call.qualname}: cannot be called with logits")
    processor: Processor = found
    return processor
