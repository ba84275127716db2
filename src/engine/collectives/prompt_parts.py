"""Prefill context parallel: ranks with the same weights compute different tokens of a step.

Each writes the keys and values of its own tokens, and before it attends gets from the others those of theirs, as they
are in the cache: in its number format, with scales if it has them (docs/design/decisions/0051).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch

from ..kernels import AttentionStep, AttentionVariant, KernelSet
from ..kernels.attention_variant import PLAIN
from ..kernels.kv_codes import views_by_token


class Gathering(Protocol):
    """The ranks that compute different tokens."""

    rank: int
    size: int

    def of_all(self, x: torch.Tensor) -> torch.Tensor:
        """x: of any shape. Returns [ranks, *shape], the tensors of all ranks."""
        ...


def attending_to_all(kernels: KernelSet, ranks: Gathering) -> KernelSet:
    """The kernels, whose attention first gets what other ranks have written, where the step has `by_rank`."""

    def paged_attention(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        step: AttentionStep,
        scale: float,
        variant: AttentionVariant = PLAIN,
    ) -> torch.Tensor:
        fetch(ranks, step, k_cache, v_cache)
        return kernels.paged_attention(q, k_cache, v_cache, step, scale, variant)

    def latent_attention(
        q: torch.Tensor,
        cache: torch.Tensor,
        step: AttentionStep,
        scale: float,
        rank: int,
        sinks: torch.Tensor | None = None,
        window: int | None = None,
    ) -> torch.Tensor:
        fetch(ranks, step, cache)
        return kernels.latent_attention(q, cache, step, scale, rank, sinks, window)

    return replace(kernels, paged_attention=paged_attention, latent_attention=latent_attention)


def fetch(ranks: Gathering, step: AttentionStep, *caches: torch.Tensor) -> None:
    """Writes what the other ranks have written in this step. caches: [num_blocks, heads, block_size, elements] each.

    Layers that read the same caches find it done.
    """
    address = caches[0].data_ptr()
    if step.by_rank is None or address in step.by_rank.fetched:
        return
    step.by_rank.fetched.add(address)
    slots = step.by_rank.slots
    block, offset = (part.clamp(min=0) for part in (slots // caches[0].shape[2], slots % caches[0].shape[2]))
    views = [view for cache in caches for view in views_by_token(cache)]
    own = [view[block[ranks.rank], :, offset[ranks.rank]].flatten(1).view(torch.uint8) for view in views]
    found = torch.split(ranks.of_all(torch.cat(own, 1)), [each.shape[1] for each in own], dim=2)
    for rank in range(ranks.size):
        if rank == ranks.rank:
            continue
        is_token = slots[rank] >= 0
        at = block[rank][is_token], offset[rank][is_token]
        for view, given in zip(views, found, strict=True):
            kept = given[rank][is_token].view(view.dtype)
            view[at[0], :, at[1]] = kept.view(len(kept), view.shape[1], *view.shape[3:])
