"""GPU memory besides weights and KV cache, computed from the model's description before anything is loaded."""

from __future__ import annotations

from ...model.sizes import DTYPE_BYTES, activation_elements
from ...model.spec import ModelSpec

CONTEXT_BYTES = 512 << 20  # CUDA's context and libraries' workspaces
LINK_BYTES = 400 << 20  # of NCCL, which connects the GPUs that have parts of the same layers
GRAPHS_BYTES = 256 << 20  # of captured graphs: their launches, and memory that kernels keep between launches
SCORES_BYTES = 64 << 20  # of an index over compressed vectors, for some of a step's tokens at a time
SAMPLING_BYTES = 6  # per sequence and vocabulary entry: a float32 bias and a 16-bit count
STAGING_PLACES = 4  # for stored blocks on their way, in each direction
STAGING_PLACE_BYTES = 1 << 24


def staged_blocks(block_bytes: int) -> int:
    """Number of blocks in one staging place. block_bytes: of a block in all layers."""
    return max(1, STAGING_PLACE_BYTES // block_bytes)


def staging_bytes(block_bytes: int) -> int:
    """Bytes on a GPU for KV blocks that are copied to a store, or from it."""
    return 2 * STAGING_PLACES * staged_blocks(block_bytes) * block_bytes if block_bytes else 0


def step_bytes(
    spec: ModelSpec, dtype: str, max_num_seqs: int, max_num_batched_tokens: int, *, num_devices: int = 1
) -> int:
    """Bytes of the largest step: the layers' tensors for all its tokens, the scores of an index over compressed
    vectors, float32 logits and the sampler's tables."""
    whole, shared = activation_elements(spec)
    tokens = max_num_batched_tokens * (whole + shared // num_devices) * DTYPE_BYTES[dtype]
    tokens += SCORES_BYTES * spec.chooses_vectors
    return tokens + max_num_seqs * spec.vocab_size * (4 + SAMPLING_BYTES)


def context_bytes(num_devices: int) -> int:
    """Bytes of the libraries' own, on each of `num_devices` that compute the layers together."""
    return CONTEXT_BYTES + (num_devices > 1) * LINK_BYTES
