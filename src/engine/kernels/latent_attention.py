"""Causal attention of a step's queries over latents in the paged cache: one vector is key and value of all heads."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

from .cpu.library import FLOAT, INT, INT64, POINTER, CpuLibrary, pointer
from .paged_attention import AttentionStep


class LatentAttention(Protocol):
    def __call__(
        self, q: torch.Tensor, cache: torch.Tensor, step: AttentionStep, scale: float, rank: int, /
    ) -> torch.Tensor: ...


def latent_attention_reference(
    q: torch.Tensor, cache: torch.Tensor, step: AttentionStep, scale: float, rank: int
) -> torch.Tensor:
    """Each query attends to the latents of its row up to its own position.

    Args:
        q: [T, H, rank + R], of absorb_queries. A row's queries are the last of its context.
        cache: [num_blocks, 1, block_size, at least rank + R]: the first rank + R elements of a token are its key for
            all heads, the first `rank` of them its value.
        step: rows, context lengths and block tables.
        scale: multiplies the scores.
    Returns:
        [T, H, rank] in q's dtype.

    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1.2.
    """
    num_tokens, num_heads, width = q.shape
    block_size = cache.shape[2]
    out = torch.empty(num_tokens, num_heads, rank, dtype=q.dtype, device=q.device)
    starts, lengths = step.query_start.tolist(), step.context_lens.tolist()
    for row, context_len in enumerate(lengths):
        start, end = starts[row], starts[row + 1]
        if start == end:
            continue
        blocks = step.block_tables[row, : -(-context_len // block_size)]
        keys = cache[blocks, 0, :, :width].to(q.dtype).flatten(0, 1)[None, None, :context_len]
        key_positions = torch.arange(context_len, device=q.device)
        visible = key_positions <= torch.arange(context_len - (end - start), context_len, device=q.device)[:, None]
        queries = q[start:end].transpose(0, 1)[None]
        attended = F.scaled_dot_product_attention(
            queries, keys, keys[..., :rank], attn_mask=visible, scale=scale, enable_gqa=True
        )
        out[start:end] = attended[0].transpose(0, 1)
    return out


def latent_attention_cpu(library: CpuLibrary, dtype: torch.dtype) -> LatentAttention:
    """The same results for a query in any batch and any chunk."""
    empty = library.memory.empty
    call = library.op("latent_attention", dtype, [POINTER] * 6 + [INT, INT64] + [INT] * 4 + [INT64, FLOAT])

    def latent_attention(
        q: torch.Tensor, cache: torch.Tensor, step: AttentionStep, scale: float, rank: int
    ) -> torch.Tensor:
        num_tokens, num_heads, width = q.shape
        _, _, block_size, token_stride = cache.shape
        if not rank <= width <= token_stride:
            raise ValueError(f"queries of {width} elements for a cache of {token_stride} with values of {rank}")
        block_tables = step.block_tables
        out = empty(num_tokens, num_heads, rank, dtype=dtype)
        call(
            pointer(q, dtype),
            pointer(cache, dtype),
            pointer(step.query_start, torch.int32),
            pointer(step.context_lens, torch.int32),
            pointer(block_tables, torch.int32),
            out.data_ptr(),
            block_tables.shape[0],
            block_tables.shape[1],
            num_heads,
            width,
            rank,
            block_size,
            token_stride,
            scale,
        )
        return out

    return latent_attention
