"""Causal attention of a step's queries over latents in the paged cache: one vector is key and value of all heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch

from .cpu.library import FLOAT, INT, INT64, POINTER, CpuLibrary, pointer
from .paged_attention import AttentionStep, weights_of_visible

_MAX_ELEMENTS = 1 << 24  # of an intermediate result


class LatentAttention(Protocol):
    def __call__(
        self,
        q: torch.Tensor,
        cache: torch.Tensor,
        step: AttentionStep,
        scale: float,
        rank: int,
        sinks: torch.Tensor | None = None,
        window: int | None = None,
        /,
    ) -> torch.Tensor: ...


class AttendLatentPart(Protocol):
    """Computes LatentAttention over the tokens that a rank keeps, without sinks and without a window.

    Returns what paged_attention.AttendPart returns.
    """

    def __call__(
        self, q: torch.Tensor, cache: torch.Tensor, step: AttentionStep, scale: float, rank: int, /
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


def latent_attention_reference(
    q: torch.Tensor,
    cache: torch.Tensor,
    step: AttentionStep,
    scale: float,
    rank: int,
    sinks: torch.Tensor | None = None,
    window: int | None = None,
) -> torch.Tensor:
    """Each query attends to the latents of its row up to its own position.

    Args:
        q: [T, H, rank + R], of absorb_queries. A row's queries are the last of its context.
        cache: [num_blocks, 1, block_size, at least rank + R]: the first rank + R elements of a token are its key for
            all heads, the first `rank` of them its value.
        step: rows, context lengths and block tables.
        scale: multiplies the scores.
        sinks: [H] float32, a score of each head without a value; None: there is none.
        window: how many tokens a query sees at most, its own included; None: all. Tokens before the windows of a row's
            queries are not read.
    Returns:
        [T, H, rank] in q's dtype.

    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1.2.
    """
    num_tokens, num_heads, width = q.shape
    out = torch.empty(num_tokens, num_heads, rank, dtype=q.dtype, device=q.device)
    for start, end, context_len, slots in rows_of(step, cache):
        base = 0 if window is None else max(0, context_len - (end - start) - window + 1)
        keys = cache.view(-1, cache.shape[3])[slots[base:], :width].to(q.dtype)
        positions = torch.arange(context_len, device=q.device)
        for first, stop in parts_of(start, end, num_heads * (context_len - base)):
            scores = (q[first:stop].reshape(-1, width) @ keys.T).float().view(stop - first, num_heads, -1) * scale
            own = positions[context_len - end + first : context_len - end + stop, None]
            hidden = positions[base:] > own
            if window is not None:
                hidden |= positions[base:] <= own - window
            weights = weights_of(scores.masked_fill_(hidden[:, None], -torch.inf), sinks).to(q.dtype)
            out[first:stop] = (weights.flatten(0, 1) @ keys[:, :rank]).view(stop - first, num_heads, rank)
    return out


def attend_latent_part_reference(
    q: torch.Tensor, cache: torch.Tensor, step: AttentionStep, scale: float, rank: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """See AttendLatentPart."""
    num_tokens, num_heads, width = q.shape
    out = torch.zeros(num_tokens, num_heads, rank, dtype=q.dtype, device=q.device)
    log_totals = torch.full((num_tokens, num_heads), -torch.inf, device=q.device)
    for start, end, context_len, slots in rows_of(step, cache):
        keys = cache.view(-1, cache.shape[3])[slots, :width].to(q.dtype)
        for first, stop in parts_of(start, end, num_heads * context_len):
            own = slice(first, stop)
            scores = (q[own].reshape(-1, width) @ keys.T).float().view(stop - first, num_heads, -1) * scale
            weights, log_totals[own] = weights_of_visible(scores, step.visible, own)
            out[own] = (weights.to(q.dtype).flatten(0, 1) @ keys[:, :rank]).view(stop - first, num_heads, rank)
    return out, log_totals


def weights_of(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Softmax of scores, [queries, H, keys], and of the sinks, [H], which have a share of each head's weights."""
    if sinks is None:
        return scores.softmax(-1)
    shares = sinks.view(1, -1, 1).expand(len(scores), -1, 1)
    return torch.cat((scores, shares), -1).softmax(-1)[..., :-1]


