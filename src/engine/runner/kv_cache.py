"""KVCache: the memory behind the block ids, reserved once and touched at start, so no step pays for a first touch."""

from __future__ import annotations

import mmap

import torch

from ..layers.attention import LayerCache

_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


class KVCache:
    """Keys and values of every layer, [num_blocks, num_kv_heads, block_size, head_dim] each, in one allocation."""

    def __init__(
        self, num_layers: int, num_blocks: int, num_kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        """Raises MemoryError, with both numbers, if the machine will not give so much."""
        shape = (num_layers, 2, num_blocks, num_kv_heads, block_size, head_dim)
        self.num_bytes = torch.Size(shape).numel() * dtype.itemsize
        try:
            # Private: shared memory gets no huge pages on most machines.
            memory = mmap.mmap(-1, self.num_bytes, **_PRIVATE)
        except OSError as error:
            raise MemoryError(f"KV cache: {num_blocks} blocks need {self.num_bytes} bytes: {error.strerror}") from error
        if hasattr(mmap, "MADV_HUGEPAGE"):  # attention reads at random: small pages cost it address translations
            memory.madvise(mmap.MADV_HUGEPAGE)
        arena = torch.frombuffer(memory, dtype=dtype)
        arena.zero_()
        whole = arena.view(shape)
        self.layers: list[LayerCache] = [(whole[index, 0], whole[index, 1]) for index in range(num_layers)]
