"""Causal attention of a step's queries over the paged KV cache: decode rows and prefill chunks in one call."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from .attention_variant import PLAIN, AttentionVariant
from .cpu.library import FLOAT, INT, INT64, POINTER, CpuLibrary, pointer
from .kv_codes import blocks_in


@dataclass(frozen=True, slots=True)
class SlotsOfRanks:
    """What each rank writes, where ranks compute different tokens of a step (runner/shared_step.py)."""

    slots: torch.Tensor  # [ranks, W] int64, -1 after the last one of a rank
    fetched: set[int] = field(default_factory=set)  # addresses of caches that have what the other ranks have written


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
    def visible(self) -> torch.Tensor | None: ...  # [T] int32, tokens of the cache that each query sees: of AttendPart
    @property
    def by_rank(self) -> SlotsOfRanks | None: ...
    @property
    def plans(self) -> dict[Hashable, Any]: ...  # what kernels have computed from the step, for the following layers


class PagedAttention(Protocol):
    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        step: AttentionStep,
        scale: float,
        variant: AttentionVariant = PLAIN,
        /,
    ) -> torch.Tensor: ...


class AttendPart(Protocol):
    """Computes PagedAttention over the tokens that a rank keeps, which may be none: without windows, slopes or sinks.

    The lengths of the step are of these tokens, which are in their order. A query sees the first `visible` of them, or
    all of its row if that is None. One that sees none gets zeros.

    Returns also [T, num_heads] float32, the logarithms of the sums of exponentials of the scores, with which results
    over other tokens can be added (kernels/exchange.py: merge_parts).
    """

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        step: AttentionStep,
        scale: float,
        variant: AttentionVariant = PLAIN,
        /,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


def paged_attention_reference(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    step: AttentionStep,
    scale: float,
    variant: AttentionVariant = PLAIN,
) -> torch.Tensor:
    """Each query attends to the keys of its row up to its own position.

    Args:
        q: [T, num_heads, D]. A row's queries are the last of its context: their keys and values are in the cache.
        k_cache, v_cache: [num_blocks, num_kv_heads, block_size, D], or the int8 cache of kv_codes.py. Query heads
            share kv heads in order: with a group of g = num_heads / num_kv_heads, head h reads kv head h // g.
        step: rows, context lengths and block tables.
        scale: multiplies the scores, usually D ** -0.5.
        variant: what differs between models.
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
        first_block = variant.first_visible(first_position) // block_size
        blocks = step.block_tables[row, first_block : -(-context_len // block_size)]
        base = first_block * block_size
        keys, values = (
            blocks_in(cache, blocks, q.dtype)
            .transpose(0, 1)
            .reshape(num_kv_heads, -1, head_dim)[None, :, : context_len - base]
            for cache in (k_cache, v_cache)
        )
        key_positions = torch.arange(base, context_len, device=q.device)
        query_positions = torch.arange(first_position, context_len, device=q.device)[:, None]
        visible = key_positions <= query_positions
        if variant.window is not None:
            edge = (
                query_positions // variant.window * variant.window
                if variant.is_chunked
                else (query_positions - variant.window + 1)
            )
            visible &= key_positions >= edge
        queries = q[start:end].transpose(0, 1)[None]
        if variant.softcap is None and variant.sinks is None and variant.slopes is None:
            attended = F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=visible, scale=scale * variant.k_scale, enable_gqa=True
            )
        else:
            distances = key_positions - query_positions
            attended = _attention(queries, keys, values, visible, distances, scale * variant.k_scale, variant)
        out[start:end] = attended[0].transpose(0, 1).reshape(end - start, -1) * variant.v_scale
    return out


def attend_part_reference(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    step: AttentionStep,
    scale: float,
    variant: AttentionVariant = PLAIN,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See AttendPart."""
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads, block_size = k_cache.shape[1], k_cache.shape[2]
    out = torch.zeros(num_tokens, num_heads, head_dim, dtype=q.dtype, device=q.device)
    log_totals = torch.full((num_tokens, num_heads), -torch.inf, device=q.device)
    starts, lengths = step.query_start.tolist(), step.context_lens.tolist()
    for row, context_len in enumerate(lengths):
        own = slice(starts[row], starts[row + 1])
        if own.start == own.stop or context_len == 0:
            continue
        keys, values = (
            blocks_in(cache, step.block_tables[row, : -(-context_len // block_size)], q.dtype)
            .transpose(0, 1)
            .reshape(num_kv_heads, -1, head_dim)[:, :context_len]
            .float()
            .repeat_interleave(num_heads // num_kv_heads, 0)
            for cache in (k_cache, v_cache)
        )
        scores = torch.einsum("thd,hcd->thc", q[own].float(), keys) * (scale * variant.k_scale)
        if variant.softcap is not None:
            scores = variant.softcap * torch.tanh(scores / variant.softcap)
        weights, log_totals[own] = weights_of_visible(scores, step.visible, own)
        out[own] = (torch.einsum("thc,hcd->thd", weights, values) * variant.v_scale).to(q.dtype)
    return out.flatten(1), log_totals


def weights_of_visible(
    scores: torch.Tensor, visible: torch.Tensor | None, own: slice
) -> tuple[torch.Tensor, torch.Tensor]:
    """scores: [N, H, C] of the queries `own`. Returns their softmax, zeros where nothing is visible, and its
    logarithms of totals."""
    if visible is not None:
        hidden = torch.arange(scores.shape[-1], device=scores.device) >= visible[own, None]
        scores = scores.masked_fill(hidden[:, None], -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0), scores.logsumexp(-1)


def _attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    visible: torch.Tensor,
    distances: torch.Tensor,
    scale: float,
    variant: AttentionVariant,
) -> torch.Tensor:
    """scaled_dot_product_attention with grouped heads, a cap of the scores, slopes and sinks; arithmetic in float32."""
    group = queries.shape[1] // keys.shape[1]
    keys, values = (each.float().repeat_interleave(group, 1) for each in (keys, values))
    scores = queries.float() @ keys.transpose(-1, -2) * scale
    if variant.softcap is not None:
        scores = variant.softcap * torch.tanh(scores / variant.softcap)
    if variant.slopes is not None:
        scores = scores + variant.slopes[:, None, None] * distances
    scores = scores.masked_fill(~visible, -torch.inf)
    if variant.sinks is not None:
        sinks = variant.sinks.view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    return (weights @ values).to(queries.dtype)


def paged_attention_cpu(
    library: CpuLibrary, dtype: torch.dtype, kv_dtype: torch.dtype
) -> tuple[PagedAttention, AttendPart]:
    """Return the ops for heads whose width is a multiple of 16, at most config.cpu_kernels.MAX_HEAD_DIM.

    kv_dtype: of the cache: `dtype`, or int8.
    """
    empty = library.memory.empty
    name = "paged_attention_int8" if kv_dtype == torch.int8 else "paged_attention"
    call = library.op(name, dtype, [POINTER] * 11 + [INT, INT64] + [INT] * 4 + [INT64, INT, FLOAT, FLOAT])
    no_window = 2**62

    def attend(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        step: AttentionStep,
        scale: float,
        variant: AttentionVariant,
        visible: torch.Tensor | None,
        log_totals: torch.Tensor | None,
    ) -> torch.Tensor:
        num_tokens, num_heads, head_dim = q.shape
        assert variant.k_scale == variant.v_scale == 1, "the C++ kernels read no fp8 cache"
        sinks, slopes = variant.sinks, variant.slopes
        for name, values in (("sinks", sinks), ("slopes", slopes)):
            if values is not None and values.shape != (num_heads,):
                raise ValueError(f"{name} are {tuple(values.shape)} for {num_heads} heads")
        _, num_kv_heads, block_size, _ = k_cache.shape
        block_tables = step.block_tables
        out = empty(num_tokens, num_heads * head_dim, dtype=dtype)
        call(
            pointer(q, dtype),
            pointer(k_cache, kv_dtype),
            pointer(v_cache, kv_dtype),
            pointer(step.query_start, torch.int32),
            pointer(step.context_lens, torch.int32),
            pointer(block_tables, torch.int32),
            None if sinks is None else pointer(sinks, torch.float32),
            None if slopes is None else pointer(slopes, torch.float32),
            None if visible is None else pointer(visible, torch.int32),
            out.data_ptr(),
            None if log_totals is None else log_totals.data_ptr(),
            block_tables.shape[0],
            block_tables.shape[1],
            num_heads,
            num_kv_heads,
            head_dim,
            block_size,
            variant.window or no_window,
            variant.is_chunked,
            scale,
            variant.softcap or 0.0,
        )
        return out

    def paged_attention(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        step: AttentionStep,
        scale: float,
        variant: AttentionVariant = PLAIN,
    ) -> torch.Tensor:
        return attend(q, k_cache, v_cache, step, scale, variant, None, None)

    def attend_part(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        step: AttentionStep,
        scale: float,
        variant: AttentionVariant = PLAIN,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        log_totals = empty(*q.shape[:2], dtype=torch.float32)
        return attend(q, k_cache, v_cache, step, scale, variant, step.visible, log_totals), log_totals

    return paged_attention, attend_part
