"""Norms of the compressed vectors of latent attention, the rotated key, the store into the cache: a token each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch import dependent, num_warps, wait
from .rope_and_store import as_stored


@triton.jit
def _normed(source, weight, eps, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    lanes = tl.arange(0, WIDTH)
    is_there = lanes < SIZE
    values = tl.load(source + lanes, mask=is_there, other=0.0).to(tl.float32)
    gains = tl.load(weight + lanes, mask=is_there, other=0.0)
    return values * tl.rsqrt(tl.sum(values * values, 0) / SIZE + eps) * gains


@triton.jit
def _store_latents(
    projected, q_norm, kv_norm, key_norm, cos_sin, positions, slot_mapping, queries, cache, eps, row_stride,
    token_stride,
    QUERIES: tl.constexpr, QUERY_WIDTH: tl.constexpr, RANK: tl.constexpr, RANK_WIDTH: tl.constexpr,
    TURNED: tl.constexpr, TURNED_WIDTH: tl.constexpr, IS_INTERLEAVED: tl.constexpr, HAS_QUERY_NORM: tl.constexpr,
    HAS_KEY_NORM: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    source = projected + token * row_stride
    if HAS_QUERY_NORM:
        lanes = tl.arange(0, QUERY_WIDTH)
        normed = _normed(source, q_norm, eps, QUERIES, QUERY_WIDTH)
        tl.store(queries + token * QUERIES + lanes, normed.to(queries.dtype.element_ty), mask=lanes < QUERIES)
    slot = tl.load(slot_mapping + token)
    to = cache + slot * token_stride
    lanes = tl.arange(0, RANK_WIDTH)
    latent = _normed(source + QUERIES, kv_norm, eps, RANK, RANK_WIDTH)
    tl.store(to + lanes, as_stored(latent, cache), mask=lanes < tl.where(slot >= 0, RANK, 0))
    # The elements of the key, and for each its partner in the rotation.
    half: tl.constexpr = TURNED // 2
    lanes = tl.arange(0, TURNED_WIDTH)
    is_there = lanes < TURNED
    is_first = lanes % 2 == 0 if IS_INTERLEAVED else lanes < half
    pair = lanes // 2 if IS_INTERLEAVED else lanes % half
    distance = 1 if IS_INTERLEAVED else half
    partners = tl.where(is_first, lanes + distance, lanes - distance)
    key = source + QUERIES + RANK
    own = tl.load(key + lanes, mask=is_there, other=0.0).to(tl.float32)
    other = tl.load(key + partners, mask=is_there, other=0.0).to(tl.float32)
    if HAS_KEY_NORM:
        scale = tl.rsqrt(tl.sum(own * own, 0) / TURNED + eps)
        own *= scale * tl.load(key_norm + lanes, mask=is_there, other=0.0)
        other *= scale * tl.load(key_norm + partners, mask=is_there, other=0.0)
    angles = cos_sin + tl.load(positions + token) * TURNED + pair
    cos = tl.load(angles, mask=is_there, other=1.0)
    sin = tl.load(angles + half, mask=is_there, other=0.0)
    rotated = own * cos + other * tl.where(is_first, -sin, sin)
    tl.store(to + RANK + lanes, as_stored(rotated, cache), mask=lanes < tl.where(slot >= 0, TURNED, 0))


def store_latents_gpu(
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
    """Computes store_latents_reference; a token in slot -1 is not stored."""
    num_tokens, rank, turned = len(projected), kv_norm.numel(), cos_sin.shape[1]
    queries = projected
    if q_norm is not None:
        queries = torch.empty(num_tokens, query_width, dtype=projected.dtype, device=projected.device)
    if num_tokens:
        widest = triton.next_power_of_2(max(query_width if q_norm is not None else 1, rank))
        _store_latents[(num_tokens,)](
            projected, q_norm, kv_norm, key_norm, cos_sin, positions, slot_mapping, queries, cache, eps,
            projected.stride(0), cache.shape[3],
            QUERIES=query_width, QUERY_WIDTH=triton.next_power_of_2(query_width), RANK=rank,
            RANK_WIDTH=triton.next_power_of_2(rank), TURNED=turned, TURNED_WIDTH=triton.next_power_of_2(turned),
            IS_INTERLEAVED=is_interleaved, HAS_QUERY_NORM=q_norm is not None,
            HAS_KEY_NORM=key_norm is not None, num_warps=num_warps(widest), **dependent(),
        )  # fmt: skip
    return queries
