"""Head norms, rotary embedding, and the store of keys and values into the cache, a program per token and head."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch import dependent, is_interpreted, wait

_IS_INTERPRETED: tl.constexpr = tl.constexpr(is_interpreted())
_FP8_MAX = tl.constexpr(448.0)


@triton.jit
def _as_stored(values, cache):
    """float32 values in the cache's dtype; in fp8 they are clamped to its range. NaN stays NaN."""
    if cache.dtype.element_ty == tl.float8e4nv:
        values = tl.where(values > _FP8_MAX, _FP8_MAX, tl.where(values < -_FP8_MAX, -_FP8_MAX, values))
        if _IS_INTERPRETED:
            return _to_fp8(values)
    return values.to(cache.dtype.element_ty)


@triton.jit
def _to_fp8(values):
    """float32 to float8_e4m3fn as on a GPU: the interpreter truncates subnormal numbers and loses NaN."""
    power = (values.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    far = tl.maximum(power, 2.0**-6) * (1.5 * 2**20)  # adding it leaves three bits after the leading one
    kept = (values + far - far).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return tl.where(values == values, kept, 0x7F).to(tl.uint8).to(tl.float8e4nv, bitcast=True)


@triton.jit
def _rope_and_store(
    qkv, q_norm, k_norm, cos_sin, positions, slot_mapping, queries, k_cache, v_cache, eps, stride,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, HAS_NORMS: tl.constexpr, WIDTH: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half: tl.constexpr = ROTARY_DIM // 2
    lanes = tl.arange(0, WIDTH)
    is_there = lanes < HEAD_DIM
    source = qkv + token * stride + head * HEAD_DIM
    slot = tl.load(slot_mapping + token)
    kv_head = (head - NUM_HEADS) % NUM_KV_HEADS
    place = ((slot // BLOCK_SIZE * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + slot % BLOCK_SIZE) * HEAD_DIM
    is_kept = lanes < tl.where(slot >= 0, HEAD_DIM, 0)
    if head >= NUM_HEADS + NUM_KV_HEADS:
        value = tl.load(source + lanes, mask=is_there, other=0.0).to(tl.float32)
        tl.store(v_cache + place + lanes, _as_stored(value, v_cache), mask=is_kept)
    else:
        # The elements of a head, and for each its partner in the rotation: the second load comes from the cache.
        partners = tl.where(lanes < half, lanes + half, tl.where(lanes < ROTARY_DIM, lanes - half, lanes))
        own = tl.load(source + lanes, mask=is_there, other=0.0).to(tl.float32)
        other = tl.load(source + partners, mask=is_there, other=0.0).to(tl.float32)
        if HAS_NORMS:
            scale = tl.rsqrt(tl.sum(own * own, 0) / HEAD_DIM + eps)
            if head < NUM_HEADS:
                own *= scale * tl.load(q_norm + lanes, mask=is_there, other=0.0).to(tl.float32)
                other *= scale * tl.load(q_norm + partners, mask=is_there, other=0.0).to(tl.float32)
            else:
                own *= scale * tl.load(k_norm + lanes, mask=is_there, other=0.0).to(tl.float32)
                other *= scale * tl.load(k_norm + partners, mask=is_there, other=0.0).to(tl.float32)
        angles = cos_sin + tl.load(positions + token) * ROTARY_DIM + lanes % half
        cos = tl.load(angles, mask=lanes < ROTARY_DIM, other=1.0)
        sin = tl.load(angles + half, mask=lanes < ROTARY_DIM, other=0.0)
        rotated = own * cos + other * tl.where(lanes < half, -sin, sin)
        if head < NUM_HEADS:
            to = queries + (token * NUM_HEADS + head) * HEAD_DIM
            tl.store(to + lanes, rotated.to(queries.dtype.element_ty), mask=is_there)
        else:
            tl.store(k_cache + place + lanes, _as_stored(rotated, k_cache), mask=is_kept)


def rope_and_store_gpu(
    qkv: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
) -> torch.Tensor:
    """As rope_and_store_reference; a token with a slot below 0, which is padding, is not stored."""
    _, cache_heads, block_size, head_dim = k_cache.shape
    if qkv.shape[1] != (num_heads + 2 * num_kv_heads) * head_dim or cache_heads != num_kv_heads:
        raise ValueError(f"qkv is {tuple(qkv.shape)} for {num_heads} + 2 * {num_kv_heads} heads of {head_dim}")
    if (q_norm is None) != (k_norm is None):
        raise ValueError("queries and keys must both have norms, or neither")
    queries = torch.empty(len(qkv), num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    if len(qkv):
        _rope_and_store[(len(qkv), num_heads + 2 * num_kv_heads)](
            qkv, q_norm, k_norm, cos_sin, positions, slot_mapping, queries, k_cache, v_cache, eps, qkv.stride(0),
            NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HEAD_DIM=head_dim, ROTARY_DIM=cos_sin.shape[1],
            BLOCK_SIZE=block_size, HAS_NORMS=q_norm is not None, WIDTH=triton.next_power_of_2(head_dim),
            num_warps=1, **dependent(),
        )  # fmt: skip
    return queries
