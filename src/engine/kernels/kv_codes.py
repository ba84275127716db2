"""Keys and values in 8 bits: each head of a token has integers from -127 to 127 and one float32 scale.

A block of a kv head has the codes of its tokens first, [block_size, D], then their scales, [block_size]. The cache is
an int8 tensor [num_blocks, num_kv_heads, block_size, D + KV_SCALE_BYTES], so whole blocks can be lent, shared and
copied like blocks of any other format.
"""

from __future__ import annotations

import torch

from ...model.sizes import KV_SCALE_BYTES

_LARGEST = 127
_SMALLEST_SCALE = 1e-30  # heads with a smaller one are stored as zeros: 1 / scale could overflow


def head_dim_of(cache: torch.Tensor) -> int:
    """Elements of a head in a cache of any format."""
    return cache.shape[3] - KV_SCALE_BYTES if cache.dtype == torch.int8 else cache.shape[3]


def codes_and_scales(cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of a contiguous int8 cache: [num_blocks, num_kv_heads, block_size, D]; in float32, [..., block_size]."""
    num_blocks, num_kv_heads, block_size, _ = cache.shape
    head_dim = head_dim_of(cache)
    blocks = cache.view(num_blocks, num_kv_heads, -1)
    codes = blocks[..., : block_size * head_dim].view(num_blocks, num_kv_heads, block_size, head_dim)
    return codes, blocks[..., block_size * head_dim :].view(torch.float32)


def views_by_token(cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Views of a contiguous cache of any format, whose [block, :, offset] together are what a token keeps there."""
    return codes_and_scales(cache) if cache.dtype == torch.int8 else (cache,)


def to_codes(heads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """heads: [..., D]. Returns int8 codes [..., D] and float32 scales [...]; not finite where a value is not."""
    wide = heads.float()
    scales = wide.abs().amax(-1) / _LARGEST + (wide * 0).sum(-1)
    inverses = torch.where(scales > _SMALLEST_SCALE, 1 / scales, 0)
    codes = (wide * inverses.unsqueeze(-1)).round().nan_to_num()
    return codes.to(torch.int8), scales


def store_heads(cache: torch.Tensor, block: torch.Tensor, offset: torch.Tensor, heads: torch.Tensor) -> None:
    """Writes heads, [T, num_kv_heads, D], of the tokens at `offset` in blocks `block`, to a cache of codes."""
    codes, scales = codes_and_scales(cache)
    codes[block, :, offset], scales[block, :, offset] = to_codes(heads)


def blocks_in(cache: torch.Tensor, blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The contents of blocks of a cache of any format: [len(blocks), num_kv_heads, block_size, D] in `dtype`."""
    if cache.dtype != torch.int8:
        return cache[blocks].to(dtype)
    codes, scales = codes_and_scales(cache[blocks])
    return (codes.float() * scales.unsqueeze(-1)).to(dtype)
