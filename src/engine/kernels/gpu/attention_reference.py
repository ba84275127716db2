"""The reference of all variants of attention, in float64."""

from __future__ import annotations

import torch

from ..attention_variant import PLAIN, AttentionVariant
from ..paged_attention import AttentionStep


def attention_reference(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    step: AttentionStep,
    scale: float,
    variant: AttentionVariant = PLAIN,
) -> torch.Tensor:
    """As paged_attention_reference, with every variant. Returns [T, num_heads * D] float64."""
    num_tokens, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = k_cache.shape
    group = num_heads // num_kv_heads
    out = torch.zeros(num_tokens, num_heads, head_dim, dtype=torch.float64, device=q.device)
    starts = step.query_start.tolist()
    for row, length in enumerate(step.context_lens.tolist()):
        start, end = starts[row], starts[row + 1]
        if start == end:
            continue
        blocks = step.block_tables[row, : -(-length // block_size)].long()
        keys, values = (
            cache[blocks].double().transpose(1, 2).flatten(0, 1)[:length].repeat_interleave(group, 1) * factor
            for cache, factor in ((k_cache, variant.k_scale), (v_cache, variant.v_scale))
        )
        scores = torch.einsum("qhd,khd->hqk", q[start:end].double(), keys) * scale
        if variant.softcap is not None:
            scores = variant.softcap * torch.tanh(scores / variant.softcap)
        key_positions = torch.arange(length, device=q.device)
        positions = torch.arange(length - (end - start), length, device=q.device)[:, None]
        distance = key_positions - positions
        if variant.slopes is not None:
            scores = scores + variant.slopes.double()[:, None, None] * distance
        is_hidden = distance > 0
        if variant.window is not None and variant.is_chunked:
            is_hidden |= key_positions // variant.window != positions // variant.window
        elif variant.window is not None:
            is_hidden |= distance <= -variant.window
        scores = scores.masked_fill(is_hidden, -torch.inf)
        if variant.sinks is not None:
            sinks = variant.sinks.double()[:, None, None].expand(-1, end - start, 1)
            weights = torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        out[start:end] = torch.einsum("hqk,khd->qhd", weights, values)
    return out.flatten(1)
