"""Attention of each query over the tokens that were chosen for it: a program for each query and head."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..block_index import check_sparse
from ..paged_attention import AttentionStep
from .launch import dependent, wait
from .token_rows import rows_of_tokens

_TOKENS = 32  # keys of one iteration


@triton.jit(do_not_specialize=["num_rows", "first_width"])
def _sparse_attention(
    q, chosen, k_cache, v_cache, out, query_start, block_tables, num_rows, first_width, num_chosen, table_stride, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows = rows_of_tokens(query_start, tl.program_id(0) + tl.zeros([1], tl.int32), num_rows, first_width)
    is_row = rows < num_rows  # [1], as the row is
    lanes = tl.arange(0, WIDTH)
    is_lane = lanes < DIM
    query = tl.load(q + (token * HEADS + head) * DIM + lanes, mask=is_lane, other=0.0).to(tl.float32) * scale
    table = block_tables + rows.to(tl.int64) * table_stride
    most, total = -float("inf"), 0.0
    sums = tl.zeros([WIDTH], tl.float32)
    for begin in range(0, num_chosen, TOKENS):
        places = begin + tl.arange(0, TOKENS)
        tokens = tl.load(chosen + token * num_chosen + places, mask=(places < num_chosen) & is_row, other=-1)
        is_seen = tokens >= 0
        tokens = tl.where(is_seen, tokens, 0)
        block = tl.load(table + tokens // BLOCK_SIZE, mask=is_seen, other=0).to(tl.int64)
        slots = (block * (HEADS // GROUP) + head // GROUP) * BLOCK_SIZE + tokens % BLOCK_SIZE
        at = slots[:, None] * DIM + lanes[None, :]
        is_there = is_seen[:, None] & is_lane[None, :]
        keys = tl.load(k_cache + at, mask=is_there, other=0.0).to(tl.float32)
        scores = tl.where(is_seen, tl.sum(keys * query[None, :], 1), -float("inf"))
        newest = tl.maximum(most, tl.max(scores, 0))
        base = tl.where(newest == -float("inf"), 0.0, newest)  # nothing is seen yet
        weights = tl.exp(scores - base)
        kept = tl.exp(most - base)
        values = tl.load(v_cache + at, mask=is_there, other=0.0).to(tl.float32)
        sums = sums * kept + tl.sum(values * weights[:, None], 0)
        total = total * kept + tl.sum(weights, 0)
        most = newest
    attended = sums / tl.where(total > 0, total, 1.0)  # a query after the last row's sees nothing
    tl.store(out + (token * HEADS + head) * DIM + lanes, attended.to(out.dtype.element_ty), mask=is_lane)


def sparse_attention_gpu(
    q: torch.Tensor,
    chosen: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    step: AttentionStep,
    scale: float,
) -> torch.Tensor:
    """Computes sparse_attention_reference. The results of queries after the last row's are zeros."""
    check_sparse(q, chosen, k_cache)
    num_tokens, num_heads, head_dim = q.shape
    num_rows = len(step.context_lens)
    out = torch.empty(num_tokens, num_heads * head_dim, dtype=q.dtype, device=q.device)
    if num_tokens and num_rows:
        _sparse_attention[(num_tokens, num_heads)](
            q, chosen, k_cache, v_cache, out, step.query_start, step.block_tables, num_rows,
            triton.next_power_of_2(num_rows), chosen.shape[1], step.block_tables.stride(0), scale,
            HEADS=num_heads, GROUP=num_heads // k_cache.shape[1], DIM=head_dim,
            WIDTH=triton.next_power_of_2(head_dim), BLOCK_SIZE=k_cache.shape[2], TOKENS=_TOKENS, num_warps=4,
            **dependent(),
        )  # fmt: skip
    return out
