"""Log-probabilities of drawn and of prompt tokens, from the model's raw logits."""

from __future__ import annotations

import torch

from ..api import TokenLogprobs
from ..kernels import KernelSet


def token_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, counts: list[int], kernels: KernelSet
) -> list[TokenLogprobs]:
    """What `logprobs` asks for, row by row.

    Args:
        logits: [R, V] in any float type, before penalties, bias and temperature.
        token_ids: [R] int64, the token at each row's position.
        counts: for each row, how many of the best tokens follow the token itself.
    """
    rows = len(counts)
    ones, zeros = logits.new_ones(rows, dtype=torch.float32), logits.new_zeros(rows, dtype=torch.float32)
    largest, mass = kernels.softmax_mass(logits, ones, zeros)
    normaliser = (largest + mass.log())[:, None]
    own = logits.gather(1, token_ids[:, None]).float()
    ranks = (kernels.count_above(logits, own[:, 0].contiguous()) + 1).tolist()
    own_ids, own_logprobs = token_ids.tolist(), (own - normaliser).squeeze(1).tolist()
    top_values, top_ids = kernels.top_tokens(logits, min(max(1, *counts), logits.shape[1]))
    ids, logprobs = top_ids.tolist(), (top_values - normaliser).tolist()
    return [
        TokenLogprobs([own_ids[row], *ids[row][:count]], [own_logprobs[row], *logprobs[row][:count]], ranks[row])
        for row, count in enumerate(counts)
    ]
