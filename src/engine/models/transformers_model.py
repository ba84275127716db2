"""A model of the transformers library: its modules, with this engine's KV cache, attention and linear layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
import transformers
from torch import nn
from transformers import PretrainedConfig

from ...config import ModelFiles, ModelFilesError
from ...config.checkpoint.match import matched
from ...config.checkpoint.stored import StoredTensor
from ...model.quantised import SCHEMES
from ...model.through_transformers import through_transformers
from ..kernels import KernelSet
from ..layers.attention import Attention
from ..layers.linear import Linear, Mix
from ..layers.loading import Loadable
from ..layers.mixer import LayerCache
from ..layers.step_input import StepInput
from . import hf_build
from .hf_attention import NAME, LayerCall, PagedAttention
from .hf_fusion import (
    MergedProjections,
    Norm,
    Projection,
    ScaledEmbedding,
    SingleProjection,
    described,
    embedding_scale,
    is_plain_linear,
    norms,
    replace_module,
)
from .hf_sequences import SequenceCache, cache_argument
from .hf_weights import CheckpointNames, Places, Tensors
from .poolers import Pooler


class TransformersModel:
    """Built without memory for weights. Raises ModelFilesError if the model differs from its description."""

    def __init__(
        self,
        files: ModelFiles,
        kernels: KernelSet,
        dtype: torch.dtype,
        device: torch.device,
        quantization: str | None = None,
    ) -> None:
        """quantization: scheme of the linear layers' weights (model/quantised.py)."""
        self.model_spec = files.spec
        kernels = replace(kernels, pack_grouped=None, packs_grouped_experts=False)  # its weights are planned as numbers
        self._kernels, self._dtype, self._device = kernels, dtype, device
        self._scheme = SCHEMES[quantization] if quantization else None
        config_class, chosen = hf_build.classes(files)

        def make(attention: str) -> PretrainedConfig:
            return hf_build.config_of(files.config_json, config_class, attention)

        traced = hf_build.trace(make, chosen, dtype, files.spec.num_layers)
        _check(files, traced.attention)
        self._module = hf_build.build(make("eager" if traced.is_apart else NAME), chosen, dtype)
        self._names = CheckpointNames(self._module)
        self._places = Places(self._module, dtype)
        self._loadables: list[Loadable] = []
        self._used: set[str] = set()  # parameters that a replacement has
        self._fused: list[str] = []
        self._fuse(traced.called, traced.shared_inputs)
        self._loadables += self._tensors()
        self._attention = PagedAttention(kernels)
        self._attention.attach(self._module)
        self._trunk = _Trunk(self._module, kernels, traced.is_apart)
        self.logits = _ModulesHead(self._trunk, self._module)
        self.heads = {"logits": self.logits}
        self.poolers: dict[str, Pooler] = {}
        self._has_run = False
        self.is_capturable = False
        self.fused = described(self._fused)
        self.table = through_transformers(files.spec, transformers.__version__, self.fused, is_apart=traced.is_apart)

    def _fuse(self, called: Collection[str], shared_inputs: Sequence[tuple[str, ...]]) -> None:
        model = self._module
        output = model.get_output_embeddings()
        output_name = next((name for name, module in model.named_modules() if module is output), "")
        if output_name and is_plain_linear(output):
            self._fuse_output(output_name)
        for names in shared_inputs:
            if output_name not in names and self._merge(names):
                self._fused.append("+".join(name.rpartition(".")[2] for name in names))
        for name, module in list(model.named_modules()):
            is_replaced = is_plain_linear(module) and name in called and name != output_name
            if is_replaced and (linear := self._linear((name,))) is not None:
                replace_module(model, name, SingleProjection(linear, module.weight))
        for name, module, found in list(norms(model)):
            if name not in called:
                continue
            parameters = [f"{name}.{kind}" for kind in ("weight", "bias") if module._parameters.get(kind) is not None]
            if (source := self._stem(parameters)) is not None:
                self._used.update(parameters)
                norm = found.made(source, module, self._dtype, self._device)
                self._loadables.append(norm)
                replace_module(model, name, Norm(norm, self._kernels, module.get_parameter("weight")))
                self._fused.append("norms")
        self._places = Places(model, self._dtype)

    def _fuse_output(self, name: str) -> None:
        """The output layer, packed; a tied embedding reads its rows from there."""
        weight = f"{name}.weight"
        embedding = self._module.get_input_embeddings()
        source = next((key for key in self._names_of(weight)), weight)
        if not self._places.is_shared(source):
            linear = self._linear((name,), is_output=True)
            if linear is not None:
                replace_module(self._module, name, SingleProjection(linear, self._module.get_parameter(weight)))
            return
        scale = embedding_scale(embedding, self._dtype)
        tied = next((path for path, module in self._module.named_modules() if module is embedding), "")
        direct = self._names.direct(source)
        output: Any = self._module.get_submodule(name)
        if scale is None or direct is None or output.bias is not None:
            return
        linear = self._make_linear(
            {direct.removesuffix(".weight"): output.out_features}, output.in_features, False, is_output=True
        )
        self._used.add(source)
        self._loadables.append(linear)
        replace_module(self._module, name, SingleProjection(linear, output.weight))
        replace_module(self._module, tied, ScaledEmbedding(linear, self._kernels, scale))

    def _names_of(self, parameter: str) -> Iterator[str]:
        """The name under which a parameter, possibly tied, is stored."""
        wanted = self._module.get_parameter(parameter)
        yield from (name for name, each in self._module.named_parameters() if each is wanted)

    def _merge(self, names: tuple[str, ...]) -> bool:
        linear = self._linear(names)
        if linear is None:
            return False
        merged = MergedProjections(linear)
        for index, name in enumerate(names):
            weight = self._module.get_parameter(f"{name}.weight")
            replace_module(self._module, name, Projection(merged, index, weight))
        return True

    def _linear(self, names: Sequence[str], *, is_output: bool = False) -> Linear | None:
        """The engine's layer for these; None if their weights are converted, or kept in another format or dtype."""
        modules: list[Any] = [self._module.get_submodule(name) for name in names]
        has_bias = modules[0].bias is not None
        if not all(map(is_plain_linear, modules)) or any((each.bias is not None) != has_bias for each in modules):
            return None
        if any(each.weight.dtype != self._dtype for each in modules):
            return None
        parts: dict[str, int] = {}
        used: list[str] = []
        for name, module in zip(names, modules, strict=True):
            parameters = [f"{name}.weight", f"{name}.bias"] if has_bias else [f"{name}.weight"]
            if (stem := self._stem(parameters)) is None:
                return None
            parts[stem] = module.out_features
            used += parameters
        linear = self._make_linear(parts, modules[0].in_features, has_bias, is_output=is_output)
        self._used.update(used)
        self._loadables.append(linear)
        return linear

    def _stem(self, parameters: Sequence[str]) -> str | None:
        """What the names of these parameters, a module's, have in common in the checkpoint.

        None if they are not there as they are, are tied, or are kept in another format than the model's.
        """
        stems: set[str] = set()
        for name in parameters:
            source, kind = self._names.direct(name), f".{name.rpartition('.')[2]}"
            if source is None or not source.endswith(kind):
                return None
            if self._places.dtype(name) != self._dtype or self._places.is_shared(name):
                return None
            stems.add(source.removesuffix(kind))
        return stems.pop() if len(stems) == 1 else None

    def _make_linear(self, parts: Mapping[str, int], in_features: int, has_bias: bool, *, is_output: bool) -> Linear:
        scheme = self._scheme and (self._scheme.output if is_output else self._scheme.layers)
        return Linear(parts, in_features, has_bias, self._kernels, self._dtype, self._device, scheme)

    def _tensors(self) -> Iterator[Tensors]:
        """Everything that stays as the modules have it."""
        for target, parts, converter in self._names.conversions():
            yield Tensors(self._places, self._names.shapes, target, parts, converter, self._module)
        for name in self._places:
            if name not in self._used and (source := self._names.direct(name)) is not None:
                yield Tensors(self._places, self._names.shapes, name, [(source, "")], None, self._module)

    def loadables(self) -> Iterator[Loadable]:
        yield from self._loadables

    def wanted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for loadable in self._loadables:
            yield from loadable.wanted()

    def tensors(self, folder: Path, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        return matched(folder, self._names.aligned(stored), dict(self.wanted()), is_tied=False)

    def attention_layers(self) -> dict[int, Attention]:
        return {}

    @property
    def num_bytes(self) -> int:
        return sum(loadable.num_bytes for loadable in self._loadables)

    def take_weights(self, other: Self) -> None:
        for mine, its in zip(self._loadables, other._loadables, strict=True):
            mine.take_weights(its)

    def forward(
        self, steps: Sequence[StepInput], caches: Sequence[LayerCache], rows: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if steps[0].mix is not None or steps[0].rope_positions is not None:
            raise ValueError("modules of the transformers library see no mix, and positions of one kind")
        self._attention.begin(steps, caches)
        try:
            hidden = self._trunk.hidden(steps, caches)
        except Exception as error:
            if self._has_run or isinstance(error, ModelFilesError):
                raise
            name = type(self._module).__name__  # at the warm-up: modelling code raises anything
            raise ModelFilesError(f"{name} cannot run: {hf_build.line_of(error)}", code="M304") from error
        self._has_run = True
        return (hidden if rows is None else hidden[rows]), None  # the modules have added the residual


class _ModulesHead:
    """The output layer of the modules, and what the model does to its logits."""

    def __init__(self, trunk: _Trunk, module: nn.Module) -> None:
        self._trunk, self._module = trunk, module

    def loadables(self) -> Iterator[Loadable]:
        """No parts: they are the model's own."""
        yield from ()

    def __call__(self, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix | None = None) -> torch.Tensor:
        """See Head."""
        return self._trunk.logits(self._module, hidden)


class _Trunk:
    """Everything before the output layer. The whole model can be run without it, for what it does to the logits."""

    def __init__(self, model: Any, kernels: KernelSet, is_apart: bool) -> None:
        """is_apart: each sequence of a step runs separately."""
        decoder = hf_build.decoder_of(model)
        self._forward: Any = decoder.forward
        self._embedding: Callable[[], Any] = model.get_input_embeddings
        self._first_position = hf_build.first_position(decoder)
        self._cache_argument = cache_argument(decoder) if is_apart else None
        self._kernels = kernels
        self._given: Any = None
        self._make: Any = None  # an output of the trunk with these hidden states
        decoder.forward = self._run

    def _run(self, *arguments: Any, **options: Any) -> Any:
        return self._forward(*arguments, **options) if self._given is None else self._given

    def hidden(self, steps: Sequence[StepInput], caches: Sequence[LayerCache]) -> torch.Tensor:
        """Returns [T, hidden_size]."""
        step, name = steps[0], self._cache_argument
        inputs = {"input_ids": step.token_ids[None]}
        if step.given is not None:
            rows = self._embedding()(step.token_ids[None])
            inputs = {"inputs_embeds": rows.index_copy(1, step.given.tokens, step.given.rows[None])}
        if name is None:
            return self._output(**inputs, position_ids=step.positions[None] + self._first_position, use_cache=False)
        found: list[torch.Tensor] = []
        for row in range(step.num_rows):
            cache = SequenceCache(row, steps, caches, self._kernels)
            own = {key: value[:, cache.tokens] for key, value in inputs.items()}
            found.append(self._output(**own, **{name: cache}))
        return torch.cat(found)

    def _output(self, **inputs: Any) -> torch.Tensor:
        output = self._forward(**inputs)
        self._make = _tuple if isinstance(output, tuple) else type(output)
        hidden: torch.Tensor = output[0][0]
        return hidden

    def logits(self, model: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        """hidden: [N, hidden_size] of `hidden`. Returns [N, vocab_size]."""
        self._given = self._make(last_hidden_state=hidden[None])
        try:
            output = model(input_ids=torch.zeros(1, len(hidden), dtype=torch.int64), use_cache=False)
        finally:
            self._given = None
        logits: torch.Tensor = output[0][0]
        return logits


def _tuple(last_hidden_state: torch.Tensor) -> tuple[torch.Tensor]:
    return (last_hidden_state,)


def _check(files: ModelFiles, calls: Mapping[int, LayerCall]) -> None:
    """Raises ModelFilesError unless the KV cache of the description is the model's."""
    spec = files.spec
    attention = spec.attention
    assert attention is not None
    described = [index for index, layer in enumerate(spec.layers) if layer.mixer is not None]
    if sorted(calls) != described:
        raise ModelFilesError(
            f"config.json describes {len(described)} layers with attention, and the model of transformers computes "
            f"attention in {len(calls)}",
            code="M306",
        )
    for layer, call in calls.items():
        found = call.num_kv_heads, max(call.key_dim, call.value_dim)
        if found != (attention.num_kv_heads, attention.head_dim):
            raise ModelFilesError(
                f"config.json was read as {attention.num_kv_heads} key-value heads of {attention.head_dim} elements; "
                f"layer {layer} of the model of transformers has {found[0]} of {found[1]}",
                code="M306",
            )
        kept = spec.windows[layer]
        is_all = kept is None or kept >= files.max_context
        if not is_all and (call.window is None or call.window > (kept or 0)):
            raise ModelFilesError(
                f"config.json was read as a window of {kept} tokens in layer {layer}; the model of transformers sees "
                f"{call.window or 'all tokens'} there",
                code="M306",
            )
