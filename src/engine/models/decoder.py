"""Decoder of the Llama, Mistral, Qwen2 and Qwen3 families: one pre-norm transformer.

Differences: biases in attention and MLP (Qwen2), norms over each query and key head (Qwen3), a sliding window in all or
some layers (Mistral, Qwen2), rotary scaling, tied embeddings. Attribute names equal the checkpoint's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from ...config import ModelFilesError, ModelSpec
from ...config.checkpoint.match import FUSED
from ...config.quantised import SCHEMES
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
        """quantization: scheme of the linear layers' weights (config/quantised.py)."""
        held = SCHEMES[quantization] if quantization else None
        if model_spec.hidden_act != "silu":
            raise ModelFilesError(
                f"{model_spec.model_path}/config.json: hidden_act `{model_spec.hidden_act}` is not supported for "
                f"{model_spec.architecture}; supported: silu"
            )
        self.model_spec = model_spec

        def linear(prefix: str, parts: dict[str, int], in_features: int, has_bias: bool) -> Linear:
            named = {f"{prefix}.{name}": size for name, size in parts.items()}
            return Linear(named, in_features, has_bias, kernels, dtype, device, held and held.layers)

        def norm(name: str, width: int) -> RMSNorm:
            return RMSNorm(name, width, model_spec.rms_norm_eps, dtype, device)

        self.lm_head = Linear(
            {"model.embed_tokens" if model_spec.tie_word_embeddings else "lm_head": model_spec.vocab_size},
            model_spec.hidden_size,
            has_bias=False,
            kernels=kernels,
            dtype=dtype,
            device=device,
            scheme=held and held.output,
        )
        self.embed_tokens: Callable[[torch.Tensor], torch.Tensor]
        if model_spec.tie_word_embeddings:
            self.embed_tokens = TiedEmbedding(self.lm_head, kernels)
        else:
            width = model_spec.hidden_size
            self.embed_tokens = Embedding("model.embed_tokens", model_spec.vocab_size, width, kernels, dtype, device)
        cos_sin = cos_sin_table(rope_parameters(model_spec), model_spec.head_dim, max_model_len).to(device)
        self.layers = [
            _layer(model_spec, index, cos_sin, kernels, linear, norm) for index in range(model_spec.num_layers)
        ]
        self.norm = norm("model.norm", model_spec.hidden_size)

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


def _layer(
    model_spec: ModelSpec,
    index: int,
    cos_sin: torch.Tensor,
    kernels: KernelSet,
    linear: Callable[[str, dict[str, int], int, bool], Linear],
    norm: Callable[[str, int], RMSNorm],
) -> DecoderLayer:
    prefix = f"model.layers.{index}"
    queries, keys = model_spec.num_heads * model_spec.head_dim, model_spec.num_kv_heads * model_spec.head_dim
    width, inner = model_spec.hidden_size, model_spec.intermediate_size
    qkv = dict(zip(FUSED["qkv_proj"], (queries, keys, keys), strict=True))
    gate_up = dict.fromkeys(FUSED["gate_up_proj"], inner)
    attention = Attention(
        AttentionShape(
            num_heads=model_spec.num_heads,
            num_kv_heads=model_spec.num_kv_heads,
            head_dim=model_spec.head_dim,
            window=model_spec.sliding_window if model_spec.sliding_window_layers[index] else None,
        ),
        linear(f"{prefix}.self_attn", qkv, width, model_spec.attention_bias),
        linear(f"{prefix}.self_attn", {"o_proj": width}, queries, model_spec.attention_out_bias),
        norm(f"{prefix}.self_attn.q_norm", model_spec.head_dim) if model_spec.qk_norm else None,
        norm(f"{prefix}.self_attn.k_norm", model_spec.head_dim) if model_spec.qk_norm else None,
        cos_sin,
        kernels,
    )
    mlp = GatedMLP(
        linear(f"{prefix}.mlp", gate_up, width, model_spec.mlp_bias),
        linear(f"{prefix}.mlp", {"down_proj": width}, inner, model_spec.mlp_bias),
        kernels,
    )
    return DecoderLayer(
        norm(f"{prefix}.input_layernorm", width), attention, norm(f"{prefix}.post_attention_layernorm", width), mlp
    )