def rows_of(step: AttentionStep, cache: torch.Tensor) -> Iterator[tuple[int, int, int, torch.Tensor]]:
    """Yield each row with queries and a context, which padding has not: its first query and the one after its last, its
    context, and the slots of the tokens of its context."""
    block_size = cache.shape[2]
    starts, lengths = step.query_start.tolist(), step.context_lens.tolist()
    for row, context_len in enumerate(lengths):
        if starts[row] == starts[row + 1] or context_len == 0:
            continue
        positions = torch.arange(context_len, device=cache.device)
        slots = step.block_tables[row].long()[positions // block_size] * block_size + positions % block_size
        yield starts[row], starts[row + 1], context_len, slots


def parts_of(start: int, end: int, elements: int) -> Iterator[tuple[int, int]]:
    """Ranges of queries. elements: of the largest intermediate result of one query."""
    size = max(1, _MAX_ELEMENTS // max(1, elements))
    for first in range(start, end, size):
        yield first, min(end, first + size)


def latent_attention_cpu(library: CpuLibrary, dtype: torch.dtype) -> tuple[LatentAttention, AttendLatentPart]:
    """The same results for a query in any batch and any chunk."""
    empty = library.memory.empty
    call = library.op("latent_attention", dtype, [POINTER] * 9 + [INT, INT64] + [INT] * 4 + [INT64] * 2 + [FLOAT])
    no_window = 2**62

    def attend(
        q: torch.Tensor,
        cache: torch.Tensor,
        step: AttentionStep,
        scale: float,
        rank: int,
        sinks: torch.Tensor | None,
        window: int | None,
        visible: torch.Tensor | None,
        log_totals: torch.Tensor | None,
    ) -> torch.Tensor:
        num_tokens, num_heads, width = q.shape
        _, _, block_size, token_stride = cache.shape
        if not rank <= width <= token_stride:
            raise ValueError(f"queries of {width} elements for a cache of {token_stride} with values of {rank}")
        if sinks is not None and len(sinks) != num_heads:
            raise ValueError(f"{len(sinks)} sinks for {num_heads} heads")
        if window is not None and window < 1:
            raise ValueError(f"window is {window}; allowed: at least 1")
        block_tables = step.block_tables
        out = empty(num_tokens, num_heads, rank, dtype=dtype)
        call(
            pointer(q, dtype),
            pointer(cache, dtype),
            pointer(step.query_start, torch.int32),
            pointer(step.context_lens, torch.int32),
            pointer(block_tables, torch.int32),
            None if sinks is None else pointer(sinks, torch.float32),
            None if visible is None else pointer(visible, torch.int32),
            out.data_ptr(),
            None if log_totals is None else log_totals.data_ptr(),
            block_tables.shape[0],
            block_tables.shape[1],
            num_heads,
            width,
            rank,
            block_size,
            token_stride,
            no_window if window is None else window,
            scale,
        )
        return out

    def latent_attention(
        q: torch.Tensor,
        cache: torch.Tensor,
        step: AttentionStep,
        scale: float,
        rank: int,
        sinks: torch.Tensor | None = None,
        window: int | None = None,
    ) -> torch.Tensor:
        return attend(q, cache, step, scale, rank, sinks, window, None, None)

    def attend_latent_part(
        q: torch.Tensor, cache: torch.Tensor, step: AttentionStep, scale: float, rank: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        log_totals = empty(*q.shape[:2], dtype=torch.float32)
        return attend(q, cache, step, scale, rank, None, None, step.visible, log_totals), log_totals

    return latent_attention, attend_latent_part
