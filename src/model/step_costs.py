"""Operations and bytes of a step, counted from the description of a model: for estimates of the used share of a device.

Counted are the products of matrices, the products of attention, and what they read and write of weights, of the KV
cache and of recurrent states. Norms, activations and the arithmetic of recurrent layers are less than a percent of most
models.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from .mixers import Attention, CompressedAttention, LatentAttention
from .sizes import count_parameters, kv_bytes, state_bytes
from .spec import ModelSpec
from .tensors import layer_tensors


@dataclass(frozen=True, slots=True)
class AttentionCosts:
    """Costs of all layers whose queries see as far back."""

    window: int | None  # tokens that a query sees; None: all before it
    flops: int  # for each query and token that it sees
    num_bytes: int  # of each token that a sequence's queries see


@dataclass(frozen=True, slots=True)
class StepCosts:
    token_flops: int  # of the matrices of all layers, for each token
    logit_flops: int  # of the output layer, for each token that is sampled
    weights_bytes: int
    active_share: float  # of the weights, that one token uses
    attention: tuple[AttentionCosts, ...]
    written_bytes: int  # of keys and values, for each token
    state_bytes: int  # of a sequence, read and written in each step


def step_costs(spec: ModelSpec, dtype: str, kv_dtype: str, weights_bytes: int) -> StepCosts:
    """weights_bytes: of all weights, as they are held. kv_dtype: of keys and values."""
    counted = count_parameters(spec)
    output = spec.vocab_size * spec.hidden_size
    flops: Counter[int | None] = Counter()
    num_bytes: Counter[int | None] = Counter()
    written = 0
    matrices = sum(
        count * tensor.used * tensor.size
        for layer, count in Counter(layer.with_own_weights for layer in spec.layers).items()
        for tensor in layer_tensors(spec, layer)
        if tensor.is_matrix
    )
    for layer in spec.layers:
        for mixer in layer.mixers:
            if isinstance(mixer, CompressedAttention):
                flops[mixer.window] += 4 * mixer.num_heads * mixer.head_dim
                if mixer.rate:
                    flops[None] += _vector_flops(mixer) // mixer.rate
                    num_bytes[None] += kv_bytes(mixer.keeps, kv_dtype)
                    written += kv_bytes(mixer.keeps, kv_dtype)
            if not isinstance(mixer, Attention | LatentAttention):
                continue
            window = mixer.window
            flops[window] += _pair_flops(mixer)
            kept = kv_bytes(mixer.keeps, kv_dtype)
            num_bytes[window] += kept
            written += kept
    return StepCosts(
        token_flops=2 * matrices,
        logit_flops=2 * output,
        weights_bytes=weights_bytes,
        active_share=counted.active / max(1, counted.total),
        attention=tuple(AttentionCosts(window, flops[window], num_bytes[window]) for window in flops),
        written_bytes=written,
        state_bytes=state_bytes(spec, dtype),
    )


def _vector_flops(mixer: CompressedAttention) -> int:
    """Operations of a query and a vector: those of an index, which chooses few vectors, or else those of all heads."""
    if mixer.index_heads:
        return 2 * mixer.index_heads * mixer.index_dim
    return 4 * mixer.num_heads * mixer.head_dim


def _pair_flops(mixer: Attention | LatentAttention) -> int:
    """A product for the score, and one for the output, of each head."""
    if isinstance(mixer, LatentAttention):
        if not mixer.is_expanded:
            return 2 * mixer.num_heads * (2 * mixer.rank + mixer.rope_dim)
        mixer = mixer.expanded
    return 4 * mixer.num_heads * mixer.head_dim
