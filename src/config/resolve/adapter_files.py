"""Adapters that a deployment names, read from their configurations and headers; no weights are loaded."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ...model.adapter import AdapterSpec
from ...model.record import Record
from ...model.spec import ModelSpec
from ..adapter_modules import Module, modules_of
from ..checkpoint.adapter_config import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from ..checkpoint.adapter_files import read_adapter
from ..checkpoint.model_files import locate
from .model_location import hub_cache, shown_at

if TYPE_CHECKING:
    from ..deployment import Deployment
    from ..schema.lora import LoRAConfig

FilesState = tuple[tuple[int, int] | None, ...]  # time in nanoseconds and size of each file; None: it cannot be found


class NamedAdapter(Record):
    """An adapter that is served under a name. What its tensors are is read again where it is loaded."""

    name: str
    folder: str  # an absolute path
    digest: str  # AdapterSpec.digest
    base_model_name: str | None = None  # what GET /v1/models shows as its parent; None: the model
    max_rank: int
    num_elements: int
    num_saved_elements: int = 0  # of whole weights, and of rows of weights
    num_layers: int  # matrices that it changes
    num_left_out: int = 0  # matrices that `lora.lora_target_modules` leaves out


def read_named_adapters(deployment: Deployment, spec: ModelSpec) -> tuple[NamedAdapter, ...]:
    """The adapters of the start; none unless they are enabled.

    Raises ModelFilesError, at the option, for one that does not fit the model.
    """
    try:
        modules = list(modules_of(deployment.config)) if deployment.config.lora.enable_lora else []
    except ValueError:
        return ()  # a rule says so
    return tuple(_read(deployment, spec, module) for module in modules)


def read_one(spec: ModelSpec, options: LoRAConfig, folder: Path) -> AdapterSpec:
    """An adapter, as the options of a deployment limit it. Raises ModelFilesError."""
    return read_adapter(folder, spec, max_rank=options.max_lora_rank, target_modules=options.lora_target_modules)


def adapter_folder(path: str, cache: str | None) -> Path:
    """The folder that a call of a running deployment names: a path, or a hub id that is in the cache on this machine.

    Raises ModelFilesError, of which ModelNotLocal is a kind.
    """
    return locate(path, None, cache, ADAPTER_CONFIG).absolute()


def files_state(folder: Path) -> FilesState:
    """What differs when the files of an adapter have been written again. Ask before the files are read."""
    return tuple(_file_state(folder / name) for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS))


def _file_state(path: Path) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return found.st_mtime_ns, found.st_size
    return None


def _read(deployment: Deployment, spec: ModelSpec, module: Module) -> NamedAdapter:
    with shown_at(module.option, True):
        folder = located(deployment, module)
        found = read_one(spec, deployment.config.lora, folder)
    return NamedAdapter(
        name=module.name,
        folder=str(folder),
        digest=found.digest,
        base_model_name=module.base_model_name,
        max_rank=found.max_rank,
        num_elements=found.num_elements,
        num_saved_elements=found.num_saved_elements,
        num_layers=found.num_layers,
        num_left_out=len(found.left_out),
    )


def located(deployment: Deployment, module: Module) -> Path:
    """The folder of an adapter. Raises ModelNotLocal for a hub id that is not on this machine, ModelFilesError."""
    path = deployment.absolute(module.option, module.path)
    name = path if module.path.startswith((".", "/", "~")) or Path(path).exists() else module.path
    return locate(name, None, hub_cache(deployment), ADAPTER_CONFIG).absolute()
