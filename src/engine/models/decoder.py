"""Decoder: a transformer of attention and feed-forward blocks, built from the layers of its ModelSpec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import torch

from ...config.checkpoint.match import tensors_of
from ...config.checkpoint.stored import StoredTensor
from ...model.compressed import COMPRESSED_TABLE
from ...model.latent import SPARSE_TABLE
from ...model.pooling import OUTPUT_LAYER
from ...model.spec import ModelSpec
from ...model.tensor_parallel import of_one_device
from ..collectives import Ranks, SharedExperts
from ..kernels import KernelSet
from ..layers.attention import Attention
from ..layers.loading import Loadable, TensorReader
from ..layers.mixer import LayerCache
from ..layers.step_input import StepInput
from .decoder_parts import DecoderParts
from .ends import Head, LMHead
from .layer_stack import Layer, LayerStack


class DecoderPart:
    """The layers of a model, or of one stage of it."""

    def __init__(
        self,
        model_spec: ModelSpec,
        kernels: KernelSet,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
        quantization: str | None = None,
        *,
        skips_shared: bool = True,
        ranks: Ranks | None = None,
        layers: range | None = None,
        replicas: SharedExperts | None = None,
    ) -> None:
        """
        quantization: scheme of the linear layers' weights (model/quantised.py).
        skips_shared: layers that read the keys and values of others compute only the tokens whose logits are needed.
        ranks: the processes that compute these layers, each a part of them (model/tensor_parallel.py); None if this one
            does alone.
        layers: of this stage; None for all.
        replicas: share the experts of these layers; None if this one has all of them.
        """
        self.model_spec = model_spec
        self._kernels = kernels
        self.table: dict[str, str] = dict(SPARSE_TABLE) if model_spec.is_sparse else {}
        is_compressed_in_torch = model_spec.is_compressed and not kernels.has_compressed
        self.table |= COMPRESSED_TABLE if is_compressed_in_torch else {}
        # Torch chooses the tokens of attention, and copies the embedding to streams.
        is_in_torch = model_spec.is_sparse or is_compressed_in_torch
        self.is_capturable = not is_in_torch and model_spec.gated_residual is None
        self._ranks = ranks
        own = model_spec
        if ranks is not None:
            self.table |= ranks.table
            self.is_capturable &= ranks.is_capturable
            own = of_one_device(model_spec, ranks.size)
        if replicas is not None:
            self.table |= replicas.table
        make = DecoderParts(own, kernels, max_model_len, dtype, device, quantization, ranks, replicas)
        layers = range(own.num_layers) if layers is None else layers
        computed = own.model_copy(update={"layers": own.layers[layers.start : layers.stop]})
        last_full = computed.last_full_layer(skips_shared=skips_shared)
        self._add_ends(make)
        self.stack = LayerStack([make.layer(index) for index in layers], layers.start, last_full)

    def _add_ends(self, make: DecoderParts) -> None:
        """Makes what is before and after the layers."""

    @property
    def layers(self) -> list[Layer]:
        return self.stack.layers

    def loadables(self) -> Iterator[Loadable]:
        """All parts with weights, in the order of loading."""
        for layer in self.layers:
            yield from layer.loadables()

    def wanted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for loadable in self.loadables():
            yield from loadable.wanted()

    @property
    def num_bytes(self) -> int:
        return sum(loadable.num_bytes for loadable in self.loadables())

    def load(self, tensors: TensorReader) -> None:
        for loadable in self.loadables():
            loadable.load(tensors)

    def tensors(self, folder: Path, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        return tensors_of(folder, stored, self.model_spec)

    def attention_layers(self) -> dict[int, Attention]:
        """Attention layers by their place among the layers of this part."""
        return {index: layer.mixer for index, layer in enumerate(self.layers) if isinstance(layer.mixer, Attention)}

    def take_weights(self, other: Self) -> None:
        """Takes the weights of the same model with other kernels, which can no longer be used."""
        for mine, its in zip(self.loadables(), other.loadables(), strict=True):
            mine.take_weights(its)


class Decoder(DecoderPart):
    """The whole model: token ids to hidden states, and heads that make results of these. As the first stage, without
    the layers of the others."""

    def _add_ends(self, make: DecoderParts) -> None:
        spec = self.model_spec
        self._output = make.output("model.embed_tokens" if spec.is_tied else OUTPUT_LAYER) if spec.has_output else None
        self.embed = make.embed(self._output)
        self.norm = make.last_norm()
        self.heads: dict[str, Head] = {}
        if spec.generates:
            assert self._output is not None
            self.heads["logits"] = LMHead(self.norm, self._output, spec, self._kernels, self._ranks)
        self.poolers = make.poolers(self.norm, self._output)
        self.layer_inputs = make.layer_inputs()

    @property
    def logits(self) -> LMHead:
        head = self.heads.get("logits")
        assert isinstance(head, LMHead), f"{self.model_spec.architecture} generates no tokens"
        return head

    def loadables(self) -> Iterator[Loadable]:
        for head in self.heads.values():
            yield from head.loadables()
        if self._output is not None and not self.model_spec.generates:
            yield self._output
        # Heads can share layers, each of which is loaded once.
        yield from dict.fromkeys(part for pooler in self.poolers.values() for part in pooler.loadables())
        yield from self.embed.loadables()
        if self.layer_inputs is not None:
            yield from self.layer_inputs.loadables()
        yield from super().loadables()
        if self.norm is not None:
            yield from self.norm.loadables()

    def forward(
        self, steps: Sequence[StepInput], caches: Sequence[LayerCache], rows: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Writes what the caches keep of all T tokens. Returns hidden and residual of `rows`, for the heads, or for the
        next stage.

        steps, caches: one per layer; the steps differ in the blocks that they use. rows: [N] int64, indices of the
        tokens that a head needs; None for all.
        """
        for step in steps:
            step.plans.clear()
        hidden = self.embed(steps[0])
        inputs = None if self.layer_inputs is None else self.layer_inputs(steps[0].token_ids, hidden, steps[0].mix)
        if (streams := self.model_spec.gated_residual) is not None:
            hidden = hidden.repeat(1, streams.count)
        return self.stack(hidden, None, steps, caches, rows, inputs)


class LaterStage(DecoderPart):
    """The layers of another stage than the first: hidden states to hidden states."""

    def forward(
        self,
        hidden: torch.Tensor,
        residual: torch.Tensor | None,
        steps: Sequence[StepInput],
        caches: Sequence[LayerCache],
        rows: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """hidden, residual: of all T tokens, of the stage before. Else as Decoder."""
        for step in steps:
            step.plans.clear()
        return self.stack(hidden, residual, steps, caches, rows)
