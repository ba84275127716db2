"""Head norms, rotary embedding, and keys and values into the cache, a program per token and head."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch import dependent, is_interpreted, wait

_IS_INTERPRETED: tl.constexpr = tl.constexpr(is_interpreted())
_FP8_MOST = tl.constexpr(448.0)


@triton.jit
def _as_kept(numbers, cache):
    """numbers: float32, which become the cache's; beyond an 8-bit format's largest they become that. NaN stays."""
    if cache.dtype.element_ty == tl.float8e4nv:
        numbers = tl.where(numbers > _FP8_MOST, _FP8_MOST, tl.where(numbers < -_FP8_MOST, -_FP8_MOST, numbers))
        if _IS_INTERPRETED:
            return _converted(numbers)
    return numbers.to(cache.dtype.element_ty)


@triton.jit
def _converted(numbers):
    """float32 to float8_e4m3fn as a GPU does it: the interpreter cuts small numbers off, and makes a number of NaN."""
    power = (numbers.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    far = tl.maximum(power, 2.0**-6) * (1.5 * 2**20)  # beside it float32 keeps three bits behind the first
    kept = (numbers + far - far).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return tl.where(numbers == numbers, kept, 0x7F).to(tl.uint8).to(tl.float8e4nv, bitcast=True)


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
        tl.store(v_cache + place + lanes, _as_kept(value, v_cache), mask=is_kept)
    else:
        # A head and the head with the partners of its numbers in their places: the second read comes from the cache.
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
        turned = own * cos + other * tl.where(lanes < half, -sin, sin)
        if head < NUM_HEADS:
            to = queries + (token * NUM_HEADS + head) * HEAD_DIM
            tl.store(to + lanes, turned.to(queries.dtype.element_ty), mask=is_there)
        else:
            tl.store(k_cache + place + lanes, _as_kept(turned, k_cache), mask=is_kept)


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
    """As rope_and_store_reference; a slot below 0 is written nowhere (rows that only fill a graph up)."""
    _, cache_heads, block_size, head_dim = k_cache.shape
    if qkv.shape[1] != (num_heads + 2 * num_kv_heads) * head_dim or cache_heads != num_kv_heads:
        raise ValueError(f"qkv is {tuple(qkv.shape)} for {num_heads} + 2 * {num_kv_heads} heads of {head_dim}")
    if (q_norm is None) != (k_norm is None):
        raise ValueError("queries and keys both have norms, or neither")
    queries = torch.empty(len(qkv), num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    if len(qkv):
        _rope_and_store[(len(qkv), num_heads + 2 * num_kv_heads)](
            qkv, q_norm, k_norm, cos_sin, positions, slot_mapping, queries, k_cache, v_cache, eps, qkv.stride(0),
            NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HEAD_DIM=head_dim, ROTARY_DIM=cos_sin.shape[1],
            BLOCK_SIZE=block_size, HAS_NORMS=q_norm is not None, WIDTH=triton.next_power_of_2(head_dim),
            num_warps=1, **dependent(),
        )  # fmt: skip
    return queries
