"""Decoder: a transformer of attention and feed-forward blocks, built from the layers of its ModelSpec."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import torch

from ...config.checkpoint.match import tensors_of
from ...config.checkpoint.stored import StoredTensor
from ...model.activations import HIDDEN_ACTS
from ...model.experts import CLAMPED_SWIGLU, SWIGLU_LIMIT
from ...model.latent import SPARSE_TABLE
from ...model.quantised import SCHEMES
from ...model.sharding import first_layout, of_one_device, own_experts
from ...model.spec import MLP as MLPSpec
from ...model.spec import Attention as AttentionSpec
from ...model.spec import Experts as ExpertsSpec
from ...model.spec import GatedDelta as GatedDeltaSpec
from ...model.spec import LatentAttention as LatentSpec
from ...model.spec import LayerInput as LayerInputSpec
from ...model.spec import Mamba2 as Mamba2Spec
from ...model.spec import Mixer as MixerSpec
from ...model.spec import ModelSpec, NormPlaces, RopeSpec
from ...model.spec import Norm as NormSpec
from ...model.spec import ShortConvolution as ShortConvolutionSpec
from ...model.tensors import (
    EMBEDDING_NORM,
    FINAL_NORM,
    FUSED,
    INPUT_GATE,
    INPUT_NORM,
    INPUT_PROJECTION,
    LAYER_INPUTS,
    LAYER_INPUTS_NORM,
    LAYER_INPUTS_PROJECTION,
    NORMS_BESIDE,
    POSITIONS,
    attention_parts,
    gated_delta_parts,
    head_norm_shape,
    layer_norms,
    mamba2_parts,
)
from ..kernels import ExpertGate, HeadVariant, KernelSet, Routing
from ..layers.attention import (
    Attention,
    AttentionShape,
    alibi_slopes,
    order_of_gates,
    order_of_groups,
)
from ..layers.convolution import ShortConvolution, Taps
from ..layers.embedding import Embedding, EmbeddingPart, TiedEmbedding, rounded
from ..layers.expert_places import ExpertPlaces
from ..layers.experts import ExpertNames, Experts, ExpertsBesideMLP, ExpertSizes, MixtureOfExperts, Router
from ..layers.gated_delta import GatedDelta, order_by_part
from ..layers.latent_attention import HeadMatrices, LatentAttention
from ..layers.layer_input import LayerInput, LayerInputs
from ..layers.linear import Finish, Linear
from ..layers.loading import Loadable, TensorReader
from ..layers.mamba2 import Mamba2, gates_after_inputs
from ..layers.mixer import LayerCache, Mixer
from ..layers.mlp import MLP, GatedMLP
from ..layers.norm import LayerNorm, Norm, RMSNorm
from ..layers.rotary import cos_sin_table, query_scales
from ..layers.step_input import StepInput
from ..layers.token_index import TokenIndex
from ..layers.vector import Scalar, Vector
from ..parallel import Ranks, SharedExperts
from .layer_stack import Layer, LayerStack, Mix
from .rope import rope_parameters

FeedForward = GatedMLP | MLP | MixtureOfExperts | ExpertsBesideMLP


class DecoderLayer:
    """One layer. hidden is what the layer before adds to the residual stream; without a residual it is the stream."""

    def __init__(
        self,
        places: NormPlaces,
        norms: Sequence[Norm],
        mixer: Mixer,
        mlp: FeedForward,
        kernels: KernelSet,
        residual_scale: float,
        beside: Mixer | None = None,
        own_input: LayerInput | None = None,
        scalar: Scalar | None = None,
    ) -> None:
        """norms: in the order of their use, as LAYER_NORMS names them. residual_scale: of what the parts add.
        scalar: multiplies what the layer adds to the stream, and the stream itself."""
        self.norms = norms
        self.mixer = mixer
        self.beside = beside
        self.mlp = mlp
        self.own_input = own_input
        self.scalar = scalar
        self._kernels = kernels
        self._scale = residual_scale
        ways = {
            "inputs": self._of_inputs if residual_scale == 1 else self._of_scaled,
            "outputs": self._of_outputs,
            "both": self._of_both,
            "common": self._of_common,
            "parallel": self._of_parallel,
        }
        self._forward = ways[places] if beside is None else self._of_two_mixers

    def loadables(self) -> Iterator[Loadable]:
        yield from self.norms
        if self.scalar is not None:
            yield self.scalar
        yield from self.mixer.loadables()
        if self.beside is not None:
            yield from self.beside.loadables()
        yield from self.mlp.loadables()
        if self.own_input is not None:
            yield from self.own_input.loadables()

    def __call__(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """hidden, residual: [T, hidden_size]. Returns both, of the rows that `mix` returns."""
        hidden, residual = self._forward(hidden, residual, mix)
        if self.own_input is not None:
            residual = self._sum(hidden, residual)
            hidden = self.own_input(residual, mix.inputs)
        if self.scalar is None:
            return hidden, residual
        return self._kernels.scale_and_cap(self._sum(hidden, residual), self.scalar.value), None

    def _sum(self, hidden: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        return hidden if residual is None else self._kernels.add_scaled(hidden, residual)

    def _of_inputs(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        projected, residual = self.mixer.in_proj.of_normed(self.norms[0], hidden, residual)
        return self.mlp(self.norms[1], mix(self.mixer, projected), mix.rows_of(residual))

    def _of_two_mixers(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert self.beside is not None
        normed, stream = self.norms[0](self._kernels, hidden, residual)
        first = mix(self.mixer, self.mixer.in_proj(normed), slice(None, -2))
        second = mix(self.beside, self.beside.in_proj(normed), slice(-2, None))  # of a state, after those of attention
        return self.mlp(self.norms[1], second, self._kernels.add_scaled(first, mix.rows_of(stream)))

    def _of_scaled(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        projected, stream = self.mixer.in_proj.of_normed(self.norms[0], hidden, residual)
        stream = self._kernels.add_scaled(mix(self.mixer, projected), mix.rows_of(stream), self._scale)
        added, stream = self.mlp(self.norms[1], stream, None)
        return self._kernels.add_scaled(added, stream, self._scale), None

    def _of_outputs(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        stream = hidden if residual is None else self._kernels.add_scaled(hidden, residual)
        mixed, _ = self.norms[0](self._kernels, mix(self.mixer, self.mixer.in_proj(stream)))
        stream = self._kernels.add_scaled(mixed, mix.rows_of(stream))
        added, _ = self.norms[1](self._kernels, self.mlp.of(stream))
        return added, stream

    def _of_both(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        projected, residual = self.mixer.in_proj.of_normed(self.norms[0], hidden, residual)
        mixed, _ = self.norms[1](self._kernels, mix(self.mixer, projected))
        added, stream = self.mlp(self.norms[2], mixed, mix.rows_of(residual))
        return self.norms[3](self._kernels, added)[0], stream

    def _of_common(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        normed, residual = self.norms[0](self._kernels, hidden, residual)
        mixed = mix(self.mixer, self.mixer.in_proj(normed))
        added = self.mlp.of(mix.rows_of(normed))
        return self._kernels.add_scaled(mixed, added), mix.rows_of(residual)

    def _of_parallel(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        projected, residual = self.mixer.in_proj.of_normed(self.norms[0], hidden, residual)
        stream = mix.rows_of(residual)
        mixed = mix(self.mixer, projected)
        added, _ = self.mlp(self.norms[1], stream, None)
        return self._kernels.add_scaled(mixed, added), stream


class MixerLayer:
    """A layer without a feed-forward block."""

    def __init__(self, norm: Norm, mixer: Mixer) -> None:
        self.norm, self.mixer = norm, mixer

    def loadables(self) -> Iterator[Loadable]:
        yield self.norm
        yield from self.mixer.loadables()

    def __call__(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As DecoderLayer."""
        projected, stream = self.mixer.in_proj.of_normed(self.norm, hidden, residual)
        return mix(self.mixer, projected), mix.rows_of(stream)


