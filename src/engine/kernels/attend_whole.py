"""Attention that is not causal, within whole sequences and without a cache: of encoders, and of models that see later
tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Protocol

import torch
import torch.nn.functional as F

_QUERIES = 128  # at least this many are computed together, over the keys that any of them sees


class AttendWhole(Protocol):
    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        query_start: torch.Tensor,
        scale: float,
        window: int | None = None,
        /,
    ) -> torch.Tensor: ...


def attend_whole_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    query_start: torch.Tensor,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """Each query attends to all tokens of its sequence, before and after it. A result depends on its sequence only.

    Args:
        q: [T, num_heads, D].
        k, v: [T, num_kv_heads, D]. Query heads share kv heads in order, as in paged_attention.
        query_start: [R + 1] int32, on any device: sequence r has the tokens query_start[r] to query_start[r + 1].
        scale: multiplies the scores, usually D ** -0.5.
        window: a query sees itself, this many tokens before it and as many after it; None for all.
    Returns:
        [T, num_heads * D] in q's dtype.
    """
    out = torch.empty_like(q)
    group = q.shape[1] // k.shape[1]
    for start, end in pairwise(query_start.tolist()):
        queries, keys, values = (each[start:end].float().transpose(0, 1) for each in (q, k, v))
        keys, values = (each.repeat_interleave(group, 0) for each in (keys, values))
        scores = queries @ keys.transpose(1, 2) * scale
        if window is not None:
            places = torch.arange(end - start, device=q.device)
            scores.masked_fill_((places - places[:, None]).abs() > window, -torch.inf)
        out[start:end] = (scores.softmax(-1) @ values).transpose(0, 1).to(q.dtype)
    return out.flatten(1)


def attend_whole_by_length(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    query_start: torch.Tensor,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """Computes attend_whole with torch's attention, together for sequences of the same length. Nothing is padded."""
    out = torch.empty_like(q)
    starts = query_start.to("cpu", torch.int64)
    lengths = starts.diff()
    for length in set(lengths.tolist()):
        tokens = (starts[:-1][lengths == length, None] + torch.arange(length)).to(q.device)  # [sequences, length]
        queries, keys, values = (each[tokens].transpose(1, 2) for each in (q, k, v))
        for own, seen, mask in _pieces(length, window, q.device):
            attended = F.scaled_dot_product_attention(
                queries[:, :, own], keys[:, :, seen], values[:, :, seen], mask, scale=scale, enable_gqa=True
            )
            out[tokens[:, own]] = attended.transpose(1, 2)
    return out.flatten(1)


def _pieces(
    length: int, window: int | None, device: torch.device
) -> Iterator[tuple[slice, slice, torch.Tensor | None]]:
    """Queries that are computed together, the keys that they see, and which each of them sees; None for all."""
    if window is None or window >= length - 1:
        if length:
            yield slice(0, length), slice(0, length), None
        return
    count = max(window, _QUERIES)
    for start in range(0, length, count):
        own, seen = slice(start, min(start + count, length)), slice(max(0, start - window), start + count + window)
        places = torch.arange(length, device=device)
        yield own, seen, (places[seen] - places[own, None]).abs() <= window
