"""Head norms, rotary embedding, and the store of keys and values into the cache, a program per token and some heads."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..head_variant import PLAIN_HEADS, HeadVariant, check_norms
from .launch import dependent, is_interpreted, wait

_IS_INTERPRETED: tl.constexpr = tl.constexpr(is_interpreted())
_FP8_MAX = tl.constexpr(448.0)
_HEADS, _WARPS = 8, 4  # of a program


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
    """What the norm of each head subtracts, and the factor after that: [heads, 1]. values: [heads, WIDTH]."""
    mean = 0.0
    if IS_LAYER_NORM:
        mean = tl.sum(values, 1)[:, None] / HEAD_DIM
        values = tl.where(is_there, values - mean, 0.0)
    return mean, tl.rsqrt(tl.sum(values * values, 1)[:, None] / HEAD_DIM + eps)


@triton.jit
def _of_all_heads(
    heads, count, eps, HEAD_DIM: tl.constexpr, IS_LAYER_NORM: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """The same of a norm over `count` heads in memory: one of each."""
    lanes = tl.arange(0, WIDTH)
    is_there = lanes < HEAD_DIM
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
    HAS_SCALES: tl.constexpr, HAS_VALUE_NORM: tl.constexpr, VALUES_ARE_KEYS: tl.constexpr, HEADS: tl.constexpr,
    WIDTH: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Programs of a token: first of its queries, then of keys, then of values, each with HEADS heads."""
    wait(IS_DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    of_queries: tl.constexpr = (NUM_HEADS + HEADS - 1) // HEADS
    of_keys: tl.constexpr = (NUM_KV_HEADS + HEADS - 1) // HEADS
    part = tl.program_id(1)
    is_query, is_value = part < of_queries, part >= of_queries + of_keys
    first = tl.where(is_query, 0, tl.where(is_value, of_queries + of_keys, of_queries))  # part of this kind
    heads = (part - first) * HEADS + tl.arange(0, HEADS)[:, None]
    count = tl.where(is_query, NUM_HEADS, NUM_KV_HEADS)
    half: tl.constexpr = ROTARY_DIM // 2
    lanes = tl.arange(0, WIDTH)[None, :]
    is_there = (heads < count) & (lanes < HEAD_DIM)
    if VALUES_ARE_KEYS:
        begin = tl.where(is_query, 0, NUM_HEADS)
    else:
        begin = tl.where(is_query, 0, tl.where(is_value, NUM_HEADS + NUM_KV_HEADS, NUM_HEADS))
    kind = qkv + token * stride + begin * HEAD_DIM
    source = kind + heads * HEAD_DIM
    slot = tl.load(slot_mapping + token)
    places = ((slot // BLOCK_SIZE * NUM_KV_HEADS + heads) * BLOCK_SIZE + slot % BLOCK_SIZE) * HEAD_DIM + lanes
    is_kept = (heads < count) & (lanes < tl.where(slot >= 0, HEAD_DIM, 0))
    if is_value:
        value = tl.load(source + lanes, mask=is_there, other=0.0).to(tl.float32)
        if HAS_VALUE_NORM:
            value *= _of_head(value, is_there, eps, HEAD_DIM, False)[1]
        tl.store(v_cache + places, as_stored(value * v_factor, v_cache), mask=is_kept)
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
            norm = q_norm if is_query else k_norm
            of_head = norm + lanes
            of_partner = norm + partners
            if HAS_OWN_WEIGHTS:
                of_head += heads * HEAD_DIM
                of_partner += heads * HEAD_DIM
            gains = tl.load(of_head, mask=is_there, other=0.0).to(tl.float32)
            if not IS_NORM_LAST:
                if IS_OVER_ALL_HEADS:
                    mean, scale = _of_all_heads(kind, count, eps, HEAD_DIM, IS_LAYER_NORM, WIDTH)
                else:
                    mean, scale = _of_head(own, is_there, eps, HEAD_DIM, IS_LAYER_NORM)
                own = (own - mean) * scale * gains
                other = (other - mean) * scale * tl.load(of_partner, mask=is_there, other=0.0).to(tl.float32)
        rotated = own
        if ROTARY_DIM > 0:
            angles = cos_sin + tl.load(positions + token) * ROTARY_DIM + pair
            cos = tl.load(angles, mask=lanes < ROTARY_DIM, other=1.0)
            sin = tl.load(angles + half, mask=lanes < ROTARY_DIM, other=0.0)
            rotated = own * cos + other * tl.where(is_first, -sin, sin)
        if HAS_NORMS and IS_NORM_LAST:
            mean, scale = _of_head(rotated, is_there, eps, HEAD_DIM, IS_LAYER_NORM)
            rotated = (rotated - mean) * scale * gains
        if is_query:
            if HAS_SCALES:
                rotated *= tl.load(query_scales + tl.load(positions + token))
            to = queries + (token * NUM_HEADS + heads) * HEAD_DIM + lanes
            tl.store(to, rotated.to(queries.dtype.element_ty), mask=is_there)
        else:
            tl.store(k_cache + places, as_stored(rotated * k_factor, k_cache), mask=is_kept)


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
    """Computes rope_and_store_reference; a token with a slot below 0, which is padding, is not stored."""
    _, cache_heads, block_size, head_dim = k_cache.shape
    num_parts = variant.num_parts(num_heads, num_kv_heads)
    if qkv.shape[1] < num_parts * head_dim or num_kv_heads not in (0, cache_heads):
        raise ValueError(f"qkv is {tuple(qkv.shape)} for {num_heads} and {num_kv_heads} heads of {head_dim}")
    has_own_weights = check_norms(q_norm, k_norm, num_heads, num_kv_heads, head_dim)
    queries = torch.empty(len(qkv), num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    heads = min(_HEADS, triton.next_power_of_2(max(num_heads, num_kv_heads)))
    parts = triton.cdiv(num_heads, heads) + 2 * triton.cdiv(num_kv_heads, heads)
    if len(qkv):
        _rope_and_store[(len(qkv), parts)](
            qkv, q_norm, q_norm if k_norm is None else k_norm, cos_sin, variant.query_scales, positions, slot_mapping,
            queries, k_cache, v_cache, eps,
            qkv.stride(0), 1 / variant.k_scale, 1 / variant.v_scale, NUM_HEADS=num_heads, NUM_KV_HEADS=cache_heads,
            HEAD_DIM=head_dim, ROTARY_DIM=0 if cos_sin is None else cos_sin.shape[1], BLOCK_SIZE=block_size,
            HAS_NORMS=q_norm is not None, HAS_OWN_WEIGHTS=has_own_weights, IS_LAYER_NORM=variant.is_layer_norm,
            IS_OVER_ALL_HEADS=variant.is_over_all_heads, IS_NORM_LAST=variant.is_norm_last,
            IS_INTERLEAVED=variant.is_interleaved, HAS_SCALES=variant.query_scales is not None,
            HAS_VALUE_NORM=variant.has_value_norm, VALUES_ARE_KEYS=variant.values_are_keys,
            HEADS=heads, WIDTH=triton.next_power_of_2(head_dim), num_warps=_WARPS, **dependent(),
        )  # fmt: skip
    return queries
