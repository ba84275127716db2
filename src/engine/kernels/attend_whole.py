"""Attention that is not causal, within whole sequences and without a cache: of encoders, and of models that see later
tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Protocol

import torch
import torch.nn.functional as F

from .cpu.library import FLOAT, INT, INT64, POINTER, CpuLibrary, pointer

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
        slopes: torch.Tensor | None = None,
        biases: torch.Tensor | None = None,
        /,
    ) -> torch.Tensor: ...


def check_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raises ValueError unless the heads of each token are contiguous, as kernels read them."""
    if any(each.stride()[1:] != (q.shape[2], 1) for each in (q, k, v)):
        raise ValueError("the heads of a token must be one after the other")


def attend_whole_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    query_start: torch.Tensor,
    scale: float,
    window: int | None = None,
    slopes: torch.Tensor | None = None,
    biases: torch.Tensor | None = None,
) -> torch.Tensor:
    """Each query attends to all tokens of its sequence, before and after it. A result depends on its sequence only.

    Args:
        q: [T, num_heads, D]; tokens may be any distance apart, as in a part of a projection.
        k, v: [T, num_kv_heads, D], the same. Query heads share kv heads in order, as in paged_attention.
        query_start: [R + 1] int32, on any device: sequence r has the tokens query_start[r] to query_start[r + 1].
        scale: multiplies the scores, usually D ** -0.5.
        window: a query sees itself, this many tokens before it and as many after it; None for all.
        slopes: [num_heads] float32, of ALiBi: the distance of a key times the slope is subtracted from its score.
        biases: [num_heads, 2 * S + 1] float32, added to scores by the place of a key less that of the query, from -S to
            S. Keys that are further away have the bias of the end.
    Returns:
        [T, num_heads * D] in q's dtype.
    """
    out = q.new_empty(q.shape)
    group = q.shape[1] // k.shape[1]
    for start, end in pairwise(query_start.tolist()):
        queries, keys, values = (each[start:end].float().transpose(0, 1) for each in (q, k, v))
        keys, values = (each.repeat_interleave(group, 0) for each in (keys, values))
        scores = queries @ keys.transpose(1, 2) * scale
        places = torch.arange(end - start, device=q.device)
        offsets = places - places[:, None]
        distances = offsets.abs()
        if slopes is not None:
            scores -= slopes[:, None, None] * distances
        if biases is not None:
            scores += _of_offsets(biases, offsets)
        if window is not None:
            scores.masked_fill_(distances > window, -torch.inf)
        out[start:end] = (scores.softmax(-1) @ values).transpose(0, 1).to(q.dtype)
    return out.flatten(1)


def _of_offsets(biases: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The biases of all heads, [num_heads, queries, keys]. offsets: of keys from queries, in tokens."""
    span = biases.shape[1] // 2
    return biases[:, offsets.clamp(-span, span) + span]


def attend_whole_by_length(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    query_start: torch.Tensor,
    scale: float,
    window: int | None = None,
    slopes: torch.Tensor | None = None,
    biases: torch.Tensor | None = None,
) -> torch.Tensor:
    """Computes attend_whole with torch's attention, together for sequences of the same length. Nothing is padded."""
    out = q.new_empty(q.shape)
    starts = query_start.to("cpu", torch.int64)
    lengths = starts.diff()
    for length in set(lengths.tolist()):
        tokens = (starts[:-1][lengths == length, None] + torch.arange(length)).to(q.device)  # [sequences, length]
        queries, keys, values = (each[tokens].transpose(1, 2) for each in (q, k, v))
        for own, seen in _pieces(length, window):
            mask = _mask(own, seen, length, window, slopes, biases, q)
            attended = F.scaled_dot_product_attention(
                queries[:, :, own], keys[:, :, seen], values[:, :, seen], mask, scale=scale, enable_gqa=True
            )
            out[tokens[:, own]] = attended.transpose(1, 2)
    return out.flatten(1)


def _pieces(length: int, window: int | None) -> Iterator[tuple[slice, slice]]:
    """Queries that are computed together, and the keys that they see."""
    if window is None or window >= length - 1:
        if length:
            yield slice(0, length), slice(0, length)
        return
    count = max(window, _QUERIES)
    for start in range(0, length, count):
        own, seen = slice(start, min(start + count, length)), slice(max(0, start - window), start + count + window)
        yield own, seen


def _mask(
    own: slice,
    seen: slice,
    length: int,
    window: int | None,
    slopes: torch.Tensor | None,
    biases: torch.Tensor | None,
    q: torch.Tensor,
) -> torch.Tensor | None:
    """What is added to the scores of these queries and keys, or which of them count; None if all count as they are."""
    is_plain = slopes is None and biases is None
    if window is None or window >= length:
        window = length
        if is_plain:
            return None
    places = torch.arange(length, device=q.device)
    offsets = places[seen] - places[own, None]
    distances = offsets.abs()
    if is_plain:
        return distances <= window
    added = torch.zeros((), device=q.device) if biases is None else _of_offsets(biases, offsets)
    if slopes is not None:
        added = added - slopes[:, None, None] * distances
    return added.masked_fill(distances > window, -torch.inf).to(q.dtype)


def attend_whole_cpu(library: CpuLibrary, dtype: torch.dtype) -> AttendWhole:
    """Return the op for heads whose width is a multiple of 16, at most config.cpu_kernels.MAX_HEAD_DIM.

    Its results depend on their sequence only, so there is no other version for batch invariance.
    """
    empty = library.memory.empty
    places = [POINTER] * 3 + [INT64] * 3 + [POINTER] * 4 + [INT64]
    call = library.op("attend_whole", dtype, [*places, *[INT] * 4, INT64, FLOAT])
    no_window = 2**62

    def attend_whole(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        query_start: torch.Tensor,
        scale: float,
        window: int | None = None,
        slopes: torch.Tensor | None = None,
        biases: torch.Tensor | None = None,
    ) -> torch.Tensor:
        num_tokens, num_heads, head_dim = q.shape
        num_kv_heads = k.shape[1]
        for each, heads in ((q, num_heads), (k, num_kv_heads), (v, num_kv_heads)):
            if each.dtype != dtype or each.shape != (num_tokens, heads, head_dim):
                raise ValueError(f"q is {tuple(q.shape)} {dtype}, another is {tuple(each.shape)} {each.dtype}")
        check_heads(q, k, v)
        if slopes is not None and slopes.shape != (num_heads,):
            raise ValueError(f"slopes are {tuple(slopes.shape)} for {num_heads} heads")
        if biases is not None and (len(biases) != num_heads or biases.shape[1] % 2 == 0):
            raise ValueError(f"biases are {tuple(biases.shape)} for {num_heads} heads")
        out = empty(num_tokens, num_heads * head_dim, dtype=dtype)
        call(
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            q.stride(0),
            k.stride(0),
            v.stride(0),
            out.data_ptr(),
            pointer(query_start, torch.int32),
            None if slopes is None else pointer(slopes, torch.float32),
            None if biases is None else pointer(biases, torch.float32),
            0 if biases is None else biases.shape[1] // 2,
            len(query_start) - 1,
            num_heads,
            num_kv_heads,
            head_dim,
            no_window if window is None else window,
            scale,
        )
        return out

    return attend_whole
