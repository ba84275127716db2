"""Decode context parallel: ranks with the same keys and values keep different tokens of each sequence.

Each attends with all heads of its group to the tokens that it keeps (runner/context_part.py), and the results are added
with the weights that follow from their logarithms of totals (docs/design/decisions/0043).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ..kernels import AttentionStep, AttentionVariant, KernelSet
from ..kernels.attention_variant import PLAIN
from .group import Ranks


def attending_in_parts(kernels: KernelSet, ranks: Ranks, num_parts: int) -> KernelSet:
    """The kernels, whose attention is over the tokens of `num_parts` consecutive ranks.

    Its steps are ContextPart's, and its queries and results the heads of this rank.
    """
    first = ranks.rank // num_parts * num_parts
    group = range(first, first + num_parts)

    def of_group(q: torch.Tensor) -> torch.Tensor:
        """The queries of all heads of the group, in its order."""
        num_tokens, num_heads, width = q.shape
        return ranks.gather_in_group(q.flatten(1), group).view(num_tokens, num_parts * num_heads, width)

    def paged_attention(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        step: AttentionStep,
        scale: float,
        variant: AttentionVariant = PLAIN,
    ) -> torch.Tensor:
        queries = of_group(q)
        part, log_totals = kernels.attend_part(queries, k_cache, v_cache, step, scale, variant)
        return ranks.merge_parts(part.view(queries.shape), log_totals, group).flatten(1)

    def latent_attention(
        q: torch.Tensor,
        cache: torch.Tensor,
        step: AttentionStep,
        scale: float,
        rank: int,
        sinks: torch.Tensor | None = None,
        window: int | None = None,
    ) -> torch.Tensor:
        assert (sinks, window) == (None, None), "context_parallel_problem refuses them"
        part, log_totals = kernels.attend_latent_part(of_group(q), cache, step, scale, rank)
        return ranks.merge_parts(part, log_totals, group)

    return replace(kernels, paged_attention=paged_attention, latent_attention=latent_attention)
