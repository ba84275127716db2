"""Head norms, rotary embedding, keys and values into the cache: between the QKV projection and attention."""

from __future__ import annotations

from typing import Protocol

import torch

from .cpu.library import FLOAT, INT, INT64, POINTER, CpuLibrary, pointer
from .head_variant import PLAIN_HEADS, HeadVariant, check_norms
from .kv_codes import head_dim_of, store_heads


class RopeAndStore(Protocol):
    def __call__(
        self,
        qkv: torch.Tensor,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
        cos_sin: torch.Tensor | None,
        positions: torch.Tensor,
        slot_mapping: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        variant: HeadVariant = PLAIN_HEADS,
        /,
    ) -> torch.Tensor: ...


def rope_and_store_reference(
    qkv: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    cos_sin: torch.Tensor | None,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    variant: HeadVariant = PLAIN_HEADS,
) -> torch.Tensor:
    """Norms and rotates queries and keys, and writes keys and values to their slots.

    Args:
        qkv: [T, at least (num_heads + 2 * num_kv_heads) * D]: queries, keys, values unless they are the keys; further
            columns are not read.
        q_norm, k_norm: weights of the norms, in float32 for the C++ kernels: [D] if all heads share them, else
            [num_heads * D] and [num_kv_heads * D]; None for a model without head norms.
        eps: of the head norms.
        cos_sin: [max_position, R] float32, cosines in the first half and sines in the second; R is even and at most D.
            If R < D, only the first R elements of a head are rotated; None for no rotation.
        positions: [T] int64, the tokens' positions in their sequences.
        slot_mapping: [T] int64, block_id * block_size + offset; a token with one below 0 is not stored.
        k_cache, v_cache: [num_blocks, num_kv_heads, block_size, D], written in place. In float8_e4m3fn values are
            clipped to its range, -448 to 448; an int8 cache (kv_codes.py) gets them rounded to qkv's dtype first.
        num_kv_heads: 0 prepares the queries of a layer that reads another layer's cache, which is not written.
        variant: what differs between models.
    Returns:
        queries [T, num_heads, D] in qkv's dtype; arithmetic in float32.

    Source: RoFormer, arXiv:2104.09864, section 3.4.2.
    """
    head_dim, block_size = head_dim_of(k_cache), k_cache.shape[2]
    num_parts = variant.num_parts(num_heads, num_kv_heads)
    heads = qkv[:, : num_parts * head_dim].view(len(qkv), num_parts, head_dim)
    queries, keys = heads[:, :num_heads], heads[:, num_heads : num_heads + num_kv_heads]
    values = heads[:, num_parts - num_kv_heads :]
    check_norms(q_norm, k_norm, num_heads, num_kv_heads, head_dim)

    def prepared(part: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        part = part.float()
        if norm is not None and not variant.is_norm_last:
            part = _normed(part, norm, eps, variant)
        if cos_sin is not None:
            part = rotated(part, cos_sin[positions].unsqueeze(1), variant.is_interleaved)
        if norm is not None and variant.is_norm_last:
            part = _normed(part, norm, eps, variant)
        return part

    if num_kv_heads:
        stored = slot_mapping >= 0
        block, offset = slot_mapping[stored] // block_size, slot_mapping[stored] % block_size
        wide_keys = prepared(keys, k_norm)
        if variant.has_value_norm:
            values = values.float()
            values = values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + eps)
        for cache, heads, scale in ((k_cache, wide_keys, variant.k_scale), (v_cache, values, variant.v_scale)):
            if cache.dtype == torch.int8:
                store_heads(cache, block, offset, heads[stored].to(qkv.dtype))
            else:
                kept = heads[stored] if scale == 1 else heads[stored] * (1 / scale)
                cache[block, :, offset] = to_cache_dtype(kept, cache.dtype)
    wide = prepared(queries, q_norm)
    if variant.query_scales is not None:
        wide = wide * variant.query_scales[positions, None, None]
    return wide.to(qkv.dtype)


