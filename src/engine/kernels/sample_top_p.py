"""One token per row of logits, sampled from its nucleus: the best tokens whose probabilities sum to top_p."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .cpu.library import CpuLibrary
from .noise import exponential_noise
from .sample_tokens import invalid_rows_as_none, sampling_op, softmax_weights

SampleTopP = Callable[..., torch.Tensor]  # as the reference, and `penalties=` of penalise.py


def sample_top_p_reference(
    logits: torch.Tensor, temperature: torch.Tensor, min_p: torch.Tensor, top_p: torch.Tensor, keys: torch.Tensor
) -> torch.Tensor:
    """Samples as sample_tokens.py does, from the nucleus: the shortest list of best tokens whose mass reaches top_p.

    Of equal logits the token with the lower id is better.

    Args:
        logits: [R, V] in any float type; arithmetic in float32, sums of weights in float64.
        temperature: [R] float32, greater than 0.
        min_p: [R] float32; tokens less than min_p times as likely as the best have no mass.
        top_p: [R] float32, greater than 0, less than 1.
        keys: [R, 2] int32 of `noise.row_keys`.
    Returns:
        [R] int64, -1 for rows whose logits are all NaN or -inf.

    Source: Holtzman et al., arXiv:1904.09751, section 3.1.
    """
    sampled = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    for row in range(len(logits)):  # one at a time: sorting a vocabulary is fast while it fits in a core's cache
        part = slice(row, row + 1)
        weights = softmax_weights(logits[part], temperature[part], min_p[part])
        _, order = logits[part].float().sort(dim=-1, descending=True, stable=True)
        weights = weights.gather(1, order)
        reached = weights.cumsum(-1, dtype=torch.float64)
        is_cut = reached - weights >= top_p[part, None] * reached[:, -1:]  # the tokens before it reach top_p
        is_cut[:, 0] = False
        weights.masked_fill_(is_cut, 0.0)
        best = (weights / exponential_noise(keys[part], order)).argmax(-1, keepdim=True)
        sampled[part] = order.gather(1, best)[:, 0]
    return invalid_rows_as_none(logits, sampled)


def sample_top_p_cpu(library: CpuLibrary) -> SampleTopP:
    return sampling_op(library, "sample_top_p", num_columns=3)
