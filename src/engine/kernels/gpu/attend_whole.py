"""Attention of whole sequences, before and after each query, without a cache.

A program takes consecutive tokens of the batch, whatever their sequences are, with all heads that share a kv head, and
the keys from the first to the last that one of them sees: short sequences share a tile, and the keys of others are
masked. So no plan says which program has which sequence.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..attend_whole import attend_whole_by_length, check_heads
from .attention_tile import LOG2_E, fold, multipliable, score, tile_of, width_of
from .launch import dependent, is_interpreted, wait

_ROWS = 128  # queries times heads of a group, in one product
_WIDEST = 128  # elements of a head: the sums of wider ones take more registers than a thread has


@triton.jit(do_not_specialize=["window", "span", "num_tokens", "num_rows"])
def _attend_whole(
    q, k, v, query_start, out, slopes, biases, scale, window, span, num_tokens, num_rows, q_stride, k_stride, v_stride,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
    ROWS: tl.constexpr, TOKENS: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SLOPES: tl.constexpr,
    HAS_BIASES: tl.constexpr, UPCAST: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    kv_head = tl.program_id(1)
    lanes = tl.arange(0, ROWS)
    dims = tl.arange(0, WIDTH)
    tokens = tl.program_id(0) * TOKENS + lanes // GROUP
    heads = kv_head * GROUP + lanes % GROUP
    is_query = (lanes < TOKENS * GROUP) & (tokens < num_tokens)
    row = tl.zeros([ROWS], tl.int32)  # of each query: the last one that begins at or before it
    after = tl.zeros([ROWS], tl.int32) + num_rows
    left = num_rows
    while left > 1:
        middle = (row + after) // 2
        is_begun = tl.load(query_start + middle) <= tokens
        row = tl.where(is_begun, middle, row)
        after = tl.where(is_begun, after, middle)
        left = (left + 1) // 2
    begin = tl.load(query_start + row, mask=is_query, other=0)
    end = tl.load(query_start + row + 1, mask=is_query, other=0)
    if HAS_WINDOW:
        begin = tl.maximum(begin, tokens - window)
        end = tl.minimum(end, tokens + window + 1)
    first = tl.min(tl.where(is_query, begin, num_tokens), 0)
    last = tl.max(tl.where(is_query, end, 0), 0)
    is_kept = is_query[:, None] & (dims < HEAD_DIM)[None, :]
    places = tokens.to(tl.int64)[:, None] * q_stride + (heads * HEAD_DIM)[:, None] + dims[None, :]
    queries = multipliable(tl.load(q + places, mask=is_kept, other=0.0), k, UPCAST)
    head_slopes = tl.zeros([ROWS], tl.float32)
    if HAS_SLOPES:
        head_slopes = tl.load(slopes + heads)
    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, WIDTH], tl.float32)
    for tile in range(first // TILE, tl.cdiv(last, TILE)):
        positions = tile * TILE + tl.arange(0, TILE)
        mask = (positions < num_tokens)[:, None] & (dims < HEAD_DIM)[None, :]
        columns = kv_head * HEAD_DIM + dims[None, :]
        keys = tl.load(k + positions.to(tl.int64)[:, None] * k_stride + columns, mask=mask, other=0.0)
        values = tl.load(v + positions.to(tl.int64)[:, None] * v_stride + columns, mask=mask, other=0.0)
        offsets = positions[None, :] - tokens[:, None]
        distances = -tl.abs(offsets).to(tl.float32)
        keys, values = keys.to(queries.dtype), values.to(queries.dtype)
        scores = score(queries, keys, scale, 0.0, head_slopes, distances, False, HAS_SLOPES)
        if HAS_BIASES:
            chosen = tl.minimum(tl.maximum(offsets, -span), span) + span
            of_keys = tl.load(biases + heads[:, None] * (2 * span + 1) + chosen, mask=is_query[:, None], other=0.0)
            scores += of_keys * LOG2_E
        is_seen = (positions[None, :] >= begin[:, None]) & (positions[None, :] < end[:, None])
        scores = tl.where(is_seen, scores, float("-inf"))
        most, total, sums = fold(scores, values, most, total, sums)
    attended = sums / tl.where(total == 0, 1.0, total)[:, None]  # padding lanes have seen no key
    written = (tokens.to(tl.int64) * NUM_KV_HEADS * GROUP + heads)[:, None] * HEAD_DIM + dims[None, :]
    tl.store(out + written, attended.to(out.dtype.element_ty), mask=is_kept)


def attend_whole_gpu(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    query_start: torch.Tensor,
    scale: float,
    window: int | None = None,
    slopes: torch.Tensor | None = None,
    biases: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute attend_whole by the kernel, and heads of more than 128 elements by torch."""
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    group, width = num_heads // num_kv_heads, width_of(head_dim)
    check_heads(q, k, v)
    if width > _WIDEST or group > _ROWS:
        return attend_whole_by_length(q, k, v, query_start, scale, window, slopes, biases)
    tokens = _ROWS // group
    out = torch.empty(num_tokens, num_heads * head_dim, dtype=q.dtype, device=q.device)
    if num_tokens:
        _attend_whole[(triton.cdiv(num_tokens, tokens), num_kv_heads)](
            q, k, v, query_start, out, slopes, biases, scale, window or 0,
            0 if biases is None else biases.shape[1] // 2, num_tokens, len(query_start) - 1,
            q.stride(0), k.stride(0), v.stride(0),
            NUM_KV_HEADS=num_kv_heads, GROUP=group, HEAD_DIM=head_dim, WIDTH=width,
            TILE=tile_of(head_dim, q.element_size()), ROWS=_ROWS, TOKENS=tokens, HAS_WINDOW=window is not None,
            HAS_SLOPES=slopes is not None, HAS_BIASES=biases is not None, UPCAST=is_interpreted(),
            num_warps=4 if width <= 64 else 8, num_stages=2, **dependent(),
        )  # fmt: skip
    return out
