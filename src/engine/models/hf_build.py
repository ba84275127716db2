"""Builds a model of the transformers library without memory for its weights, and records what its forward pass does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import CONFIG_MAPPING, PretrainedConfig, PreTrainedModel
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ...config import ModelFiles, ModelFilesError
from ...config.checkpoint.repository_code import RepositoryCode, code_files
from ..kernels import KernelSet
from .hf_attention import NAME, LayerCall, PagedAttention

logger = logging.getLogger(__name__)
_OWN_ATTENTION = (
    "does not call the library's attention interface, so its keys and values cannot be kept in the KV cache"
)
_GROWING = ("dynamic", "longrope")  # rotary embeddings that depend on the longest sequence of a batch


def classes(files: ModelFiles) -> tuple[type[PretrainedConfig], type[PreTrainedModel]]:
    """The classes of the library, or of the model's repository, whose code is run for it. Raises ModelFilesError."""
    if files.code is not None:
        return code_classes(files.code)
    chosen = model_class(files.spec.architecture, files.spec.model_type)
    return CONFIG_MAPPING[files.spec.model_type], chosen


def model_class(architecture: str, model_type: str) -> type[PreTrainedModel]:
    """Raises ModelFilesError if the library has no such model for text generation."""
    names = {name for entry in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() for name in _several(entry)}
    if architecture not in names or model_type not in CONFIG_MAPPING:
        raise ModelFilesError(
            f"transformers {transformers.__version__} has no model `{architecture}` (`model_type` {model_type}) that "
            "generates text",
            code="M304",
        )
    found: type[PreTrainedModel] = getattr(transformers, architecture)
    return found


def code_classes(code: RepositoryCode) -> tuple[type[PretrainedConfig], type[PreTrainedModel]]:
    """The classes of a model's repository. Runs its code. Raises ModelFilesError if a file has changed."""
    folder = Path(code.folder)
    for file in code.files:
        logger.warning("code of the model's repository: %s, SHA-256 %s", folder / file.name, file.sha256)
    if code_files(folder) != code.files:
        raise ModelFilesError(f"{folder}: its code has changed since this start began; start again", code="M306")
    try:
        found = [
            get_class_from_dynamic_module(reference, code.folder, local_files_only=True)
            for reference in (code.config_class, code.model_class)
        ]
    except Exception as error:  # it is anybody's code
        raise ModelFilesError(f"{folder}: its code cannot be loaded: {line_of(error)}", code="M304") from error
    return found[0], found[1]


def _several(entry: str | tuple[str, ...]) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else entry


def config_of(values: Mapping[str, Any], config_class: type[PretrainedConfig]) -> PretrainedConfig:
    """A configuration for one model: building a model changes it. Raises ModelFilesError for one it does not take."""
    given = {key: value for key, value in values.items() if key != "auto_map"}
    try:
        config: PretrainedConfig = config_class.from_dict(given, attn_implementation=NAME)
    except Exception as error:  # classes check their values in different ways
        raise ModelFilesError(
            f"config.json: {config_class.__name__} refuses it: {line_of(error)}", code="M306"
        ) from error
    config._experts_implementation = NAME
    return config


def build(make: Callable[[], PretrainedConfig], of: type[PreTrainedModel], dtype: torch.dtype) -> PreTrainedModel:
    """The model with parameters on the meta device and buffers on the CPU, which construction computes."""
    with _parameters_on_meta():
        return _built(make, of, dtype)


def _built(make: Callable[[], PretrainedConfig], of: type[PreTrainedModel], dtype: torch.dtype) -> PreTrainedModel:
    try:
        model: PreTrainedModel = of._from_config(make(), dtype=dtype).eval()
    except ModelFilesError:
        raise
    except Exception as error:  # modelling code raises anything
        if isinstance(error, KeyError) and error.args == (NAME,):  # looked up among its own functions
            raise ModelFilesError(f"{of.__name__} {_OWN_ATTENTION}", code="M304") from error
        raise ModelFilesError(f"{of.__name__} cannot be built: {line_of(error)}", code="M304") from error
    for module in model.modules():
        _freeze_rope(module)
        if isinstance(module, PreTrainedModel):  # it looks for padding among the tokens
            module.warn_if_padding_and_no_attention_mask = lambda *_: None
    return model


def _freeze_rope(module: Any) -> None:
    """Keeps the rotary embedding that construction has made: max_context is so short that no other one is needed."""
    kind = getattr(module, "rope_type", None)
    if kind in _GROWING:
        module.rope_type = "default"
    elif isinstance(kind, dict):  # by kind of layer
        module.rope_type = {layers: "default" if each in _GROWING else each for layers, each in kind.items()}


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """A parameter's memory is released as soon as it is registered, before it is initialised: no page is touched."""
    register = nn.Module.register_parameter

    def on_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:  # those on it may be tied
            param = nn.Parameter(param.to("meta"), requires_grad=False)
        register(self, name, param)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Gemma 3n computes a quantile of a normal distribution, whose constructor reads its parameters to check them."""
    kept = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(kept)


@dataclass(frozen=True, slots=True)
class Trace:
    """What one forward pass did. Names are names of modules."""

    attention: Mapping[int, LayerCall]
    shared_inputs: list[tuple[str, ...]] = field(default_factory=list)  # linear layers that read the same tensor


def trace(make: Callable[[], PretrainedConfig], of: type[PreTrainedModel], dtype: torch.dtype) -> Trace:
    """A forward pass of three tokens on the meta device: shapes without values, in milliseconds.

    Raises ModelFilesError if the model cannot be served, or if its control flow depends on values.
    """
    with torch.device("meta"), _unchecked_distributions():
        model = _built(make, of, dtype)
        attention = PagedAttention(KernelSet())
        attention.attach(model)
        inputs = _LinearInputs(model)
        try:
            with torch.no_grad():
                ids = torch.zeros(1, 3, dtype=torch.int64)
                model(input_ids=ids, position_ids=torch.arange(3)[None], use_cache=False)
        except ModelFilesError:
            raise
        except Exception as error:  # modelling code raises anything
            raise ModelFilesError(
                f"{of.__name__} cannot run without values or a mask: {line_of(error)}", code="M304"
            ) from error
        if not attention.calls:
            raise ModelFilesError(f"{of.__name__} {_OWN_ATTENTION}", code="M304")
        return Trace(dict(attention.calls), inputs.shared())


class _LinearInputs:
    """Finds linear layers of a model that read the same tensor, unchanged in between."""

    def __init__(self, model: nn.Module) -> None:
        self._groups: dict[tuple[int, int, str], list[str]] = {}
        self._counts: dict[str, int] = {}
        self._alive: list[torch.Tensor] = []  # an id is that of one tensor as long as it lives
        for name, module in model.named_modules():
            if type(module) is nn.Linear:
                module.register_forward_pre_hook(self._noter(name))

    def _noter(self, name: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...]], None]:
        def note(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            read = inputs[0]
            self._alive.append(read)
            parent = name.rpartition(".")[0]
            self._groups.setdefault((id(read), read._version, parent), []).append(name)
            self._counts[name] = self._counts.get(name, 0) + 1

        return note

    def shared(self) -> list[tuple[str, ...]]:
        return [
            tuple(names)
            for names in self._groups.values()
            if len(names) > 1 and all(self._counts[name] == 1 for name in names)
        ]


def line_of(error: Exception) -> str:
    """An error of modelling code, on one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
