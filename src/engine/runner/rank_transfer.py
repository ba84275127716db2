"""RankTransfer: copies of KV blocks of a model that several ranks compute, whose store rank 0 has.

A stored block is what one process with all heads would store, if all layers divide their heads in the same way, so
that engines of any number of ranks read each other's blocks; else it has the parts of all ranks, one after the other
(docs/design/decisions/0052).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import torch

from ...config import Resolved
from ..collectives import Ranks
from ..collectives.gloo import GlooRanks
from ..core.block_store import BlockStore
from ..step.plan import BlockCopy, BlockLoad
from .block_transfer import BlockTransfer, TransferOf
from .kv_cache import KVCache
from .loaded_model import LoadedModel


def rank_transfer(resolved: Resolved, store: BlockStore | None = None) -> TransferOf:
    """store: as of RankTransfer."""
    holders, _ = resolved.block_holders

    def transfer_of(loaded: LoadedModel) -> BlockTransfer:
        return RankTransfer(loaded.cache, holders, loaded.ranks, loaded.prompt_ranks, store)

    return transfer_of


class RankTransfer:
    """Implements BlockTransfer on every rank. All ranks have the block ids of the same plan."""

    def __init__(
        self,
        cache: KVCache,
        holders: Sequence[int],
        ranks: Ranks | None,
        prompt_ranks: GlooRanks | None,
        store: BlockStore | None = None,
    ) -> None:
        """
        holders: ranks whose parts are a stored block, in its order; those between two of them have what the first has.
        ranks: that have the parts of the same weights; None if this one has all.
        prompt_ranks: that have the same part, and compute other tokens; the ranks of the first group save.
        store: of rank 0; None on others.
        """
        self._cache, self._holders, self._store = cache, holders, store
        self._ranks, self._prompt_ranks = ranks, prompt_ranks
        self._is_in_first = prompt_ranks is None or not prompt_ranks.rank
        self._part = 0 if ranks is None else bisect_right(holders, ranks.rank) - 1

    def load(self, loads: Sequence[BlockLoad]) -> None:
        """See BlockTransfer."""
        blocks = self._cache.blocks
        for load in loads:
            own = self._own_part(load) if self._is_in_first else self._empty(load.block_ids)
            if self._prompt_ranks is not None:
                self._prompt_ranks.from_rank(_numbers(own), 0)
            for block_id, content in zip(load.block_ids, own, strict=True):
                blocks[:, block_id] = content

    def save(self, saves: Sequence[BlockCopy]) -> None:
        """See BlockTransfer."""
        if not self._is_in_first:
            return
        for save in saves:
            parts = self._parts(torch.stack([self._cache.blocks[:, block_id] for block_id in save.block_ids]))
            if self._store is not None:
                content = torch.stack(parts, 2).numpy().reshape(-1).data
                self._store.save(save.block_hash, content, is_for_others=save.is_for_others)

    def _own_part(self, load: BlockLoad) -> torch.Tensor:
        """This rank's part of the block that rank 0 has, [groups, tensors, bytes]."""
        own = self._empty(load.block_ids)
        shape = *own.shape[:2], len(self._holders), own.shape[2]
        if self._store is None:
            whole = own.new_empty(shape)
        else:
            whole = torch.frombuffer(bytearray(load.content), dtype=torch.uint8).view(shape)
        if self._ranks is not None:
            self._ranks.from_rank(_numbers(whole), 0)
        return whole[:, :, self._part].contiguous()

    def _parts(self, own: torch.Tensor) -> list[torch.Tensor]:
        """The parts of all holders. They are complete on rank 0 only."""
        parts = [own if holder == self._part_of_own else torch.empty_like(own) for holder in self._holders]
        for holder, part in zip(self._holders, parts, strict=True):
            if holder and self._ranks is not None:
                self._ranks.from_rank(_numbers(part), holder)
        return parts

    @property
    def _part_of_own(self) -> int:
        """The holder of what this rank has."""
        return self._holders[self._part]

    def _empty(self, block_ids: Sequence[int]) -> torch.Tensor:
        blocks = self._cache.blocks
        return blocks.new_empty(len(block_ids), blocks.shape[0], blocks.shape[2])


def _numbers(content: torch.Tensor) -> torch.Tensor:
    return content.view(-1).view(torch.int32)
