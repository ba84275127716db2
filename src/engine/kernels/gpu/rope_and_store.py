"""Head norms, rotary embedding, and the store of keys and values into the cache, a program per token and head."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..head_variant import PLAIN_HEADS, HeadVariant, check_norms
from .launch import dependent, is_interpreted, wait

_IS_INTERPRETED: tl.constexpr = tl.constexpr(is_interpreted())
_FP8_MAX = tl.constexpr(448.0)


@triton.jit
def as_stored(values, cache):
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
def _of_head(values, is_there, eps, HEAD_DIM: tl.constexpr, IS_LAYER_NORM: tl.constexpr):
    """What a head's norm subtracts, and the factor after that."""
    mean = 0.0
    if IS_LAYER_NORM:
        mean = tl.sum(values, 0) / HEAD_DIM
        values = tl.where(is_there, values - mean, 0.0)
    return mean, tl.rsqrt(tl.sum(values * values, 0) / HEAD_DIM + eps)


@triton.jit
def _of_all_heads(
    heads, count, lanes, is_there, eps, HEAD_DIM: tl.constexpr, IS_LAYER_NORM: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """The same of a norm over `count` heads in memory."""
    mean = 0.0
    if IS_LAYER_NORM:
        sums = tl.zeros([WIDTH], tl.float32)
        for head in range(count):
            sums += tl.load(heads + head * HEAD_DIM + lanes, mask=is_there, other=0.0).to(tl.float32)
        mean = tl.sum(sums, 0) / (count * HEAD_DIM)
    squares = tl.zeros([WIDTH], tl.float32)
    for head in range(count):
        value = tl.load(heads + head * HEAD_DIM + lanes, mask=is_there, other=0.0).to(tl.float32)
        centred = tl.where(is_there, value - mean, 0.0)
        squares += centred * centred
    return mean, tl.rsqrt(tl.sum(squares, 0) / (count * HEAD_DIM) + eps)


@triton.jit
def _rope_and_store(
    qkv, q_norm, k_norm, cos_sin, query_scales, positions, slot_mapping, queries, k_cache, v_cache, eps, stride,
    k_factor, v_factor,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, HAS_NORMS: tl.constexpr, HAS_OWN_WEIGHTS: tl.constexpr, IS_LAYER_NORM: tl.constexpr,
    IS_OVER_ALL_HEADS: tl.constexpr, IS_NORM_LAST: tl.constexpr, IS_INTERLEAVED: tl.constexpr,
    HAS_SCALES: tl.constexpr, HAS_VALUE_NORM: tl.constexpr, VALUES_ARE_KEYS: tl.constexpr, WIDTH: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait(IS_DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half: tl.constexpr = ROTARY_DIM // 2
    lanes = tl.arange(0, WIDTH)
    is_there = lanes < HEAD_DIM
    source = qkv + token * stride + head * HEAD_DIM
    if VALUES_ARE_KEYS:
        source -= tl.where(head >= NUM_HEADS + NUM_KV_HEADS, NUM_KV_HEADS * HEAD_DIM, 0)
    slot = tl.load(slot_mapping + token)
    kv_head = (head - NUM_HEADS) % NUM_KV_HEADS
    place = ((slot // BLOCK_SIZE * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + slot % BLOCK_SIZE) * HEAD_DIM
    is_kept = lanes < tl.where(slot >= 0, HEAD_DIM, 0)
    if head >= NUM_HEADS + NUM_KV_HEADS:
        value = tl.load(source + lanes, mask=is_there, other=0.0).to(tl.float32)
        if HAS_VALUE_NORM:
            value *= _of_head(value, is_there, eps, HEAD_DIM, False)[1]
        tl.store(v_cache + place + lanes, as_stored(value * v_factor, v_cache), mask=is_kept)
    else:
        # The elements of a head, and for each its partner in the rotation: the second load comes from the cache.
        if IS_INTERLEAVED:
            is_first = lanes % 2 == 0
            pair = lanes // 2
        else:
            is_first = lanes < half
            pair = lanes % half if half > 0 else lanes
        distance = 1 if IS_INTERLEAVED else half
        partners = tl.where(lanes < ROTARY_DIM, tl.where(is_first, lanes + distance, lanes - distance), lanes)
        own = tl.load(source + lanes, mask=is_there, other=0.0).to(tl.float32)
        other = tl.load(source + partners, mask=is_there, other=0.0).to(tl.float32)
        if HAS_NORMS:
            norm = q_norm if head < NUM_HEADS else k_norm
            if HAS_OWN_WEIGHTS:
                norm += tl.where(head < NUM_HEADS, head, head - NUM_HEADS) * HEAD_DIM
            gains = tl.load(norm + lanes, mask=is_there, other=0.0).to(tl.float32)
            if not IS_NORM_LAST:
                if IS_OVER_ALL_HEADS:
                    count = tl.where(head < NUM_HEADS, NUM_HEADS, NUM_KV_HEADS)
                    heads = qkv + token * stride + tl.where(head < NUM_HEADS, 0, NUM_HEADS) * HEAD_DIM
                    mean, scale = _of_all_heads(heads, count, lanes, is_there, eps, HEAD_DIM, IS_LAYER_NORM, WIDTH)
                else:
                    mean, scale = _of_head(own, is_there, eps, HEAD_DIM, IS_LAYER_NORM)
                own = (own - mean) * scale * gains
                other = (other - mean) * scale * tl.load(norm + partners, mask=is_there, other=0.0).to(tl.float32)
        rotated = own
        if ROTARY_DIM > 0:
            angles = cos_sin + tl.load(positions + token) * ROTARY_DIM + pair
            cos = tl.load(angles, mask=lanes < ROTARY_DIM, other=1.0)
            sin = tl.load(angles + half, mask=lanes < ROTARY_DIM, other=0.0)
            rotated = own * cos + other * tl.where(is_first, -sin, sin)
        if HAS_NORMS and IS_NORM_LAST:
            mean, scale = _of_head(rotated, is_there, eps, HEAD_DIM, IS_LAYER_NORM)
            rotated = (rotated - mean) * scale * gains
        if HAS_SCALES and head < NUM_HEADS:
            rotated *= tl.load(query_scales + tl.load(positions + token))
        if head < NUM_HEADS:
            to = queries + (token * NUM_HEADS + head) * HEAD_DIM
            tl.store(to + lanes, rotated.to(queries.dtype.element_ty), mask=is_there)
        else:
            tl.store(k_cache + place + lanes, as_stored(rotated * k_factor, k_cache), mask=is_kept)


def rope_and_store_gpu(
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
    """As rope_and_store_reference; a token with a slot below 0, which is padding, is not stored."""
    _, cache_heads, block_size, head_dim = k_cache.shape
    num_parts = variant.num_parts(num_heads, num_kv_heads)
    if qkv.shape[1] < num_parts * head_dim or num_kv_heads not in (0, cache_heads):
        raise ValueError(f"qkv is {tuple(qkv.shape)} for {num_heads} and {num_kv_heads} heads of {head_dim}")
    has_own_weights = check_norms(q_norm, k_norm, num_heads, num_kv_heads, head_dim)
    queries = torch.empty(len(qkv), num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    if len(qkv):
        _rope_and_store[(len(qkv), num_heads + 2 * num_kv_heads)](
            qkv, q_norm, k_norm, cos_sin, variant.query_scales, positions, slot_mapping, queries, k_cache, v_cache, eps,
            qkv.stride(0), 1 / variant.k_scale, 1 / variant.v_scale, NUM_HEADS=num_heads, NUM_KV_HEADS=cache_heads,
            HEAD_DIM=head_dim, ROTARY_DIM=0 if cos_sin is None else cos_sin.shape[1], BLOCK_SIZE=block_size,
            HAS_NORMS=q_norm is not None, HAS_OWN_WEIGHTS=has_own_weights, IS_LAYER_NORM=variant.is_layer_norm,
            IS_OVER_ALL_HEADS=variant.is_over_all_heads, IS_NORM_LAST=variant.is_norm_last,
            IS_INTERLEAVED=variant.is_interleaved, HAS_SCALES=variant.query_scales is not None,
            HAS_VALUE_NORM=variant.has_value_norm, VALUES_ARE_KEYS=variant.values_are_keys,
            WIDTH=triton.next_power_of_2(head_dim), num_warps=1, **dependent(),
        )  # fmt: skip
    return queries
