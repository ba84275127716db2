"""The matrices of the heads of latent attention: queries into the space of the latents, and results out of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from .cpu.library import INT, INT64, POINTER, CpuLibrary, pointer
from .rope_and_store import rotated

# The arguments of absorb_queries_reference.
AbsorbQueries = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool, torch.Tensor], torch.Tensor]


class ExpandValues(Protocol):
    def __call__(self, attended: torch.Tensor, values: torch.Tensor, /) -> torch.Tensor: ...


def absorb_queries_reference(
    queries: torch.Tensor,
    keys: torch.Tensor,
    cos_sin: torch.Tensor,
    is_interleaved: bool,
    positions: torch.Tensor,
) -> torch.Tensor:
    """Each head's query, multiplied by the matrix that makes its keys of the latents, and its rotated part.

    Args:
        queries: [T, at least H * (P + R)], of each head P elements without a position and R that are rotated.
        keys: [H, P, rank], the matrix of each head: its key is `keys[h] @ latent`.
        cos_sin, is_interleaved, positions: as store_latents takes them.
    Returns:
        [T, H, rank + R] in the dtype of queries: their products with what store_latents has written are the scores.
    """
    num_heads, plain_dim, rank = keys.shape
    rope_dim = cos_sin.shape[1]
    size = plain_dim + rope_dim
    heads = queries[:, : num_heads * size].view(len(queries), num_heads, size)
    plain, turned = torch.split(heads, [plain_dim, rope_dim], dim=2)
    out = queries.new_empty(len(queries), num_heads, rank + rope_dim)
    out[..., :rank] = torch.matmul(plain.transpose(0, 1), keys).transpose(0, 1)
    out[..., rank:] = rotated(turned.float(), cos_sin[positions].unsqueeze(1), is_interleaved)
    return out


def expand_values_reference(attended: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Each head's weighted sum of latents, multiplied by the matrix that makes its values of them.

    Args:
        attended: [T, H, rank].
        values: [H, rank, V].
    Returns:
        [T, H * V] in the dtype of attended.
    """
    return torch.matmul(attended.transpose(0, 1), values).transpose(0, 1).flatten(1)


def absorb_queries_cpu(library: CpuLibrary, dtype: torch.dtype) -> AbsorbQueries:
    empty = library.memory.empty
    call = library.op("absorb_queries", dtype, [POINTER] * 5 + [INT64] * 2 + [INT] * 5)

    def absorb_queries(
        queries: torch.Tensor,
        keys: torch.Tensor,
        cos_sin: torch.Tensor,
        is_interleaved: bool,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        num_heads, plain_dim, rank = keys.shape
        num_tokens, rope_dim = len(queries), cos_sin.shape[1]
        if queries.shape[1] < num_heads * (plain_dim + rope_dim):
            raise ValueError(f"queries are {tuple(queries.shape)} for {num_heads} heads of {plain_dim} + {rope_dim}")
        out = empty(num_tokens, num_heads, rank + rope_dim, dtype=dtype)
        call(
            pointer(queries, dtype),
            pointer(keys, dtype),
            pointer(cos_sin, torch.float32),
            pointer(positions, torch.int64),
            out.data_ptr(),
            num_tokens,
            queries.shape[1],
            num_heads,
            plain_dim,
            rank,
            rope_dim,
            is_interleaved,
        )
        return out

    return absorb_queries


def expand_values_cpu(library: CpuLibrary, dtype: torch.dtype) -> ExpandValues:
    empty = library.memory.empty
    call = library.op("expand_values", dtype, [POINTER] * 3 + [INT64] + [INT] * 3)

    def expand_values(attended: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        num_heads, rank, value_dim = values.shape
        if attended.shape[1:] != (num_heads, rank):
            raise ValueError(f"attended is {tuple(attended.shape)} for matrices of {tuple(values.shape)}")
        out = empty(len(attended), num_heads * value_dim, dtype=dtype)
        call(
            pointer(attended, dtype),
            pointer(values, dtype),
            out.data_ptr(),
            len(attended),
            num_heads,
            rank,
            value_dim,
        )
        return out

    return expand_values
