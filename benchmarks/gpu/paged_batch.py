"""Creates paged KV caches and steps on them, with NaN in all positions that a kernel must not read."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Batch:
    """The operands of attention and its inputs from the step."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    query_start: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    max_query_len: int
    max_context_len: int
    plans: dict[Hashable, Any] = field(default_factory=dict)


def batch(
    rows: list[tuple[int, int]],
    *,
    device: torch.device,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    block_size: int = 16,
    dtype: torch.dtype = torch.float16,
    kv_dtype: torch.dtype | None = None,
) -> Batch:
    """rows: (queries, context length, queries included) of each. A row of (0, 0) is padding."""
    kv_dtype = kv_dtype or dtype
    counts, lengths = zip(*rows, strict=True)
    needed = [-(-length // block_size) for length in lengths]
    blocks = torch.randperm(sum(needed) + 3)
    unused = int(blocks[-1])  # a block of NaN
    table = torch.full((len(rows), max(*needed, 1) + 1), unused, dtype=torch.int32)
    caches = [torch.full((len(blocks), num_kv_heads, block_size, head_dim), torch.nan).to(kv_dtype) for _ in range(2)]
    taken = 0
    for row, (length, count) in enumerate(zip(lengths, needed, strict=True)):
        mine = blocks[taken : taken + count]
        taken += count
        table[row, :count] = mine.int()
        for cache in caches:
            values = torch.randn(count * block_size, num_kv_heads, head_dim)
            values[length:] = torch.nan
            cache[mine] = values.view(count, block_size, num_kv_heads, head_dim).transpose(1, 2).to(kv_dtype)
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    q = torch.randn(int(starts[-1]), num_heads, head_dim).to(dtype)
    return Batch(
        *(each.to(device) for each in (q, *caches, starts, torch.tensor(lengths).int(), table)),
        max_query_len=max(counts),
        max_context_len=max(lengths),
    )
