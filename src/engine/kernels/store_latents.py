"""Norms, rotated keys, latents into the cache: between the first projection of latent attention and what follows."""

from __future__ import annotations

from typing import Protocol

import torch

from .cpu.library import FLOAT, INT, INT64, POINTER, CpuLibrary, pointer
from .rope_and_store import rotated, to_cache_dtype


class StoreLatents(Protocol):
    def __call__(
        self,
        projected: torch.Tensor,
        q_norm: torch.Tensor | None,
        kv_norm: torch.Tensor,
        eps: float,
        cos_sin: torch.Tensor,
        is_interleaved: bool,
        positions: torch.Tensor,
        slot_mapping: torch.Tensor,
        cache: torch.Tensor,
        query_width: int,
        key_norm: torch.Tensor | None = None,
        /,
    ) -> torch.Tensor: ...


def store_latents_reference(
    projected: torch.Tensor,
    q_norm: torch.Tensor | None,
    kv_norm: torch.Tensor,
    eps: float,
    cos_sin: torch.Tensor,
    is_interleaved: bool,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    cache: torch.Tensor,
    query_width: int,
    key_norm: torch.Tensor | None = None,
) -> torch.Tensor:
    """Norms the compressed vectors, and writes the keys' and values' with the rotated key to their slots.

    Args:
        projected: [T, at least query_width + rank + R]: queries or their compressed vectors, the compressed vector of
            keys and values, the key with a position; further columns are not read.
        q_norm: [query_width] float32; None if queries are not compressed.
        kv_norm: [rank] float32.
        eps: of all norms.
        cos_sin: [max_position, R] float32, cosines in the first half and sines in the second.
        is_interleaved: the rotated pairs are (2 i, 2 i + 1); else (i, i + R // 2).
        positions: [T] int64, the tokens' positions in their sequences.
        slot_mapping: [T] int64, block_id * block_size + offset; a token with one below 0 is not stored.
        cache: [num_blocks, 1, block_size, at least rank + R]; the first rank + R elements of a token are written.
        query_width: columns before the compressed vector of keys and values.
        key_norm: [R] float32, of a norm of the key before it is rotated; None: there is none.
    Returns:
        What queries are computed from, [T, at least query_width]: their normed compressed vectors, or `projected` if
        they are not compressed. Arithmetic in float32.

    Source: DeepSeek-V2, arXiv:2405.04434, equations 37 to 47.
    """
    rank, rope_dim, block_size = kv_norm.numel(), cos_sin.shape[1], cache.shape[2]
    queries, latents, keys = torch.split(
        projected[:, : query_width + rank + rope_dim].float(), [query_width, rank, rope_dim], dim=1
    )
    if key_norm is not None:
        keys = _normed(keys, key_norm, eps)
    keys = rotated(keys[:, None], cos_sin[positions].unsqueeze(1), is_interleaved)[:, 0]
    stored = slot_mapping >= 0
    block, offset = slot_mapping[stored] // block_size, slot_mapping[stored] % block_size
    kept = torch.cat((_normed(latents, kv_norm, eps), keys), dim=1)[stored]
    cache[block, 0, offset, : rank + rope_dim] = to_cache_dtype(kept, cache.dtype)
    return projected if q_norm is None else _normed(queries, q_norm, eps).to(projected.dtype)


def _normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def store_latents_cpu(library: CpuLibrary, dtype: torch.dtype) -> StoreLatents:
    empty = library.memory.empty
    call = library.op("store_latents", dtype, [POINTER] * 9 + [INT64] * 3 + [INT] * 4 + [FLOAT])

    def store_latents(
        projected: torch.Tensor,
        q_norm: torch.Tensor | None,
        kv_norm: torch.Tensor,
        eps: float,
        cos_sin: torch.Tensor,
        is_interleaved: bool,
        positions: torch.Tensor,
        slot_mapping: torch.Tensor,
        cache: torch.Tensor,
        query_width: int,
        key_norm: torch.Tensor | None = None,
    ) -> torch.Tensor:
        num_tokens, rank, rope_dim = len(projected), kv_norm.numel(), cos_sin.shape[1]
        if projected.shape[1] < query_width + rank + rope_dim or cache.shape[3] < rank + rope_dim:
            raise ValueError(f"projected is {tuple(projected.shape)}, the cache {tuple(cache.shape)}")
        if key_norm is not None and len(key_norm) != rope_dim:
            raise ValueError(f"the norm of keys of {rope_dim} elements has {len(key_norm)} weights")
        queries = projected if q_norm is None else empty(num_tokens, query_width, dtype=dtype)
        call(
            pointer(projected, dtype),
            None if q_norm is None else pointer(q_norm, torch.float32),
            pointer(kv_norm, torch.float32),
            None if key_norm is None else pointer(key_norm, torch.float32),
            pointer(cos_sin, torch.float32),
            pointer(positions, torch.int64),
            pointer(slot_mapping, torch.int64),
            queries.data_ptr(),
            pointer(cache, dtype),
            num_tokens,
            projected.shape[1],
            cache.shape[3],
            query_width,
            rank,
            rope_dim,
            is_interleaved,
            eps,
        )
        return queries

    return store_latents
