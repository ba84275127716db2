"""One token per row of logits, drawn from its nucleus: the best tokens that together have the share top_p."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .cpu.library import CpuLibrary
from .draw import drawing, only_from_numbers, softmax_weights
from .noise import exponential_noise

DrawNucleus = Callable[..., torch.Tensor]  # as the reference, and `penalties=` of penalise.py


def draw_nucleus_reference(
    logits: torch.Tensor, temperature: torch.Tensor, min_p: torch.Tensor, top_p: torch.Tensor, keys: torch.Tensor
) -> torch.Tensor:
    """Draws as draw.py does, among the first tokens, best first and of equals the lowest id, whose mass reaches top_p.

    Args:
        logits: [R, V] in any float type; arithmetic in float32, sums of weights in float64.
        temperature: [R] float32, greater than 0.
        min_p: [R] float32; tokens less than min_p times as likely as the best have no mass.
        top_p: [R] float32, greater than 0, less than 1.
        keys: [R, 2] int32 of `noise.row_keys`.
    Returns:
        [R] int64, -1 for rows where no logit is a number above -inf.

    Source: Holtzman et al., arXiv:1904.09751, section 3.1.
    """
    drawn = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    for row in range(len(logits)):  # one at a time: sorting a vocabulary is fast while it stays in a core's cache
        part = slice(row, row + 1)
        weights = softmax_weights(logits[part], temperature[part], min_p[part])
        _, order = logits[part].float().sort(dim=-1, descending=True, stable=True)
        weights = weights.gather(1, order)
        reached = weights.cumsum(-1, dtype=torch.float64)
        is_cut = reached - weights >= top_p[part, None] * reached[:, -1:]  # what comes before is already enough
        is_cut[:, 0] = False
        weights.masked_fill_(is_cut, 0.0)
        best = (weights / exponential_noise(keys[part], order)).argmax(-1, keepdim=True)
        drawn[part] = order.gather(1, best)[:, 0]
    return only_from_numbers(logits, drawn)


def draw_nucleus_cpu(library: CpuLibrary) -> DrawNucleus:
    return drawing(library, "draw_nucleus", num_columns=3)
