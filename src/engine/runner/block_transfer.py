"""Copies of KV cache blocks: from a store to the cache before a step, and to the store after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from ..core.block_store import BlockStore
from ..step.plan import BlockCopy, BlockLoad
from .kv_cache import KVCache
from .loaded_model import LoadedModel


class BlockTransfer(Protocol):
    def load(self, loads: Sequence[BlockLoad]) -> None:
        """Copy blocks to the cache before a step. If two loads have the same block, the last one stays.

        Raises RuntimeError if a content has another size than a block in each group.
        """
        ...

    def save(self, saves: Sequence[BlockCopy]) -> None:
        """Copy blocks to the store after a step."""
        ...


TransferOf = Callable[[LoadedModel], BlockTransfer]


def host_transfer(store: BlockStore | None) -> TransferOf | None:
    """Make the transfer of a model that one process computes; None without a store."""
    return None if store is None else lambda loaded: HostTransfer(loaded.cache, store)


class HostTransfer:
    """The transfer of a cache in host memory: copies are done at once."""

    def __init__(self, cache: KVCache, store: BlockStore) -> None:
        self._cache, self._store = cache, store

    def load(self, loads: Sequence[BlockLoad]) -> None:
        blocks = self._cache.blocks
        for load in loads:
            content = torch.frombuffer(load.content, dtype=torch.uint8)
            content = content.view(len(load.block_ids), blocks.shape[0], blocks.shape[2])
            for block_id, own in zip(load.block_ids, content, strict=True):
                blocks[:, block_id] = own

    def save(self, saves: Sequence[BlockCopy]) -> None:
        blocks = self._cache.blocks
        for save in saves:
            content = torch.stack([blocks[:, block_id] for block_id in save.block_ids])
            self._store.save(save.block_hash, content.numpy().reshape(-1).data, is_for_others=save.is_for_others)
