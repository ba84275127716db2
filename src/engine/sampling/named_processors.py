"""Imports logits processors by path: what the deployment installs, and what requests name.

Their interface is in logits_processor.py. This module does not import torch: the API process checks requests with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...config.resolve.import_path import split_import_path
from ..api import InvalidRequest, ProcessorCall, check_allowed
from ..plugins import PlaceOf, PluginError, check_settings, import_class, import_named, make, no_place

Processor = Callable[..., Any]  # a LogitsProcessor, whose types belong to torch


def install(
    paths: Sequence[str], settings: Mapping[str, Mapping[str, Any]] | None = None, place_of: PlaceOf = no_place
) -> tuple[Processor, ...]:
    """One object of each class of `model.logits_processors`. Raises PluginError.

    settings: keyword arguments by path. place_of: where a key of the settings was written, for messages.
    """
    processors: list[Processor] = []
    for path in paths:
        found, wanted = import_class(path, ("__call__",)), (settings or {}).get(path, {})
        check_settings(path, found, wanted, place_of)
        processors.append(make(path, found, **wanted))
    return tuple(processors)


def check_named(calls: Sequence[ProcessorCall], pattern: str | None) -> None:
    """Raises InvalidRequest for processors that are not allowed, do not exist or cannot be created."""
    check_allowed(calls, pattern)
    for call in calls:
        try:
            make_named(call)
        except PluginError as error:
            raise InvalidRequest(f"the logits processor {error}", param="logits_processors") from None


def make_named(call: ProcessorCall) -> Processor:
    """The named object, or the result of calling it with the request's arguments. Raises PluginError."""
    found = import_named(call.qualname)
    _check_home(call.qualname, found)
    if isinstance(found, type) or call.args or call.kwargs:
        found = make(call.qualname, found, *call.args, **call.kwargs)
    if not callable(found):
        raise PluginError(f"{call.qualname}: cannot be called with logits")
    processor: Processor = found
    return processor


def _check_home(path: str, found: Any) -> None:
    r"""Raises PluginError if the named module has only imported the object from another package.

    The pattern applies to paths: without this check `mine\..*` would let a request call `mine.run` if `mine` imports
    `subprocess.run`.
    """
    parts = split_import_path(path)
    if parts is None or not (isinstance(found, type) or inspect.isroutine(found)):
        return
    home = getattr(found, "__module__", None) or "elsewhere"
    if home.partition(".")[0] != parts[0].partition(".")[0]:
        raise PluginError(f"{path}: comes from {home}; only what its own package defines can be named")
