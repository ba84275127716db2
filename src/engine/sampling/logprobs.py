"""Log-probabilities of sampled and of prompt tokens, or their logits if the deployment shows logits."""

from __future__ import annotations

import torch

from ..api import TokenLogprobs
from ..kernels import KernelSet


def token_logprobs(
    logits: torch.Tensor, token_ids: torch.Tensor, counts: list[int], kernels: KernelSet, *, normalise: bool = True
) -> list[TokenLogprobs]:
    """The log-probabilities of each row.

    Args:
        logits: [R, V] in any float type: the model's own, or the logits that tokens are sampled from.
        token_ids: [R] int64, the token at each row's position.
        counts: for each row, how many of the best tokens follow the token itself.
        normalise: return log-probabilities; False returns logits.
    """
    normaliser = logits.new_zeros(len(counts), 1, dtype=torch.float32)
    if normalise:
        largest, mass = kernels.softmax_mass(logits, torch.ones_like(normaliser[:, 0]), normaliser[:, 0])
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
