"""Decoder of the Llama, Mistral, Qwen2 and Qwen3 families: one pre-norm transformer with what they differ in as facts.

Differences: biases in attention and MLP (Qwen2), norms over each query and key head (Qwen3), a sliding window in all or
some layers (Mistral, Qwen2), rotary scaling, tied embeddings. Attribute names equal the checkpoint's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from ...config import ModelFacts, ModelFilesError
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

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


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

        All tokens' keys and values are written whatever `rows` says. Returns hidden and residual of the rows.
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
        facts: ModelFacts,
        kernels: KernelSet,
        max_model_len: int,
        dtype: torch.dtype,
        device: torch.device,
        quantization: str | None = None,
    ) -> None:
        """quantization: scheme of the linear layers' weights (config/quantised.py)."""
        held = SCHEMES[quantization] if quantization else None
        if facts.hidden_act != "silu":
            raise ModelFilesError(
                f"{facts.model_path}/config.json: hidden_act `{facts.hidden_act}` is not supported for "
                f"{facts.architecture}; supported: silu"
            )
        self.facts = facts

        def linear(prefix: str, parts: dict[str, int], in_features: int, has_bias: bool) -> Linear:
            named = {f"{prefix}.{name}": size for name, size in parts.items()}
            return Linear(named, in_features, has_bias, kernels, dtype, device, held and held.layers)

        def norm(name: str, width: int) -> RMSNorm:
            return RMSNorm(name, width, facts.rms_norm_eps, dtype, device)

        self.lm_head = Linear(
            {"model.embed_tokens" if facts.tie_word_embeddings else "lm_head": facts.vocab_size},
            facts.hidden_size,
            has_bias=False,
            kernels=kernels,
            dtype=dtype,
            device=device,
            scheme=held and held.output,
        )
        self.embed_tokens: Callable[[torch.Tensor], torch.Tensor]
        if facts.tie_word_embeddings:
            self.embed_tokens = TiedEmbedding(self.lm_head, kernels)
        else:
            width = facts.hidden_size
            self.embed_tokens = Embedding("model.embed_tokens", facts.vocab_size, width, kernels, dtype, device)
        cos_sin = cos_sin_table(rope_parameters(facts), facts.head_dim, max_model_len).to(device)
        self.layers = [_layer(facts, index, cos_sin, kernels, linear, norm) for index in range(facts.num_layers)]
        self.norm = norm("model.norm", facts.hidden_size)

    def loadables(self) -> Iterator[Loadable]:
        """Everything that holds weights, in the order in which it is loaded."""
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

    def forward(
        self, step: StepInput, caches: Sequence[LayerCache], rows: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of all T tokens into the caches; hidden and residual of `rows` out, for `logits`.

        caches: one per layer. rows: [N] int64, indices of the tokens whose logits may be wanted; None for all.
        """
        step.plans.clear()
        hidden: torch.Tensor = self.embed_tokens(step.token_ids)
        residual: torch.Tensor | None = None
        last = len(self.layers) - 1
        for index, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            hidden, residual = layer(hidden, residual, step, cache, rows if index == last else None)
        assert residual is not None, "a model has at least one layer"
        return hidden, residual

    def logits(self, hidden: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """hidden, residual: [N, hidden_size]. Returns [N, vocab_size] in the model's dtype."""
        return self.lm_head.of_normed(self.norm, hidden, residual)[0]


def _layer(
    facts: ModelFacts,
    index: int,
    cos_sin: torch.Tensor,
    kernels: KernelSet,
    linear: Callable[[str, dict[str, int], int, bool], Linear],
    norm: Callable[[str, int], RMSNorm],
) -> DecoderLayer:
    prefix = f"model.layers.{index}"
    queries, keys = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
    width, inner = facts.hidden_size, facts.intermediate_size
    qkv = dict(zip(FUSED["qkv_proj"], (queries, keys, keys), strict=True))
    gate_up = dict.fromkeys(FUSED["gate_up_proj"], inner)
    attention = Attention(
        AttentionShape(
            num_heads=facts.num_heads,
            num_kv_heads=facts.num_kv_heads,
            head_dim=facts.head_dim,
            window=facts.sliding_window if facts.sliding_window_layers[index] else None,
        ),
        linear(f"{prefix}.self_attn", qkv, width, facts.attention_bias),
        linear(f"{prefix}.self_attn", {"o_proj": width}, queries, facts.attention_out_bias),
        norm(f"{prefix}.self_attn.q_norm", facts.head_dim) if facts.qk_norm else None,
        norm(f"{prefix}.self_attn.k_norm", facts.head_dim) if facts.qk_norm else None,
        cos_sin,
        kernels,
    )
    mlp = GatedMLP(
        linear(f"{prefix}.mlp", gate_up, width, facts.mlp_bias),
        linear(f"{prefix}.mlp", {"down_proj": width}, inner, facts.mlp_bias),
        kernels,
    )
    return DecoderLayer(
        norm(f"{prefix}.input_layernorm", width), attention, norm(f"{prefix}.post_attention_layernorm", width), mlp
    )
