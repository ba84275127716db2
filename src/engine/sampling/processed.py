"""The logits of the distribution that a token is sampled from, for `model.logprobs_mode: processed_...`.

The sampler itself never computes them for the whole vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch

from .sampling_table import SamplingTable, Slots


def processed_logits(logits: torch.Tensor, table: SamplingTable, slots: Slots) -> torch.Tensor:
    """Temperature and the cuts of min_p, top_k and top_p, in this order.

    Args:
        logits: [R, V] float32, with processors, bias and penalties.
        slots: [R].
    Returns:
        [R, V] float32, -inf where a token cannot be sampled. Greedy rows are returned unchanged.
    """
    rows = np.flatnonzero(~table.is_greedy[slots])
    if not len(rows):
        return logits

    def column(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values[slots[rows]]).to(logits.device)[:, None]

    index = torch.from_numpy(rows).to(logits.device)
    scaled, order = (logits[index] / column(table.temperature)).sort(stable=True, dim=-1, descending=True)
    weights = (scaled - scaled[:, :1]).exp()
    is_cut = weights < column(table.min_p)
    top_k = column(table.top_k)
    is_cut |= (torch.arange(scaled.shape[1], device=logits.device) >= top_k) & (top_k > 0)
    weights = weights.masked_fill(is_cut, 0.0)
    reached = weights.cumsum(-1, dtype=torch.float64)
    top_p = column(table.top_p)
    is_cut |= (reached - weights >= top_p * reached[:, -1:]) & (top_p < 1)  # the tokens before it reach top_p
    is_cut[:, 0] = False
    result = logits.clone()
    result[index] = torch.empty_like(scaled).scatter_(1, order, scaled.masked_fill(is_cut, -torch.inf))
    return result