class FeedForwardLayer:
    """A layer without a mixer."""

    mixer: Mixer | None = None

    def __init__(self, norm: Norm, mlp: FeedForward) -> None:
        self.norm, self.mlp = norm, mlp

    def loadables(self) -> Iterator[Loadable]:
        yield self.norm
        yield from self.mlp.loadables()

    def __call__(
        self, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As DecoderLayer."""
        return self.mlp(self.norm, mix.rows_of(hidden), None if residual is None else mix.rows_of(residual))


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
        ranks: the processes that compute these layers, each a part of them (model/sharding.py); None if this one does
            alone.
        layers: of this stage; None for all.
        replicas: share the experts of these layers; None if this one has all of them.
        """
        self.model_spec = model_spec
        self._kernels = kernels
        self.table: dict[str, str] = dict(SPARSE_TABLE) if model_spec.is_sparse else {}
        self.is_capturable = not model_spec.is_sparse  # the tokens of attention are chosen by torch
        self._ranks = ranks
        own = model_spec
        if ranks is not None:
            self.table |= ranks.table
            self.is_capturable &= ranks.is_capturable
            own = of_one_device(model_spec, ranks.size)
        if replicas is not None:
            self.table |= replicas.table
        make = _Parts(own, kernels, max_model_len, dtype, device, quantization, ranks, replicas)
        layers = layers or range(own.num_layers)
        computed = own.model_copy(update={"layers": own.layers[layers.start : layers.stop]})
        last_full = computed.last_full_layer(skips_shared=skips_shared)
        self._add_ends(make, dtype, device)
        self.stack = LayerStack([make.layer(index) for index in layers], layers.start, last_full)

    def _add_ends(self, make: _Parts, dtype: torch.dtype, device: torch.device) -> None:
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
        """By their place among the layers of this part."""
        return {index: layer.mixer for index, layer in enumerate(self.layers) if isinstance(layer.mixer, Attention)}

    def take_weights(self, other: Self) -> None:
        """Takes the weights of the same model with other kernels, which can no longer be used."""
        for mine, its in zip(self.loadables(), other.loadables(), strict=True):
            mine.take_weights(its)


class Decoder(DecoderPart):
    """The whole model: token ids to hidden states, hidden states to logits. As the first stage, without the layers of
    the others."""

    def _add_ends(self, make: _Parts, dtype: torch.dtype, device: torch.device) -> None:
        model_spec, kernels, ranks = self.model_spec, self._kernels, self._ranks
        hidden, vocabulary = model_spec.hidden_size, make.vocab_size
        self.lm_head = make.output("model.embed_tokens" if model_spec.is_tied else "lm_head")
        multiplier = model_spec.embedding_scale
        if model_spec.rounds_embedding_scale:
            multiplier = rounded(multiplier, dtype)
        self._table: Embedding | TiedEmbedding
        if model_spec.is_tied:
            self._table = TiedEmbedding(self.lm_head, kernels, multiplier)
        else:
            self._table = Embedding("model.embed_tokens", vocabulary, hidden, kernels, dtype, device, multiplier)
        self.embed_tokens = self._table if ranks is None else EmbeddingPart(self._table, vocabulary, ranks)
        self.embed_positions: Embedding | None = None
        if model_spec.has_position_table:
            offset = model_spec.position_offset
            rows = model_spec.max_position_embeddings + offset
            self.embed_positions = Embedding(POSITIONS, rows, hidden, kernels, dtype, device, offset=offset)
        self.embed_norm = make.norm(EMBEDDING_NORM, hidden) if model_spec.has_embedding_norm else None
        self.norm = make.norm(FINAL_NORM, hidden)
        self.layer_inputs = make.layer_inputs()

    def loadables(self) -> Iterator[Loadable]:
        yield self.lm_head
        if isinstance(self._table, Embedding):
            yield self._table
        if self.embed_positions is not None:
            yield self.embed_positions
        if self.embed_norm is not None:
            yield self.embed_norm
        if self.layer_inputs is not None:
            yield from self.layer_inputs.loadables()
        yield from super().loadables()
        yield self.norm

    def forward(
        self, steps: Sequence[StepInput], caches: Sequence[LayerCache], rows: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Writes what the caches keep of all T tokens. Returns hidden and residual of `rows`, for `logits`, or for the
        next stage.

        steps, caches: one per layer; the steps differ in the blocks that they use. rows: [N] int64, indices of the
        tokens whose logits are needed; None for all.
        """
        for step in steps:
            step.plans.clear()
        hidden = self.embedded(steps[0])
        inputs = None if self.layer_inputs is None else self.layer_inputs(steps[0].token_ids, hidden)
        return self.stack(hidden, None, steps, caches, rows, inputs)

    def embedded(self, step: StepInput) -> torch.Tensor:
        """The input of the first layer, [T, hidden_size]."""
        hidden: torch.Tensor = self.embed_tokens(step.token_ids)
        if self.embed_positions is not None:
            hidden = self._kernels.add_scaled(hidden, self.embed_positions(step.positions))
        if self.embed_norm is not None:
            hidden, _ = self.embed_norm(self._kernels, hidden)
        return hidden

    def logits(self, hidden: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """hidden, residual: [N, hidden_size]. Returns [N, vocab_size] in the model's dtype: on rank 0, others have a
        part of the columns."""
        logits, _ = self.lm_head.of_normed(self.norm, hidden, residual)
        scale, softcap = self.model_spec.logits_scale, self.model_spec.logits_softcap
        if (scale, softcap) != (1, None):
            logits = self._kernels.scale_and_cap(logits, scale, softcap)
        return logits if self._ranks is None else self._ranks.gather(logits, self.model_spec.vocab_size)


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


def _order_of(spec: AttentionSpec) -> Callable[[int, int, int], torch.Tensor] | None:
    """Makes the order of the outputs of a projection whose checkpoint has another."""
    if spec.has_gate:
        return order_of_gates
    return order_of_groups if spec.is_grouped else None


def expert_gate(activation: str, *, has_gates: bool = True) -> ExpertGate:
    """activation: of model/spec.py."""
    if activation == CLAMPED_SWIGLU:
        return ExpertGate("clamped_swiglu", limit=SWIGLU_LIMIT)
    return ExpertGate(HIDDEN_ACTS[activation], has_gates)


class _Parts:
    """Makes the parts of a model, with the same kernels, dtype and device."""

    def __init__(
        self,
        model_spec: ModelSpec,
        kernels: KernelSet,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
        quantization: str | None,
        ranks: Ranks | None,
        replicas: SharedExperts | None,
    ) -> None:
        """model_spec: of what this process computes."""
        self._ranks, self._replicas = ranks, replicas
        self._sum = None if ranks is None else ranks.sum
        self._spec = model_spec
        self._kernels = kernels
        self._max_model_len = max_model_len
        self._dtype, self._device = dtype, device
        self._scheme = SCHEMES[quantization] if quantization else None
        self.vocab_size = model_spec.vocab_size
        self._rotations: dict[tuple[RopeSpec, int], torch.Tensor] = {}
        self._query_scales: dict[tuple[float, float, int], torch.Tensor] = {}

    def norm(self, name: str, width: int) -> Norm:
        return self._norm(self._spec.norm, name, width)

    def _norm(self, spec: NormSpec, name: str, width: int | tuple[int, ...]) -> Norm:
        offset = 1.0 if spec.is_offset else 0.0
        if spec.kind == "rms":
            return RMSNorm(name, width, spec.eps, self._dtype, self._device, offset=offset)
        has_bias = spec.has_bias
        return LayerNorm(name, width, spec.eps, self._dtype, self._device, offset=offset, has_bias=has_bias)

    def output(self, name: str) -> Linear:
        scheme = self._scheme and self._scheme.output
        rows, columns = {name: self._spec.vocab_size}, self._spec.hidden_size
        return Linear(rows, columns, self._spec.has_output_bias, self._kernels, self._dtype, self._device, scheme)

    def linear(
        self,
        prefix: str,
        parts: dict[str, int],
        in_features: int,
        has_bias: bool,
        order: torch.Tensor | None = None,
        finish: Finish | None = None,
    ) -> Linear:
        named = {f"{prefix}.{name}": size for name, size in parts.items()}
        scheme = self._scheme and self._scheme.layers
        return Linear(named, in_features, has_bias, self._kernels, self._dtype, self._device, scheme, order, finish)

    def summed(self, prefix: str, name: str, in_features: int, has_bias: bool) -> Linear:
        """The last layer of a block, whose inputs the ranks share: what they compute is added."""
        return self.linear(prefix, {name: self._spec.hidden_size}, in_features, has_bias, finish=self._sum)

    def layer(self, index: int) -> DecoderLayer | MixerLayer | FeedForwardLayer:
        prefix, spec = f"model.layers.{index}", self._spec.layers[index]
        norms = [self.norm(f"{prefix}.{name}", self._spec.hidden_size) for name in layer_norms(spec)]
        mixers = [self.mixer(prefix, each) for each in spec.mixers]
        if spec.feed_forward is None:
            return MixerLayer(norms[0], *mixers)
        feed_forward = self.feed_forward(f"{prefix}.mlp", spec.feed_forward)
        if not mixers:
            return FeedForwardLayer(norms[0], feed_forward)
        mixer, beside, *_ = (*mixers, None)
        assert mixer is not None
        scalar = Scalar(f"{prefix}.layer_scalar", self._dtype, self._device) if spec.has_scalar else None
        scale, own_input = self._spec.residual_scale, self.layer_input(prefix, spec.input)
        return DecoderLayer(spec.norms, norms, mixer, feed_forward, self._kernels, scale, beside, own_input, scalar)

    def layer_inputs(self) -> LayerInputs | None:
        """Of all layers."""
        if (spec := self._spec.layer_input) is None:
            return None
        hidden, width, dtype, device = self._spec.hidden_size, spec.width, self._dtype, self._device
        sizes = self._spec.num_layers * width
        prefix, _, name = LAYER_INPUTS_PROJECTION.rpartition(".")
        return LayerInputs(
            Embedding(LAYER_INPUTS, spec.vocab_size, sizes, self._kernels, dtype, device),
            self.linear(prefix, {name: sizes}, hidden, has_bias=False),
            RMSNorm(LAYER_INPUTS_NORM, width, hidden * self._spec.norm.eps, dtype, device),
            rounded(width**0.5, dtype),
            self._kernels,
        )

    def layer_input(self, prefix: str, spec: LayerInputSpec | None) -> LayerInput | None:
        if spec is None:
            return None
        hidden, norm = self._spec.hidden_size, self._spec.norm
        return LayerInput(
            self.linear(prefix, {INPUT_GATE: spec.width}, hidden, has_bias=False),
            self.linear(prefix, {INPUT_PROJECTION: hidden}, spec.width, has_bias=False),
            self._norm(norm.model_copy(update={"eps": 2 * norm.eps}), f"{prefix}.{INPUT_NORM}", hidden),
            HIDDEN_ACTS[spec.activation],
            self._kernels,
        )

    def mixer(self, prefix: str, spec: MixerSpec) -> Mixer:
        match spec:
            case AttentionSpec():
                return self.attention(f"{prefix}.self_attn", spec)
            case LatentSpec():
                return self.latent_attention(f"{prefix}.self_attn", spec)
            case GatedDeltaSpec():
                return self.gated_delta(f"{prefix}.linear_attn", spec)
            case ShortConvolutionSpec():
                return self.short_convolution(f"{prefix}.conv", spec)
            case Mamba2Spec():
                return self.mamba2(f"{prefix}.mamba", spec)
        raise AssertionError(f"support.py accepts layers with {spec}")

    def attention(self, prefix: str, spec: AttentionSpec) -> Attention:
        hidden, order = self._spec.hidden_size, None
        if order_of := _order_of(spec):
            order = order_of(spec.num_heads, spec.num_kv_heads, spec.head_dim)
        slopes: torch.Tensor | None = None
        if spec.alibi != "none":
            slopes = self._of_heads(alibi_slopes, spec.num_heads).to(self._device)
            if spec.alibi == "before_scale":
                slopes = slopes * spec.head_dim**-0.5
        q_norm, k_norm = (
            self.head_norm(f"{prefix}.{name}", spec, heads)
            for name, heads in (("q_norm", spec.num_heads), ("k_norm", spec.num_projected[0]))
        )
        heads = HeadVariant(
            is_interleaved=spec.rope is not None and spec.rope.is_interleaved,
            is_over_all_heads=spec.head_norm == "whole",
            is_norm_last=spec.head_norm in ("head_after_rope", "bare_after_rope"),
            has_value_norm=spec.has_value_norm,
            values_are_keys=not spec.has_own_values,
            query_scales=self.query_scales(spec),
        )
        sinks = Vector(f"{prefix}.sinks", spec.num_heads, self._dtype, self._device) if spec.has_sinks else None
        return Attention(
            AttentionShape(
                spec.num_heads,
                spec.num_projected[0],
                spec.head_dim,
                spec.window,
                spec.is_chunked,
                softcap=spec.softcap,
                scale=spec.scale,
            ),
            self.linear(prefix, attention_parts(spec), hidden, spec.has_bias, order),
            self.summed(prefix, "o_proj", spec.num_heads * spec.head_dim, spec.has_out_bias),
            q_norm,
            k_norm,
            None if spec.rope is None else self.rotations(spec.rope, spec.head_dim),
            self._kernels,
            sinks=sinks,
            slopes=slopes,
            heads=heads,
            has_gate=spec.has_gate,
        )

    def _of_heads(self, make: Callable[[int], torch.Tensor], num_heads: int) -> torch.Tensor:
        """What `make` returns for all heads, of those of this process."""
        if self._ranks is None:
            return make(num_heads)
        return make(num_heads * self._ranks.size).chunk(self._ranks.size)[self._ranks.rank]

    def latent_attention(self, prefix: str, spec: LatentSpec) -> LatentAttention:
        assert spec.rope is not None
        hidden, dtype, device = self._spec.hidden_size, self._dtype, self._device
        queries = spec.num_heads * (spec.plain_dim + spec.rope_dim)
        inputs = {"q_a_proj": spec.query_rank} if spec.query_rank else {"q_proj": queries}
        inputs["kv_a_proj_with_mqa"] = spec.rank + spec.rope_dim
        rotations = self.rotations(spec.rope, spec.rope_dim)
        index: TokenIndex | None = None
        if spec.index_heads:
            if not spec.shares_index:
                inputs |= {"indexer.wk": spec.index_dim, "indexer.weights_proj": spec.index_heads}
            index = self.token_index(f"{prefix}.indexer", spec, rotations)
        q_norm: RMSNorm | None = None
        q_proj: Linear | None = None
        if spec.query_rank:
            q_norm = RMSNorm(f"{prefix}.q_a_layernorm", spec.query_rank, spec.norm_eps, dtype, device)
            q_proj = self.linear(prefix, {"q_b_proj": queries}, spec.query_rank, has_bias=False)
        return LatentAttention(
            spec,
            self.linear(prefix, inputs, hidden, spec.has_bias),
            self.summed(prefix, "o_proj", spec.num_heads * spec.value_dim, spec.has_bias),
            q_norm,
            q_proj,
            RMSNorm(f"{prefix}.kv_a_layernorm", spec.rank, spec.norm_eps, dtype, device),
            HeadMatrices(f"{prefix}.kv_b_proj", spec, dtype, device),
            index,
            rotations,
            self._kernels,
        )

    def token_index(self, prefix: str, spec: LatentSpec, rotations: torch.Tensor) -> TokenIndex:
        if spec.shares_index:
            return TokenIndex(spec, None, None, rotations, self._kernels)
        queries = self.linear(prefix, {"wq_b": spec.index_heads * spec.index_dim}, spec.query_rank, has_bias=False)
        norm = NormSpec(kind="layer", eps=spec.norm_eps, has_bias=True)
        k_norm = self._norm(norm, f"{prefix}.k_norm", spec.index_dim)
        assert isinstance(k_norm, LayerNorm)
        return TokenIndex(spec, queries, k_norm, rotations, self._kernels)

    def gated_delta(self, prefix: str, spec: GatedDeltaSpec) -> GatedDelta:
        heads, dtype, device = spec.num_value_heads, self._dtype, self._device
        hidden, values = self._spec.hidden_size, heads * spec.value_dim
        return GatedDelta(
            self.linear(prefix, gated_delta_parts(spec), hidden, has_bias=False, order=order_by_part(spec)),
            self.summed(prefix, "out_proj", values, has_bias=False),
            Taps(f"{prefix}.conv1d.weight", spec.conv_channels, spec.conv_width, dtype, device),
            Vector(f"{prefix}.A_log", heads, dtype, device, is_exact=True),
            Vector(f"{prefix}.dt_bias", heads, dtype, device, is_exact=True),
            RMSNorm(f"{prefix}.norm", spec.value_dim, self._spec.norm.eps, dtype, device),
            self._kernels,
        )

    def short_convolution(self, prefix: str, spec: ShortConvolutionSpec) -> ShortConvolution:
        hidden, dtype, device = self._spec.hidden_size, self._dtype, self._device
        return ShortConvolution(
            self.linear(prefix, {"in_proj": 3 * spec.width}, hidden, spec.has_bias),
            self.summed(prefix, "out_proj", spec.width, spec.has_bias),
            Taps(f"{prefix}.conv.weight", spec.width, spec.conv_width, dtype, device),
            Vector(f"{prefix}.conv.bias", spec.width, dtype, device) if spec.has_bias else None,
            self._kernels,
        )

    def mamba2(self, prefix: str, spec: Mamba2Spec) -> Mamba2:
        hidden, dtype, device = self._spec.hidden_size, self._dtype, self._device
        order, sizes = gates_after_inputs(spec), {"in_proj": sum(mamba2_parts(spec))}
        exact = (
            Vector(f"{prefix}.{name}", spec.num_heads, dtype, device, is_exact=True)
            for name in ("A_log", "dt_bias", "D")
        )
        a_log, dt_bias, skip = exact
        return Mamba2(
            self.linear(prefix, sizes, hidden, spec.has_bias, order),
            self.summed(prefix, "out_proj", spec.width, spec.has_out_bias),
            Taps(f"{prefix}.conv1d.weight", spec.conv_channels, spec.conv_width, dtype, device),
            Vector(f"{prefix}.conv1d.bias", spec.conv_channels, dtype, device) if spec.has_conv_bias else None,
            (a_log, dt_bias, skip),
            None if spec.norm == "none" else Vector(f"{prefix}.norm.weight", spec.width, dtype, device),
            self._kernels,
            spec,
            self._spec.norm.eps,
        )

    def head_norm(self, name: str, spec: AttentionSpec, num_heads: int) -> Norm | None:
        if spec.head_norm == "none" or not num_heads:
            return None
        norm = self._spec.norm
        if spec.head_norm == "bare_after_rope":
            return RMSNorm(name, spec.head_dim, norm.eps, self._dtype, self._device, has_weight=False)
        if spec.head_norm == "layer":
            norm = NormSpec(kind="layer", eps=norm.eps)
        return self._norm(norm, name, head_norm_shape(spec, num_heads))

    def feed_forward(self, prefix: str, spec: MLPSpec | ExpertsSpec) -> FeedForward:
        return self.mlp(prefix, spec) if isinstance(spec, MLPSpec) else self.experts(prefix, spec)

    def experts(self, prefix: str, spec: ExpertsSpec) -> MixtureOfExperts | ExpertsBesideMLP:
        hidden = self._spec.hidden_size
        gate, up, down = (f"{prefix}.experts.{{}}.{name}_proj" for name in ("gate", "up", "down"))
        scales = f"{prefix}.expert_scales" if spec.has_scales else None
        names = ExpertNames(gate if spec.is_gated else None, up, down, has_bias=spec.has_bias, scales=scales)
        own: range | ExpertPlaces | None = None
        if (sharing := self._replicas or self._ranks) is not None and spec.placement != "divided":
            size, rank = sharing.size, sharing.rank
            own = own_experts(spec, size, rank)
            if spec.redundant is not None:
                own = ExpertPlaces(first_layout(spec, size), rank, spec.count, self._device)
        sizes = ExpertSizes(spec.count, hidden, spec.width, own, spec.per_token)
        scheme = self._scheme and self._scheme.layers
        activation = expert_gate(spec.activation, has_gates=spec.is_gated)
        experts = Experts(names, sizes, activation, self._kernels, self._dtype, self._device, scheme)
        shared: GatedMLP | MLP | None = None
        if spec.shared_width:
            block = MLPSpec(width=spec.shared_width, activation=spec.activation, is_gated=spec.is_gated)
            shared = self.mlp(f"{prefix}.shared_experts", block, is_summed=False)  # together with the experts
        shared_gate: Linear | None = None
        if spec.has_shared_gate:  # not quantised, as the router
            part = {f"{prefix}.shared_expert_gate": 1}
            shared_gate = Linear(part, hidden, False, self._kernels, self._dtype, self._device)
        router = self.router(f"{prefix}.gate", spec)
        mixture = MixtureOfExperts(router, experts, self._kernels, shared, shared_gate, self._sum, self._replicas)
        if spec.beside is None:
            return mixture
        layer = prefix.removesuffix(".mlp")
        norms = [self.norm(f"{layer}.{name}", hidden) for name in NORMS_BESIDE]
        return ExpertsBesideMLP(self.mlp(prefix, spec.beside), mixture, norms, self._kernels)

    def router(self, name: str, spec: ExpertsSpec) -> Router:
        """Its weights are not quantised: they are few, and decide what is computed."""
        routing, dtype = spec.routing, torch.float32 if spec.routing.is_float32 else self._dtype
        hidden = self._spec.hidden_size
        projection = Linear({name: spec.count}, hidden, spec.has_router_bias, self._kernels, dtype, self._device)
        correction: Vector | None = None
        if routing.has_correction:
            correction = Vector(f"{name}.e_score_correction_bias", spec.count, torch.float32, self._device)
        chosen = Routing(
            num_experts=spec.count,
            per_token=spec.per_token,
            scoring=routing.scoring,
            renormalises=routing.is_renormalised,
            scale=routing.scale,
            num_groups=routing.num_groups,
            groups_per_token=routing.groups_per_token,
            group_score="sum_of_two" if routing.scoring == "sigmoid" else "maximum",
        )
        if not spec.scales_input:
            norm = self.norm(f"{name}.norm", hidden) if spec.has_router_norm else None
            return Router(projection, chosen, self._kernels, correction, norm=norm)
        weightless = replace(chosen, scoring="softmax_of_chosen")  # of one expert: the weight of its output is 1
        return Router(projection, weightless, self._kernels, correction, chosen)

    def mlp(self, prefix: str, spec: MLPSpec, *, is_summed: bool = True) -> GatedMLP | MLP:
        hidden, activation = self._spec.hidden_size, HIDDEN_ACTS[spec.activation]
        finish = self._sum if is_summed else None
        down = self.linear(prefix, {"down_proj": hidden}, spec.width, spec.has_bias, finish=finish)
        if not spec.is_gated:
            up = self.linear(prefix, {"up_proj": spec.width}, hidden, spec.has_bias)
            return MLP(up, down, self._kernels, activation)
        gate_up = self.linear(prefix, dict.fromkeys(FUSED["gate_up_proj"], spec.width), hidden, spec.has_bias)
        return GatedMLP(gate_up, down, self._kernels, activation)

    def rotations(self, rope: RopeSpec, head_dim: int) -> torch.Tensor:
        """The table of cosines and sines, shared by all layers with the same embedding."""
        if (rope, head_dim) not in self._rotations:
            parameters = rope_parameters(rope, self._spec.max_position_embeddings)
            share = 1.0 if rope.kind == "proportional" else rope.partial_rotary_factor  # it has pairs that stay
            rotary_dim = int(head_dim * share)
            table = cos_sin_table(parameters, rotary_dim, self._max_model_len).to(self._device)
            self._rotations[rope, head_dim] = table
        return self._rotations[rope, head_dim]

    def query_scales(self, spec: AttentionSpec) -> torch.Tensor | None:
        """By position, shared by all layers whose queries grow alike; None if all positions are alike."""
        rope, growth = spec.rope, spec.query_growth
        if rope is not None and rope.llama_4_scaling_beta is not None:
            trained = rope.original_max_position_embeddings or self._spec.max_position_embeddings
            found = float(trained), rope.llama_4_scaling_beta, 0
        elif rope is None and growth is not None:
            found = growth.interval, growth.weight, 1
        else:
            return None
        if found not in self._query_scales:
            self._query_scales[found] = query_scales(self._max_model_len, *found).to(self._device)
        return self._query_scales[found]
