"""The weights of a transformers model: under which names a checkpoint has them, and how they become parameters.

Renamings and conversions are the library's own, in both directions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, Self

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
    revert_weight_conversion,
)

from ...config.checkpoint.left_out import left_out
from ...config.checkpoint.stored import StoredTensor
from ...model.wrappers import of_language_model
from ..layers.loading import Held, TensorReader


class CheckpointNames:
    """shapes: of all tensors that a checkpoint has, by name, as the library would write it."""

    def __init__(self, model: PreTrainedModel) -> None:
        """model: as built, with the names of its class."""
        transforms = get_model_conversion_mapping(model)
        self._renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
        self._converters = [each for each in transforms if isinstance(each, WeightConverter)]
        self._prefix = f"{model.base_model_prefix}."
        self._model = model
        state = dict(_state(model))
        self._aliases = frozenset(set(model.state_dict()) - state.keys())  # tied to another parameter
        on_meta = {name: tensor.to("meta") for name, tensor in state.items()}
        written: dict[str, torch.Tensor] = revert_weight_conversion(model, on_meta)
        self.shapes = {name: tuple(tensor.shape) for name, tensor in written.items()}
        self._state = on_meta
        self._parts: dict[str, list[tuple[str, str | None]]] = {}
        for name in sorted(self.shapes, key=dot_natural_key):
            target, pattern = self._target(name)
            self._parts.setdefault(target, []).append((name, pattern))

    def _target(self, name: str) -> tuple[str, str | None]:
        """The parameter that a tensor is a part of, and the pattern of its conversion."""
        renamed: tuple[str, str | None] = rename_source_key(
            name, self._renamings, self._converters, self._model.base_model_prefix, self._state
        )
        return renamed

    def direct(self, parameter: str) -> str | None:
        """The tensor that is this parameter as it is; None if it is converted."""
        parts = self._parts.get(parameter, [])
        return parts[0][0] if len(parts) == 1 and parts[0][1] is None else None

    def conversions(self) -> Iterator[tuple[str, list[tuple[str, str]], WeightConverter]]:
        """Parameters that are computed from tensors: one of them, the tensors with their patterns, how."""
        by_pattern = {pattern: each for each in self._converters for pattern in each.source_patterns}
        for target, parts in self._parts.items():
            found = [(name, pattern) for name, pattern in parts if pattern is not None]
            if found:
                yield target, found, by_pattern[found[0][1]]

    def aligned(self, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        """A checkpoint's tensors under the names of `shapes`, without those of encoders or that the library ignores."""
        stored = of_language_model(stored)
        plain = {self._plain(name): name for name in self.shapes}
        ignored = [re.compile(pattern) for pattern in self._model._keys_to_ignore_on_load_unexpected or ()]
        unused = left_out(stored, self._model.config.get_text_config().num_hidden_layers, ())
        found: dict[str, StoredTensor] = {}
        for name, tensor in stored.items():
            own = name if name in self.shapes else plain.get(self._plain(name), name)
            is_surplus = own not in self.shapes and (
                name in unused or self._target(name)[0] in self._aliases or any(each.search(name) for each in ignored)
            )
            if not is_surplus:
                found[own] = tensor
        return found

    def _plain(self, name: str) -> str:
        """Renamed, without the prefix that a checkpoint of the model without output layer lacks."""
        return str(rename_source_key(name, self._renamings, [])[0]).removeprefix(self._prefix)


def _named_once(model: PreTrainedModel) -> dict[int, str]:
    """The name of each parameter by its id: of the names of a tied one that under which a checkpoint has it."""
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    names: dict[int, str] = {}
    every = list(model.named_parameters(remove_duplicate=False))
    for name, parameter in sorted(every, key=lambda each: each[0] in tied):  # stable: else the first
        names.setdefault(id(parameter), name)
    return names


