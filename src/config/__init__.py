"""Reading a deployment: what was written, what follows from it, and what is wrong with it. Imports no torch.

deployment = load_deployment(["deploy.yaml"])                     # Deployment, or ConfigError
model_files = read_model_files(deployment)                                   # ModelFiles, or ModelFilesError
resolved = resolve_deployment(deployment, model_files, read_machine_spec())  # Resolved, or ConfigError

Names are loaded when they are first asked for: a page of `engine explain` needs few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .deployment import Deployment
    from .errors import ConfigError, DeploymentError, ModelFilesError, ModelNotLocal
    from .fetch import fetch_model
    from .load import load_deployment
    from .memory.memory_plan import MemoryPlan
    from .origin import Layer, Origin
    from .resolve.described_model import ModelFiles
    from .resolve.machine import read_machine_spec
    from .resolve.machine_spec import MachineSpec
    from .resolve.model_files import read_model_files
    from .resolve.resolve import resolve_deployment
    from .resolve.resolved import Measured, Resolved
    from .schema.server import ServerConfig

_HOMES = {
    "deployment": ("Deployment",),
    "errors": ("ConfigError", "DeploymentError", "ModelFilesError", "ModelNotLocal"),
    "fetch": ("fetch_model",),
    "load": ("load_deployment",),
    "memory.memory_plan": ("MemoryPlan",),
    "origin": ("Layer", "Origin"),
    "resolve.described_model": ("ModelFiles",),
    "resolve.machine": ("read_machine_spec",),
    "resolve.machine_spec": ("MachineSpec",),
    "resolve.model_files": ("read_model_files",),
    "resolve.resolve": ("resolve_deployment",),
    "resolve.resolved": ("Measured", "Resolved"),
    "schema.server": ("ServerConfig",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ConfigError",
    "Deployment",
    "DeploymentError",
    "Layer",
    "MachineSpec",
    "Measured",
    "MemoryPlan",
    "ModelFiles",
    "ModelFilesError",
    "ModelNotLocal",
    "Origin",
    "Resolved",
    "ServerConfig",
    "fetch_model",
    "load_deployment",
    "read_machine_spec",
    "read_model_files",
    "resolve_deployment",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
