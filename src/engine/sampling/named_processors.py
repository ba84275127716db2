"""Logits processors by import path: those that the deployment installs, and those that requests name.

What one must be: logits_processor.py. This module loads no torch, because requests are checked where there is none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ...config.resolve.import_path import split_import_path
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
    _check_home(call.qualname, found)
    if isinstance(found, type) or call.args or call.kwargs:
        found = make(call.qualname, found, *call.args, **call.kwargs)
    if not callable(found):
        raise PluginError(f"{call.qualname}: cannot be called with logits")
    processor: Processor = found
    return processor


def _check_home(path: str, found: Any) -> None:
    r"""Raises PluginError for what the named module only has from elsewhere.

    A pattern speaks of paths: `mine\..*` would else let a request call `mine.run` where `mine` has imported
    `subprocess.run`.
    """
    parts = split_import_path(path)
    if parts is None or not (isinstance(found, type) or inspect.isroutine(found)):
        return
    home = getattr(found, "__module__", None) or "elsewhere"
    if home.partition(".")[0] != parts[0].partition(".")[0]:
        raise PluginError(f"{path}: comes from {home}; only what its own package defines can be named")