def _state(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, tied ones once, and the buffers that a checkpoint has."""
    names = _named_once(model)
    yield from ((names[id(parameter)], parameter) for parameter in model.parameters())
    buffers, saved = dict(model.named_buffers()), model.state_dict()
    yield from ((name, buffers[name]) for name in saved if name in buffers)


class Places:
    """Places and dtypes of the parameters and buffers of a model."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        self._plan = [(re.compile(pattern), kept) for pattern, kept in model._get_dtype_plan(dtype).items()]
        self._dtype = dtype
        self._buffers: dict[str, tuple[nn.Module, str]] = {}
        self._parameters: dict[str, list[tuple[nn.Module, str]]] = {}
        names = _named_once(model)
        saved = model.state_dict().keys()
        for path, module in model.named_modules():
            dot = f"{path}." if path else ""
            for leaf, parameter in module._parameters.items():
                if parameter is not None:
                    name = names[id(parameter)]
                    self._parameters.setdefault(name, []).append((module, leaf))
            for leaf in module._buffers:
                if dot + leaf in saved:
                    self._buffers[dot + leaf] = module, leaf

    def __iter__(self) -> Iterator[str]:
        yield from self._parameters
        yield from self._buffers

    def dtype(self, name: str) -> torch.dtype:
        if name in self._buffers:
            module, leaf = self._buffers[name]
            buffer = module._buffers[leaf]
            if buffer is not None and not buffer.is_floating_point():
                return buffer.dtype
        return next((kept for pattern, kept in self._plan if pattern.search(name)), self._dtype)

    def is_shared(self, name: str) -> bool:
        return len(self._parameters.get(name, ())) > 1

    def shape(self, name: str) -> torch.Size | None:
        """Shape of a parameter or buffer; None if there is none of this name."""
        found = [self._buffers[name]] if name in self._buffers else self._parameters.get(name, [])
        return getattr(*found[0]).shape if found else None

    def set(self, name: str, value: torch.Tensor) -> None:
        value = value.to(self.dtype(name))
        if name in self._buffers:
            module, leaf = self._buffers[name]
            module._buffers[leaf] = value
            return
        parameter = nn.Parameter(value, requires_grad=False)
        for module, leaf in self._parameters[name]:
            module._parameters[leaf] = parameter


class Tensors:
    """A loadable: parameters that stay as modules have them, from one tensor each or converted from several."""

    def __init__(
        self,
        places: Places,
        shapes: Mapping[str, tuple[int, ...]],
        target: str,
        parts: Sequence[tuple[str, str]],
        converter: WeightConverter | None,
        model: PreTrainedModel,
    ) -> None:
        """parts: names in the checkpoint, and their patterns in the converter."""
        self._places, self._target, self._parts = places, target, parts
        self._shapes = {name: shapes[name] for name, _ in parts}
        self._converter, self._model = converter, model
        self._values: dict[str, torch.Tensor] = {}

    def wanted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield from self._shapes.items()

    def load(self, tensors: TensorReader) -> None:
        dtype = self._places.dtype(self._target)
        read: list[torch.Tensor] = []
        for name, shape in self._shapes.items():
            into = torch.empty(shape, dtype=dtype)
            tensors.read(name, into)
            read.append(into)
        if self._converter is None:
            self._put({self._target: read[0]})
            return
        converter: Any = deepcopy(self._converter)
        for (name, pattern), tensor in zip(self._parts, read, strict=True):
            converter.add_tensor(self._target, name, pattern, tensor)
        del read
        converted = converter.convert(self._target, model=self._model, config=self._model.config)
        self._put({name: value[0] if isinstance(value, list) else value for name, value in converted.items()})

    def take_weights(self, other: Self) -> None:
        self._put(other._values)
        other._values = {}

    def held(self) -> Held:
        return self._values

    def hold(self, held: Held) -> None:
        values = {name: value for name, value in held.items() if isinstance(value, torch.Tensor)}
        for name, value in values.items():
            if value.shape != self._places.shape(name):
                raise ValueError(f"`{name}` must be {list(self._places.shape(name) or ())}")
        if not values:
            raise ValueError(f"`{self._target}` is missing")
        self._put(values)

    def _put(self, values: Mapping[str, torch.Tensor]) -> None:
        for name, value in values.items():
            value = value.contiguous()
            self._places.set(name, value)
            self._values[name] = value

    @property
    def num_bytes(self) -> int:
        return sum(value.nbytes for value in self._values.values())
