"""The index of attention to chosen blocks of tokens (QSA of Qwen4), and attention over the tokens that it has chosen.

The index is plain torch on every device, as token_index.py: the scores of all blocks of a context are computed, in
parts that need little memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .cpu.library import FLOAT, INT64, POINTER, CpuLibrary, pointer
from .latent_attention import parts_of, rows_of
from .paged_attention import AttentionStep
from .rope_and_store import rotated


@dataclass(frozen=True, slots=True)
class BlockKeys:
    """How the keys of blocks follow from those of their tokens."""

    norm: torch.Tensor  # [D] in float32, of the mean of the tokens' keys
    eps: float
    cos_sin: torch.Tensor  # as rope_and_store takes it; a block has the position of its first token
    block: int  # tokens


StoreBlockKeys = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]  # the arguments of store_block_keys
# The arguments of choose_blocks_reference.
ChooseBlocks = Callable[[torch.Tensor, BlockKeys, torch.Tensor, torch.Tensor, AttentionStep, int], torch.Tensor]
# The arguments of sparse_attention_reference.
SparseAttention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, AttentionStep, float], torch.Tensor]


def store_block_keys(keys: torch.Tensor, slot_mapping: torch.Tensor, cache: torch.Tensor) -> None:
    """Writes the key of each token to the first elements of each of its heads in the cache.

    Args:
        keys: [T, D], neither normed nor rotated: this is done with the means of blocks.
        slot_mapping: as rope_and_store takes it.
        cache: [num_blocks, heads, block_size, at least D].
    """
    is_stored = slot_mapping >= 0
    slots, block_size = slot_mapping[is_stored], cache.shape[2]
    places = torch.div(slots, block_size, rounding_mode="floor"), slots % block_size
    cache[places[0], :, places[1], : keys.shape[1]] = keys[is_stored][:, None].to(cache.dtype)


def choose_blocks_reference(
    queries: torch.Tensor,
    keys: BlockKeys,
    positions: torch.Tensor,
    cache: torch.Tensor,
    step: AttentionStep,
    count: int,
) -> torch.Tensor:
    """The tokens of the blocks with the highest scores, and those after the last whole block that the query sees.

    The score of a block is the sum over the heads of the index of relu(query * key).

    Args:
        queries: [T, H, D], normed, of which the first elements are still to be rotated.
        keys: of the blocks.
        positions: [T] int64.
        cache: with the keys of store_block_keys.
        step: rows, context lengths and block tables.
        count: blocks that are chosen at most.
    Returns:
        [T, count * block + block - 1] int64, positions in the row's context; -1 where a query sees fewer tokens.
    """
    width, size = queries.shape[2], keys.block
    chosen = torch.full((len(queries), count * size + size - 1), -1, dtype=torch.int64, device=queries.device)
    turned = rotated(queries.float(), keys.cos_sin[positions].unsqueeze(1), False).to(queries.dtype).float()
    of_block = torch.arange(size, device=queries.device)
    for start, end, context_len, slots in rows_of(step, cache):
        block_keys = _keys_of_blocks(keys, cache, slots, width, queries.dtype)
        seen = torch.arange(context_len - end + start + 1, context_len + 1, device=queries.device)  # tokens, by query
        whole = torch.div(seen, size, rounding_mode="floor")
        tail = whole[:, None] * size + of_block[:-1]
        chosen[start:end, count * size :] = tail.masked_fill(tail >= seen[:, None], -1)
        blocks = torch.arange(len(block_keys), device=queries.device)
        for first, stop in parts_of(start, end, queries.shape[1] * max(1, len(blocks))):
            scores = torch.relu(torch.einsum("qhd,kd->qhk", turned[first:stop], block_keys)).sum(1)
            scores.masked_fill_(blocks >= whole[first - start : stop - start, None], -torch.inf)
            best = scores.topk(min(count, len(blocks)), dim=-1)
            tokens = best.indices[:, :, None] * size + of_block
            tokens = tokens.masked_fill((best.values == -torch.inf)[:, :, None], -1).flatten(1)
            chosen[first:stop, : tokens.shape[1]] = tokens
    return chosen


def _keys_of_blocks(
    keys: BlockKeys, cache: torch.Tensor, slots: torch.Tensor, width: int, dtype: torch.dtype
) -> torch.Tensor:
    """[whole blocks, D] in float32: the normed means of the keys of a context's tokens, rotated. Rounded as the model's
    own operations do."""
    block_size, count = cache.shape[2], len(slots) // keys.block
    slots = slots[: count * keys.block]
    own = cache[torch.div(slots, block_size, rounding_mode="floor"), 0, slots % block_size, :width]
    means = own.float().view(count, keys.block, width).mean(1).to(dtype).float()
    normed = means * torch.rsqrt(means.pow(2).mean(-1, keepdim=True) + keys.eps) * keys.norm
    firsts = torch.arange(count, device=slots.device) * keys.block
    return rotated(normed.to(dtype).float(), keys.cos_sin[firsts], False).to(dtype).float()


def sparse_attention_reference(
    q: torch.Tensor,
    chosen: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    step: AttentionStep,
    scale: float,
) -> torch.Tensor:
    """Computes paged_attention of each query over the tokens that were chosen for it.

    chosen: [T, K], positions in the row's context, -1 for none; at least one of each query is not.
    """
    check_sparse(q, chosen, k_cache)
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads, block_size = k_cache.shape[1], k_cache.shape[2]
    out = q.new_empty(num_tokens, num_heads * head_dim)
    for start, end, _, slots in rows_of(step, k_cache):
        for first, stop in parts_of(start, end, chosen.shape[1] * max(num_kv_heads * head_dim, num_heads)):
            places = chosen[first:stop]
            own = slots[places.clamp(min=0)]
            at = torch.div(own, block_size, rounding_mode="floor"), own % block_size
            keys, values = (cache[at[0], :, at[1]].float() for cache in (k_cache, v_cache))  # [queries, K, heads, D]
            queries = q[first:stop].float().view(stop - first, num_kv_heads, -1, head_dim)
            scores = torch.einsum("qngd,qknd->qngk", queries, keys) * scale
            weights = scores.masked_fill_((places < 0)[:, None, None], -torch.inf).softmax(-1)
            out[first:stop] = torch.einsum("qngk,qknd->qngd", weights, values).flatten(1).to(q.dtype)
    return out


def check_sparse(q: torch.Tensor, chosen: torch.Tensor, k_cache: torch.Tensor) -> None:
    """Raises ValueError if the sizes do not fit together."""
    if len(chosen) != len(q) or q.shape[1] % k_cache.shape[1] or q.shape[2] != k_cache.shape[3]:
        raise ValueError(f"queries are {tuple(q.shape)}, chosen {tuple(chosen.shape)}, cache {tuple(k_cache.shape)}")


def sparse_attention_cpu(library: CpuLibrary, dtype: torch.dtype) -> SparseAttention:
    """The op for a cache in the dtype of the queries."""
    empty = library.memory.empty
    call = library.op("sparse_attention", dtype, [*[POINTER] * 7, *[INT64] * 7, FLOAT])

    def sparse_attention(
        q: torch.Tensor,
        chosen: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        step: AttentionStep,
        scale: float,
    ) -> torch.Tensor:
        check_sparse(q, chosen, k_cache)
        num_tokens, num_heads, head_dim = q.shape
        _, num_kv_heads, block_size, _ = k_cache.shape
        num_rows, table_stride = step.block_tables.shape
        out = empty(num_tokens, num_heads * head_dim, dtype=dtype)
        call(
            pointer(q, dtype),
            pointer(k_cache, dtype),
            pointer(v_cache, dtype),
            out.data_ptr(),
            pointer(chosen, torch.int64),
            pointer(step.query_start, torch.int32),
            pointer(step.block_tables, torch.int32),
            *(chosen.shape[1], num_rows, table_stride, num_heads, num_kv_heads, head_dim, block_size),
            scale,
        )
        return out

    return sparse_attention
