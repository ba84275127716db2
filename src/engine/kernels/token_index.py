"""The index of sparse attention: which tokens of its context each query attends to, and attention over these.

Source: DeepSeek-V3.2, arXiv:2512.02556, section 2.1. Plain torch on every device: the scores of all tokens of a context
are computed, in parts that need little memory.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .latent_attention import parts_of, rows_of, weights_of
from .paged_attention import AttentionStep
from .rope_and_store import rotated

# The arguments of store_index_keys.
StoreIndexKeys = Callable[[torch.Tensor, torch.Tensor, bool, torch.Tensor, torch.Tensor, torch.Tensor], None]


# The arguments of choose_tokens_reference.
ChooseTokens = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, bool, torch.Tensor, torch.Tensor, AttentionStep, int], torch.Tensor
]


# The arguments of sparse_latent_attention_reference.
SparseLatentAttention = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, AttentionStep, float, int, torch.Tensor | None], torch.Tensor
]


def store_index_keys(
    keys: torch.Tensor,
    cos_sin: torch.Tensor,
    is_interleaved: bool,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    cache: torch.Tensor,
) -> None:
    """Rotates the first R elements of the keys, and writes them to the last elements of their tokens.

    Args:
        keys: [T, D], normed.
        cos_sin, is_interleaved, positions, slot_mapping: as store_latents takes them. A token in slot -1 is not stored.
        cache: [num_blocks, 1, block_size, more than D].
    """
    stored = rotated(keys[:, None].float(), cos_sin[positions].unsqueeze(1), is_interleaved)[:, 0].to(cache.dtype)
    tokens = cache.view(-1, cache.shape[3])
    is_stored = slot_mapping >= 0
    tokens[slot_mapping[is_stored], -keys.shape[1] :] = stored[is_stored]


def choose_tokens_reference(
    queries: torch.Tensor,
    weights: torch.Tensor,
    cos_sin: torch.Tensor,
    is_interleaved: bool,
    positions: torch.Tensor,
    cache: torch.Tensor,
    step: AttentionStep,
    count: int,
) -> torch.Tensor:
    """The tokens with the highest scores: the sum over the heads of the index of weight * relu(query * key).

    Args:
        queries: [T, H, D], of which the first R elements are still to be rotated.
        weights: [T, H].
        cos_sin, is_interleaved, positions: as store_latents takes them.
        cache: with the keys of store_index_keys.
        step: rows, context lengths and block tables.
        count: tokens that a query attends to at most.
    Returns:
        [T, count] int64, positions in the row's context; -1 where a query sees fewer tokens.
    """
    num_heads, width = queries.shape[1:]
    chosen = torch.full((len(queries), count), -1, dtype=torch.int64, device=queries.device)
    turned = rotated(queries.float(), cos_sin[positions].unsqueeze(1), is_interleaved)
    for start, end, context_len, slots in rows_of(step, cache):
        keys = cache.view(-1, cache.shape[3])[slots, -width:].float()
        for first, stop in parts_of(start, end, num_heads * context_len):
            scores = torch.relu(torch.einsum("qhd,kd->qhk", turned[first:stop], keys))
            scores = torch.einsum("qh,qhk->qk", weights[first:stop].float(), scores)
            last = torch.arange(context_len - end + first, context_len - end + stop, device=queries.device)
            is_seen = torch.arange(context_len, device=queries.device) <= last[:, None]
            best = scores.masked_fill_(~is_seen, -torch.inf).topk(min(count, context_len), dim=-1)
            chosen[first:stop, : best.indices.shape[1]] = best.indices.masked_fill(best.values == -torch.inf, -1)
    return chosen


def sparse_latent_attention_reference(
    q: torch.Tensor,
    chosen: torch.Tensor,
    cache: torch.Tensor,
    step: AttentionStep,
    scale: float,
    rank: int,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Computes latent_attention of each query over the tokens that were chosen for it.

    chosen: [T, K], positions in the row's context, -1 for none; at least one of each query is not.
    """
    num_tokens, num_heads, width = q.shape
    out = q.new_empty(num_tokens, num_heads, rank)
    tokens = cache.view(-1, cache.shape[3])
    for start, end, _, slots in rows_of(step, cache):
        for first, stop in parts_of(start, end, chosen.shape[1] * max(width, num_heads)):
            places = chosen[first:stop]
            keys = tokens[slots[places.clamp(min=0)], :width].float()  # [queries, K, width]
            scores = torch.einsum("qhw,qkw->qhk", q[first:stop].float(), keys) * scale
            weights = weights_of(scores.masked_fill_((places < 0)[:, None], -torch.inf), sinks)
            out[first:stop] = torch.einsum("qhk,qkr->qhr", weights, keys[..., :rank]).to(q.dtype)
    return out
