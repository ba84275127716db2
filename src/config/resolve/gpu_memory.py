"""What a GPU needs beside weights and KV cache: worked out from shapes before anything is loaded."""

from __future__ import annotations

from .resolved import DTYPE_BYTES, ModelFacts

CONTEXT_BYTES = 512 << 20  # CUDA's context, libraries' workspaces, and what captured graphs hold
SAMPLING_BYTES = 6  # per sequence and entry of the vocabulary: a float32 bias and a count of 16 bits


def activation_bytes(facts: ModelFacts, dtype: str, max_num_seqs: int, max_num_batched_tokens: int) -> int:
    """Bytes set aside for the fullest step.

    The sum of
      - tokens x (3 hidden + 2 (query heads + key-value heads) x head_dim + 3 intermediate) x bytes of `dtype`: the
        residual, the layer's input and its norm; queries, keys, values and what attention gives; gate, up and their
        product. All live at once only on paper, which leaves room for what kernels keep for themselves.
      - max_num_seqs x vocabulary x 4: logits in float32.
      - max_num_seqs x vocabulary x 6: the sampler's tables.
      - 512 MiB: CUDA's context, libraries' workspaces and captured graphs.
    """
    heads = 2 * (facts.num_heads + facts.num_kv_heads) * facts.head_dim
    per_token = 3 * facts.hidden_size + heads + 3 * facts.intermediate_size
    tokens = max_num_batched_tokens * per_token * DTYPE_BYTES[dtype]
    return tokens + max_num_seqs * facts.vocab_size * (4 + SAMPLING_BYTES) + CONTEXT_BYTES
