"""Between the QKV projection and attention: head norms, rotary embedding, keys and values into the cache."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .cpu.library import FLOAT, INT, INT64, POINTER, CpuLibrary, pointer

RopeAndStore = Callable[
    [
        torch.Tensor,  # qkv
        torch.Tensor | None,  # q_norm
        torch.Tensor | None,  # k_norm
        float,  # eps
        torch.Tensor,  # cos_sin
        torch.Tensor,  # positions
        torch.Tensor,  # slot_mapping
        torch.Tensor,  # k_cache
        torch.Tensor,  # v_cache
        int,  # num_heads
        int,  # num_kv_heads
    ],
    torch.Tensor,
]


def rope_and_store_reference(
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
    """Norms and rotates queries and keys, and writes keys and values to their slots.

    Args:
        qkv: [T, (num_heads + 2 * num_kv_heads) * D]: queries, keys, values.
        q_norm, k_norm: [D], RMSNorm weights of one head, or None for a model without head norms.
        eps: of the head norms.
        cos_sin: [max_position, R] float32, cosines in the first half and sines in the second; R is even and at most D.
            If R < D, only the first R elements of a head are rotated.
        positions: [T] int64, the tokens' positions in their sequences.
        slot_mapping: [T] int64, block_id * block_size + offset.
        k_cache, v_cache: [num_blocks, num_kv_heads, block_size, D], written in place. In float8_e4m3fn values are
            clipped to its range, -448 to 448.
    Returns:
        queries [T, num_heads, D] in qkv's dtype; arithmetic in float32.

    The rotated pairs are (i, i + R // 2): the layout of GPT-NeoX and of every Hugging Face checkpoint.
    Source: RoFormer, arXiv:2104.09864, section 3.4.2.
    """
    head_dim, block_size = k_cache.shape[3], k_cache.shape[2]
    heads = qkv.view(qkv.shape[0], num_heads + 2 * num_kv_heads, head_dim)
    queries, keys, values = torch.split(heads, [num_heads, num_kv_heads, num_kv_heads], dim=1)
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)  # [T, 1, R // 2]
    block, offset = slot_mapping // block_size, slot_mapping % block_size
    k_cache[block, :, offset] = _to_cache_dtype(_norm_and_rotate(keys, k_norm, eps, cos, sin), k_cache.dtype)
    v_cache[block, :, offset] = _to_cache_dtype(values, v_cache.dtype)
    return _norm_and_rotate(queries, q_norm, eps, cos, sin).to(qkv.dtype)


def _norm_and_rotate(
    heads: torch.Tensor, norm: torch.Tensor | None, eps: float, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    heads = heads.float()
    if norm is not None:
        heads = heads * torch.rsqrt(heads.pow(2).mean(-1, keepdim=True) + eps) * norm.float()
    half = cos.shape[-1]
    first, second, rest = torch.split(heads, [half, half, heads.shape[-1] - 2 * half], dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def _to_cache_dtype(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.float8_e4m3fn:  # it has no infinity: torch's result for larger values depends on its version
        largest = torch.finfo(dtype).max
        values = values.clamp(-largest, largest)
    return values.to(dtype)


def rope_and_store_cpu(library: CpuLibrary, dtype: torch.dtype) -> RopeAndStore:
    """For heads whose width is a multiple of 16, at most 512."""
    empty = library.memory.empty
    call = library.op("rope_and_store", dtype, [POINTER] * 9 + [INT64] + [INT] * 5 + [FLOAT])

    def rope_and_store(
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
        num_tokens = qkv.shape[0]
        block_size, head_dim = k_cache.shape[2], k_cache.shape[3]
        if qkv.shape[1] != (num_heads + 2 * num_kv_heads) * head_dim or k_cache.shape[1] != num_kv_heads:
            raise ValueError(f"qkv is {tuple(qkv.shape)} for {num_heads} + 2 * {num_kv_heads} heads of {head_dim}")
        queries = empty(num_tokens, num_heads, head_dim, dtype=dtype)
        call(
            pointer(qkv, dtype),
            None if q_norm is None else pointer(q_norm, dtype),
            None if k_norm is None else pointer(k_norm, dtype),
            pointer(cos_sin, torch.float32),
            pointer(positions, torch.int64),
            pointer(slot_mapping, torch.int64),
            queries.data_ptr(),
            pointer(k_cache, dtype),
            pointer(v_cache, dtype),
            num_tokens,
            num_heads,
            num_kv_heads,
            head_dim,
            cos_sin.shape[1],
            block_size,
            eps,
        )
        return queries

    return rope_and_store
