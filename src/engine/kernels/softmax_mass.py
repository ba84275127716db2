"""Largest logit and sum of weights of each row: what a nucleus or a log-probability is measured against."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .draw import softmax_weights

SoftmaxMass = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def softmax_mass_reference(
    logits: torch.Tensor, temperature: torch.Tensor, min_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums exp((logit - largest) / temperature) over the tokens that min_p allows.

    Args:
        logits: [R, V] in any float type; arithmetic in float32.
        temperature: [R] float32, greater than 0.
        min_p: [R] float32; tokens less than min_p times as likely as the best are left out.
    Returns:
        largest [R] float32 and mass [R] float64.
    """
    mass = softmax_weights(logits, temperature, min_p).sum(-1, dtype=torch.float64)
    return logits.amax(-1).float(), mass