def _normed(heads: torch.Tensor, weight: torch.Tensor, eps: float, variant: HeadVariant) -> torch.Tensor:
    """heads: [T, heads, D]."""
    dims = (-2, -1) if variant.is_over_all_heads else (-1,)
    if variant.is_layer_norm:
        heads = heads - heads.mean(dims, keepdim=True)
    return heads * torch.rsqrt(heads.pow(2).mean(dims, keepdim=True) + eps) * weight.float().view(-1, heads.shape[-1])


def rotated(heads: torch.Tensor, cos_sin: torch.Tensor, is_interleaved: bool) -> torch.Tensor:
    """heads: [T, heads, D]; cos_sin: [T, 1, R]."""
    cos, sin = cos_sin.chunk(2, dim=-1)
    turned, rest = heads[..., : cos_sin.shape[-1]], heads[..., cos_sin.shape[-1] :]
    first, second = (turned[..., ::2], turned[..., 1::2]) if is_interleaved else turned.chunk(2, dim=-1)
    pair = first * cos - second * sin, second * cos + first * sin
    rotated = torch.stack(pair, -1).flatten(-2) if is_interleaved else torch.cat(pair, -1)
    return torch.cat((rotated, rest), dim=-1)


def to_cache_dtype(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.float8_e4m3fn:  # it has no infinity: torch's result for larger values depends on its version
        largest = torch.finfo(dtype).max
        values = values.clamp(-largest, largest)
    return values.to(dtype)


def rope_and_store_cpu(library: CpuLibrary, dtype: torch.dtype, kv_dtype: torch.dtype) -> RopeAndStore:
    """Return the op for heads whose width is a multiple of 16. kv_dtype: of the cache: `dtype`, or int8."""
    empty = library.memory.empty
    name = "rope_and_store_int8" if kv_dtype == torch.int8 else "rope_and_store"
    call = library.op(name, dtype, [POINTER] * 10 + [INT64] * 2 + [INT] * 7 + [FLOAT])

    def rope_and_store(
        qkv: torch.Tensor,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
        cos_sin: torch.Tensor | None,
        positions: torch.Tensor,
        slot_mapping: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        variant: HeadVariant = PLAIN_HEADS,
    ) -> torch.Tensor:
        num_tokens = qkv.shape[0]
        block_size, head_dim = k_cache.shape[2], head_dim_of(k_cache)
        num_parts = variant.num_parts(num_heads, num_kv_heads)
        if qkv.shape[1] < num_parts * head_dim or num_kv_heads not in (0, k_cache.shape[1]):
            raise ValueError(f"qkv is {tuple(qkv.shape)} for {num_heads} and {num_kv_heads} heads of {head_dim}")
        has_own_weights = check_norms(q_norm, k_norm, num_heads, num_kv_heads, head_dim)
        scales = variant.query_scales
        queries = empty(num_tokens, num_heads, head_dim, dtype=dtype)
        call(
            pointer(qkv, dtype),
            None if q_norm is None else pointer(q_norm, torch.float32),
            None if k_norm is None else pointer(k_norm, torch.float32),
            None if cos_sin is None else pointer(cos_sin, torch.float32),
            None if scales is None else pointer(scales, torch.float32),
            pointer(positions, torch.int64),
            pointer(slot_mapping, torch.int64),
            queries.data_ptr(),
            pointer(k_cache, kv_dtype),
            pointer(v_cache, kv_dtype),
            num_tokens,
            qkv.shape[1],
            num_heads,
            num_kv_heads,
            head_dim,
            0 if cos_sin is None else cos_sin.shape[1],
            block_size,
            head_dim if has_own_weights else 0,
            _flags(variant),
            eps,
        )
        return queries

    return rope_and_store


def _flags(variant: HeadVariant) -> int:
    """Flags of cpu/heads.cpp."""
    flags = (
        variant.is_interleaved,
        variant.is_layer_norm,
        variant.is_over_all_heads,
        variant.is_norm_last,
        variant.has_value_norm,
        variant.values_are_keys,
    )
    return sum(1 << bit for bit, is_set in enumerate(flags) if is_set)
