"""Decoder: a pre-norm transformer of attention and MLPs, built from the layers of its ModelSpec.

Attribute names equal the checkpoint's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from ...model.quantised import SCHEMES
from ...model.spec import MLP, ModelSpec, RopeSpec
from ...model.spec import Attention as AttentionSpec
from ...model.tensors import FUSED
from ..kernels import KernelSet
from ..layers.attention import Attention, AttentionShape, LayerCache
from ..layers.embedding import Embedding, TiedEmbedding
from ..layers.linear import Linear
from ..layers.loading import Loadable, TensorReader
from ..layers.mlp import GatedMLP
from ..layers.norm import RMSNorm
from ..layers.rotary import cos_sin_table
from ..layers.step_input import StepInput
from .rope import rope_parameters


class DecoderLayer:
    def __init__(
        self,
        input_layernorm: RMSNorm,
        self_attn: Attention,
        post_attention_layernorm: RMSNorm,
        mlp: GatedMLP,
    ) -> None:
        self.input_layernorm = input_layernorm
        self.self_attn = self_attn
        self.post_attention_layernorm = post_attention_layernorm
        self.mlp = mlp

    def loadables(self) -> Iterator[Loadable]:
        attention = self.self_attn
        yield self.input_layernorm
        yield attention.qkv_proj
        yield from (norm for norm in (attention.q_norm, attention.k_norm) if norm is not None)
        yield attention.o_proj
        yield self.post_attention_layernorm
        yield self.mlp.gate_up_proj
        yield self.mlp.down_proj

    def __call__(
        self,
        hidden: torch.Tensor,
        residual: torch.Tensor | None,
        step: StepInput,
        cache: LayerCache,
        rows: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """hidden, residual: [T, hidden_size]. rows: the tokens whose result is needed; None for all.

        The keys and values of all tokens are written, not only of `rows`. Returns hidden and residual of `rows`.
        """
        attention = self.self_attn
        qkv, residual = attention.qkv_proj.of_normed(self.input_layernorm, hidden, residual)
        hidden = attention.o_proj(attention(qkv, step, cache, rows))
        residual = residual if rows is None else residual[rows]
        return self.mlp(self.post_attention_layernorm, hidden, residual)


class Decoder:
    """The whole model: token ids to hidden states, hidden states to logits."""

    def __init__(
        self,
        model_spec: ModelSpec,
        kernels: KernelSet,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
        quantization: str | None = None,
    ) -> None:
        """quantization: scheme of the linear layers' weights (model/quantised.py)."""
        self.model_spec = model_spec
        make = _Parts(model_spec, kernels, max_model_len, dtype, device, quantization)
        hidden, vocabulary = model_spec.hidden_size, model_spec.vocab_size
        self.lm_head = make.output("model.embed_tokens" if model_spec.is_tied else "lm_head")
        self.embed_tokens: Callable[[torch.Tensor], torch.Tensor]
        if model_spec.is_tied:
            self.embed_tokens = TiedEmbedding(self.lm_head, kernels)
        else:
            self.embed_tokens = Embedding("model.embed_tokens", vocabulary, hidden, kernels, dtype, device)
        self.layers = [make.layer(index) for index in range(model_spec.num_layers)]
        self.norm = make.norm("model.norm", hidden)

    def loadables(self) -> Iterator[Loadable]:
        """All parts with weights, in the order of loading."""
        yield self.lm_head
        if isinstance(self.embed_tokens, Embedding):
            yield self.embed_tokens
        for layer in self.layers:
            yield from layer.loadables()
        yield self.norm

    def wanted(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for loadable in self.loadables():
            yield from loadable.wanted()

    @property
    def num_bytes(self) -> int:
        return sum(loadable.num_bytes for loadable in self.loadables())

    def load(self, tensors: TensorReader) -> None:
        for loadable in self.loadables():
            loadable.load(tensors)

    def take_weights(self, other: Decoder) -> None:
        """Takes the weights of the same model with other kernels, which can no longer be used."""
        for mine, its in zip(self.loadables(), other.loadables(), strict=True):
            mine.take_weights(its)

    def forward(
        self, steps: Sequence[StepInput], caches: Sequence[LayerCache], rows: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes keys and values of all T tokens into the caches. Returns hidden and residual of `rows`, for `logits`.

        steps, caches: one per layer; the steps differ in the blocks that they use. rows: [N] int64, indices of the
        tokens whose logits are needed; None for all.
        """
        for step in steps:
            step.plans.clear()
        hidden: torch.Tensor = self.embed_tokens(steps[0].token_ids)
        residual: torch.Tensor | None = None
        last = len(self.layers) - 1
        for index, (layer, step, cache) in enumerate(zip(self.layers, steps, caches, strict=True)):
            hidden, residual = layer(hidden, residual, step, cache, rows if index == last else None)
        assert residual is not None, "a model has at least one layer"
        return hidden, residual

    def logits(self, hidden: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """hidden, residual: [N, hidden_size]. Returns [N, vocab_size] in the model's dtype."""
        return self.lm_head.of_normed(self.norm, hidden, residual)[0]


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
    ) -> None:
        self._spec = model_spec
        self._kernels = kernels
        self._max_model_len = max_model_len
        self._dtype, self._device = dtype, device
        self._scheme = SCHEMES[quantization] if quantization else None
        self._rotations: dict[tuple[RopeSpec, int], torch.Tensor] = {}

    def norm(self, name: str, width: int) -> RMSNorm:
        return RMSNorm(name, width, self._spec.norm.eps, self._dtype, self._device)

    def output(self, name: str) -> Linear:
        scheme = self._scheme and self._scheme.output
        rows, columns = {name: self._spec.vocab_size}, self._spec.hidden_size
        return Linear(rows, columns, False, self._kernels, self._dtype, self._device, scheme)

    def linear(self, prefix: str, parts: dict[str, int], in_features: int, has_bias: bool) -> Linear:
        named = {f"{prefix}.{name}": size for name, size in parts.items()}
        scheme = self._scheme and self._scheme.layers
        return Linear(named, in_features, has_bias, self._kernels, self._dtype, self._device, scheme)

    def layer(self, index: int) -> DecoderLayer:
        prefix, hidden = f"model.layers.{index}", self._spec.hidden_size
        spec = self._spec.layers[index]
        assert isinstance(spec.mixer, AttentionSpec)
        assert isinstance(spec.feed_forward, MLP)
        return DecoderLayer(
            self.norm(f"{prefix}.input_layernorm", hidden),
            self.attention(f"{prefix}.self_attn", spec.mixer),
            self.norm(f"{prefix}.post_attention_layernorm", hidden),
            self.mlp(f"{prefix}.mlp", spec.feed_forward),
        )

    def attention(self, prefix: str, spec: AttentionSpec) -> Attention:
        hidden, queries, keys = (
            self._spec.hidden_size,
            spec.num_heads * spec.head_dim,
            spec.num_kv_heads * spec.head_dim,
        )
        assert spec.rope is not None
        return Attention(
            AttentionShape(spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.window),
            self.linear(
                prefix, dict(zip(FUSED["qkv_proj"], (queries, keys, keys), strict=True)), hidden, spec.has_bias
            ),
            self.linear(prefix, {"o_proj": hidden}, queries, spec.has_out_bias),
            self.norm(f"{prefix}.q_norm", spec.head_dim) if spec.head_norm == "head" else None,
            self.norm(f"{prefix}.k_norm", spec.head_dim) if spec.head_norm == "head" else None,
            self.rotations(spec.rope, spec.head_dim),
            self._kernels,
        )

    def mlp(self, prefix: str, spec: MLP) -> GatedMLP:
        hidden, parts = self._spec.hidden_size, dict.fromkeys(FUSED["gate_up_proj"], spec.width)
        return GatedMLP(
            self.linear(prefix, parts, hidden, spec.has_bias),
            self.linear(prefix, {"down_proj": hidden}, spec.width, spec.has_bias),
            self._kernels,
        )

    def rotations(self, rope: RopeSpec, head_dim: int) -> torch.Tensor:
        """The table of cosines and sines, shared by all layers with the same embedding."""
        if (rope, head_dim) not in self._rotations:
            parameters = rope_parameters(rope, self._spec.max_position_embeddings)
            table = cos_sin_table(parameters, head_dim, self._max_model_len).to(self._device)
            self._rotations[rope, head_dim] = table
        return self._rotations[rope, head_dim]
