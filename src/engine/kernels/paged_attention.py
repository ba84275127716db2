"""Causal attention of a step's queries over the paged KV cache: decode rows and prefill chunks in one call."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from .cpu.library import FLOAT, INT, INT64, POINTER, CpuLibrary, pointer


class AttentionStep(Protocol):
    """The part of a step that attention reads (the whole is in layers/step_input.py): R rows, T query tokens."""

    @property
    def query_start(self) -> torch.Tensor: ...  # [R + 1] int32, row r owns queries query_start[r] to query_start[r + 1]
    @property
    def context_lens(self) -> torch.Tensor: ...  # [R] int32, tokens in the cache, the row's own queries included
    @property
    def block_tables(self) -> torch.Tensor: ...  # [R, at least the blocks in use] int32
    @property
    def max_query_len(self) -> int: ...
    @property
    def max_context_len(self) -> int: ...
    @property
    def plans(self) -> dict[Hashable, Any]: ...  # what kernels have computed from the step, for the following layers


PagedAttention = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, AttentionStep, float, int | None],
    torch.Tensor,
]


def paged_attention_reference(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    step: AttentionStep,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """Each query attends to the keys of its row up to its own position.

    Args:
        q: [T, num_heads, D]. A row's queries are the last of its context: their keys and values are in the cache.
        k_cache, v_cache: [num_blocks, num_kv_heads, block_size, D]. Query heads share kv heads in order: with a
            group of g = num_heads / num_kv_heads, head h reads kv head h // g.
        step: rows, context lengths and block tables.
        scale: multiplies the scores, usually D ** -0.5.
        window: number of tokens that a query sees, including its own; None for all.
    Returns:
        [T, num_heads * D] in q's dtype.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads, block_size = k_cache.shape[1], k_cache.shape[2]
    out = torch.empty(num_tokens, num_heads * head_dim, dtype=q.dtype, device=q.device)
    starts, lengths = step.query_start.tolist(), step.context_lens.tolist()
    for row, context_len in enumerate(lengths):
        start, end = starts[row], starts[row + 1]
        if start == end:
            continue
        first_position = context_len - (end - start)
        # Blocks before the first query's window are not gathered: a long context costs only what is visible.
        first_key = 0 if window is None else max(0, first_position - window + 1)
        first_block = first_key // block_size
        blocks = step.block_tables[row, first_block : -(-context_len // block_size)]
        base = first_block * block_size
        keys, values = (
            cache[blocks].to(q.dtype).transpose(0, 1).reshape(num_kv_heads, -1, head_dim)[None, :, : context_len - base]
            for cache in (k_cache, v_cache)
        )
        key_positions = torch.arange(base, context_len, device=q.device)
        query_positions = torch.arange(first_position, context_len, device=q.device)[:, None]
        visible = key_positions <= query_positions
        if window is not None:
            visible &= key_positions > query_positions - window
        attended = F.scaled_dot_product_attention(
            q[start:end].transpose(0, 1)[None], keys, values, attn_mask=visible, scale=scale, enable_gqa=True
        )
        out[start:end] = attended[0].transpose(0, 1).reshape(end - start, -1)
    return out


def paged_attention_cpu(library: CpuLibrary, dtype: torch.dtype) -> PagedAttention:
    """For heads whose width is a multiple of 16, at most config.cpu_kernels.MAX_HEAD_DIM."""
    empty = library.memory.empty
    call = library.op("paged_attention", dtype, [POINTER] * 7 + [INT, INT64] + [INT] * 4 + [INT64, FLOAT])
    no_window = 2**62

    def paged_attention(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        step: AttentionStep,
        scale: float,
        window: int | None,
    ) -> torch.Tensor:
        num_tokens, num_heads, head_dim = q.shape
        _, num_kv_heads, block_size, _ = k_cache.shape
        block_tables = step.block_tables
        out = empty(num_tokens, num_heads * head_dim, dtype=dtype)
        call(
            pointer(q, dtype),
            pointer(k_cache, dtype),
            pointer(v_cache, dtype),
            pointer(step.query_start, torch.int32),
            pointer(step.context_lens, torch.int32),
            pointer(block_tables, torch.int32),
            out.data_ptr(),
            block_tables.shape[0],
            block_tables.shape[1],
            num_heads,
            num_kv_heads,
            head_dim,
            block_size,
            no_window if window is None else window,
            scale,
        )
        return out

    return paged_attention
