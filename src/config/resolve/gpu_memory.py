"""GPU memory besides weights and KV cache, computed from the model's shape before anything is loaded."""

from __future__ import annotations

from .resolved import DTYPE_BYTES, ModelSpec

CONTEXT_BYTES = 512 << 20  # CUDA's context, libraries' workspaces, and what captured graphs hold
SAMPLING_BYTES = 6  # per sequence and vocabulary entry: a float32 bias and a 16-bit count


def activation_bytes(model_spec: ModelSpec, dtype: str, max_num_seqs: int, max_num_batched_tokens: int) -> int:
    """Bytes reserved for the largest step.

    The sum of
      - tokens x (3 hidden + 2 (query heads + key-value heads) x head_dim + 3 intermediate) x bytes of `dtype`: the
        residual, the layer's input and its norm; queries, keys, values and the output of attention; gate, up and
        their product. They are never all live at the same time: the difference is room for the kernels' workspaces.
      - max_num_seqs x vocabulary x 4: logits in float32.
      - max_num_seqs x vocabulary x 6: the sampler's tables.
      - 512 MiB: CUDA's context, libraries' workspaces and captured graphs.
    """
    heads = 2 * (model_spec.num_heads + model_spec.num_kv_heads) * model_spec.head_dim
    per_token = 3 * model_spec.hidden_size + heads + 3 * model_spec.intermediate_size
    tokens = max_num_batched_tokens * per_token * DTYPE_BYTES[dtype]
    return tokens + max_num_seqs * model_spec.vocab_size * (4 + SAMPLING_BYTES) + CONTEXT_BYTES
