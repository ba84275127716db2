"""Deployments with `server.engine: none`: what is left of their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .diagnostics import Diagnostic, Label
from .origin import Layer

if TYPE_CHECKING:
    from .source.merge import Written

_KEPT = ("", "model", "server", "observability", "structured_outputs")  # sections; all others are the engine's
_KEPT_OPTIONS = ("load.download_dir",)  # where the tokenizer is downloaded to
# These values describe the model by its configuration file, and no device is looked for.
_ASSUMED = {"load.load_format": "dummy", "device.device": "cpu"}


def is_of_engine(path: str) -> bool:
    """Whether an option has no effect without an engine."""
    return path.rpartition(".")[0] not in _KEPT and path not in _KEPT_OPTIONS


def without_engine(written: dict[str, Written], values: dict[str, Any], found: list[Diagnostic]) -> None:
    """Leave out the options of the engine, with a warning that names those that a user wrote."""
    dropped = [path for path in written if is_of_engine(path)]
    labels: list[Label] = []
    named: list[str] = []
    for path in dropped:
        entry = written.pop(path)
        values.pop(path, None)
        if entry.origin is not None and entry.origin.span.origin().layer is not Layer.PRESET:
            labels.append(Label(entry.origin.span))
            named.append(f"`{path}`")
    if named:
        message = f"`server.engine` is none: {', '.join(named)} {'has' if len(named) == 1 else 'have'} no effect"
        found.append(Diagnostic(code="C127", severity="warning", message=message, labels=tuple(labels[:1])))
    values |= _ASSUMED
