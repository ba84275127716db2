"""The rows of the tables of n-grams that belong to each token: hashes of its id and of the ids before it.

Plain torch on every device: a few integers for each token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class NGramHashes:
    """The hashes of n-grams of 2 tokens, then those of 3, and so on."""

    multipliers: torch.Tensor  # [longest n-gram] int64, of the ids by their distance
    sizes: torch.Tensor  # [hashes] int64, rows of the table of each
    firsts: torch.Tensor  # [hashes] int64, its first row
    end_id: int  # no n-gram reaches over it


NGramRows = Callable[[torch.Tensor, torch.Tensor, NGramHashes], torch.Tensor]  # the arguments of ngram_rows_reference


def ngram_rows_reference(token_ids: torch.Tensor, earlier: torch.Tensor, hashes: NGramHashes) -> torch.Tensor:
    """A hash is the bitwise exclusive or of the products of ids and multipliers, modulo the rows of its table.

    Ids before the beginning of the sequence, and those at and before an `end_id` among the earlier ones, count as
    `end_id`.

    Args:
        token_ids: [T] int64.
        earlier: [longest n-gram - 1, T] int64, the ids at distance 1, 2, ...; -1 before the beginning.
    Returns:
        [T, hashes] int64.
    """
    mixed = token_ids * hashes.multipliers[0]
    ends = torch.full_like(token_ids, hashes.end_id)
    is_ended = torch.zeros_like(token_ids, dtype=torch.bool)
    by_length = []
    for distance, ids in enumerate(earlier, 1):
        is_ended = is_ended | (ids < 0) | (ids == hashes.end_id)
        mixed = mixed ^ (torch.where(is_ended, ends, ids) * hashes.multipliers[distance])
        by_length.append(mixed)
    heads = len(hashes.sizes) // len(by_length)
    each = torch.stack(by_length, 1).repeat_interleave(heads, 1)
    return torch.remainder(each, hashes.sizes) + hashes.firsts
