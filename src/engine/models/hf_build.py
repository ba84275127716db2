"""Builds a model of the transformers library without memory for its weights, and records what its forward pass does."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.fx.experimental import _config as fx_config
from transformers import CONFIG_MAPPING, PretrainedConfig, PreTrainedModel
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ...config import ModelFiles, ModelFilesError
from ...config.checkpoint.repository_code import RepositoryCode, code_files
from ..kernels import KernelSet
from .hf_attention import NAME, LayerCall, PagedAttention, SeesLaterTokens
from .hf_sequences import TracedCache, cache_argument

logger = logging.getLogger(__name__)
_OWN_ATTENTION = (
    "does not call the library's attention interface, so its keys and values cannot be kept in the KV cache"
)
_NO_CACHE = "keeps no keys and values in a cache of the library"
_NUM_TRACED = 3  # tokens
_HINT = "; if it was trained as a decoder, config.json must say `is_decoder: true`"
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


def config_of(
    values: Mapping[str, Any], config_class: type[PretrainedConfig], attention: str = NAME
) -> PretrainedConfig:
    """A configuration for one model: building a model changes it. Raises ModelFilesError for one it does not take.

    attention: the implementation, ours or `eager`, the modules' own.
    """
    given = {key: value for key, value in values.items() if key != "auto_map"}
    try:
        config: PretrainedConfig = config_class.from_dict(given, attn_implementation=attention)
    except Exception as error:  # classes check their values in different ways
        raise ModelFilesError(
            f"config.json: {config_class.__name__} refuses it: {line_of(error)}", code="M306"
        ) from error
    config._experts_implementation = NAME
    return config


def build(config: PretrainedConfig, of: type[PreTrainedModel], dtype: torch.dtype) -> PreTrainedModel:
    """The model with parameters on the meta device and buffers on the CPU, which construction computes."""
    with _parameters_on_meta():
        return _built(config, of, dtype)


def _built(config: PretrainedConfig, of: type[PreTrainedModel], dtype: torch.dtype) -> PreTrainedModel:
    try:
        model: PreTrainedModel = of._from_config(config, dtype=dtype).eval()
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


@contextmanager
def _all_chosen() -> Iterator[None]:
    """A mask chooses all elements where it has no values, so that what is computed of them keeps its width."""
    kept = fx_config.meta_nonzero_assume_all_nonzero
    fx_config.meta_nonzero_assume_all_nonzero = True
    try:
        yield
    finally:
        fx_config.meta_nonzero_assume_all_nonzero = kept


@dataclass(frozen=True, slots=True)
class Trace:
    """What one forward pass did. Names are names of modules."""

    attention: Mapping[int, LayerCall]
    called: frozenset[str] = frozenset()  # of a module that is not, others may read the weight
    shared_inputs: list[tuple[str, ...]] = field(default_factory=list)  # linear layers that read the same tensor
    is_apart: bool = False  # each sequence of a step runs separately (hf_sequences.py)


def trace(
    make: Callable[[str], PretrainedConfig], of: type[PreTrainedModel], dtype: torch.dtype, num_layers: int
) -> Trace:
    """A forward pass of a few tokens on the meta device: shapes without values, in milliseconds.

    make: the configuration with an implementation of attention. Raises ModelFilesError if the model cannot be served,
    or if its control flow depends on values.
    """
    try:
        return _trace(make(NAME), of, dtype, None)
    except ModelFilesError as reason:
        hint = _HINT if getattr(make(NAME), "is_decoder", None) is False else ""
        if isinstance(reason, SeesLaterTokens):
            raise ModelFilesError(f"{reason}{hint}", code="M304") from reason
        try:
            return _trace(make("eager"), of, dtype, TracedCache(num_layers, _NUM_TRACED))
        except ModelFilesError as error:
            also = "" if str(error) == str(reason) else f"; one sequence after the other: {error}"
            raise ModelFilesError(f"{reason}{also}{hint}", code="M304") from error


def _trace(config: PretrainedConfig, of: type[PreTrainedModel], dtype: torch.dtype, cache: TracedCache | None) -> Trace:
    """cache: of a sequence that is run separately; None if all of a step are run together."""
    with torch.device("meta"), _unchecked_distributions(), _all_chosen():
        model = _built(config, of, dtype)
        attention = PagedAttention(KernelSet())
        attention.attach(model)
        inputs = _LinearInputs(model)
        called: set[str] = set()
        errors: list[Exception] = []
        for name, module in model.named_modules():
            module.register_forward_pre_hook(lambda *_, name=name: called.add(name))
            if not isinstance(module, PreTrainedModel):
                _tolerate_values(module, errors)
        ids = torch.zeros(1, _NUM_TRACED, dtype=torch.int64)
        try:
            with torch.no_grad():
                if cache is None:
                    _check_positions(model)
                    model(input_ids=ids, position_ids=torch.arange(_NUM_TRACED)[None], use_cache=False)
                else:
                    model(input_ids=ids, **{_cache_argument(model): cache})
        except ModelFilesError:
            raise
        except Exception as error:  # modelling code raises anything
            raise _without_values(of, error) from error
        calls = attention.calls if cache is None else cache.calls()
        if not calls and errors:
            raise _without_values(of, errors[0]) from errors[0]
        if not calls:
            raise ModelFilesError(f"{of.__name__} {_OWN_ATTENTION if cache is None else _NO_CACHE}", code="M304")
        return Trace(dict(calls), frozenset(called), inputs.shared(), cache is not None)


def _without_values(of: type[PreTrainedModel], error: Exception) -> ModelFilesError:
    return ModelFilesError(f"{of.__name__} cannot run without values or a mask: {line_of(error)}", code="M304")


def _tolerate_values(module: Any, errors: list[Exception]) -> None:
    """A module whose control flow depends on values, such as that of experts, is left out: its input is returned.

    What is seen of the others is as true, and a layer whose attention is in such a module is missing in the trace.
    errors: gets what such modules raise.
    """
    forward = module.forward

    def tolerant(*arguments: Any, **options: Any) -> Any:
        try:
            return forward(*arguments, **options)
        except ModelFilesError:
            raise
        except Exception as error:  # modelling code raises anything
            errors.append(error)
            given = (each for each in (*arguments, *options.values()) if isinstance(each, torch.Tensor))
            first = next((each for each in given if each.is_floating_point()), None)
            if first is None:
                raise
            return torch.empty_like(first)

    module.forward = tolerant


def _check_positions(model: PreTrainedModel) -> None:
    if "position_ids" not in inspect.signature(decoder_of(model).forward).parameters:
        raise ModelFilesError(f"{type(model).__name__} takes no positions", code="M304")


def _cache_argument(model: PreTrainedModel) -> str:
    name = cache_argument(decoder_of(model))
    if name is None:
        raise ModelFilesError(f"{type(model).__name__} {_NO_CACHE}", code="M304")
    return name


def decoder_of(model: PreTrainedModel) -> Any:
    """The model without its output layer, which some classes call their decoder."""
    found = model.get_decoder()
    return found if "input_ids" in inspect.signature(found.forward).parameters else model.base_model


def first_position(model: nn.Module) -> int:
    """The row of the first token in a table of positions: in models like RoBERTa those before it are of padding."""
    found = (each for each in model.modules() if hasattr(each, "create_position_ids_from_input_ids"))
    embeddings: Any = next(found, None)
    return 0 if embeddings is None else embeddings.padding_idx + 1


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
