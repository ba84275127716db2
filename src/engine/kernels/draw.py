"""One token per row of logits: the best one, or one drawn by temperature and min_p over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .noise import exponential_noise

Draw = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def draw_reference(
    logits: torch.Tensor, temperature: torch.Tensor, min_p: torch.Tensor, keys: torch.Tensor
) -> torch.Tensor:
    """Draws with probability softmax(logits / temperature), among tokens at least min_p times as likely as the best.

    Args:
        logits: [R, V] in any float type; arithmetic in float32.
        temperature: [R] float32; 0 takes the first of the largest logits.
        min_p: [R] float32, 0 for off.
        keys: [R, 2] int32 of `noise.row_keys`.
    Returns:
        [R] int64.
    """
    token_ids = torch.arange(logits.shape[1], device=logits.device)[None]
    weights = softmax_weights(logits, temperature, min_p)
    return (weights / exponential_noise(keys, token_ids)).argmax(-1)


def softmax_weights(logits: torch.Tensor, temperature: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Probabilities up to a factor, 1 for the best token, 0 where min_p forbids; arguments as above.

    Returns [R, V] float32. At temperature 0 only the first of the largest has weight.
    """
    values = logits.float()
    weights = ((values - values.amax(-1, keepdim=True)) / temperature[:, None]).exp()
    weights = weights.masked_fill(weights < min_p[:, None], 0.0)
    first = torch.nn.functional.one_hot(values.argmax(-1), values.shape[1])
    return torch.where(temperature[:, None] == 0, first.float(), weights)
