"""One token per row of logits: the best one, or one drawn by temperature and min_p over the whole vocabulary."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from .cpu.library import INT64, POINTER, CpuLibrary, pointer
from .noise import exponential_noise
from .penalise import Penalties, penalties_in_c

Draw = Callable[..., torch.Tensor]  # as the reference, and `penalties=` of penalise.py


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
        [R] int64, -1 for rows where no logit is a number above -inf.
    """
    token_ids = torch.arange(logits.shape[1], device=logits.device)[None]
    weights = softmax_weights(logits, temperature, min_p)
    return only_from_numbers(logits, (weights / exponential_noise(keys, token_ids)).argmax(-1))


def only_from_numbers(logits: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """[R] int64: what was drawn from each row [R, V], -1 where no logit is a number above -inf."""
    return torch.where((logits > -torch.inf).any(-1), drawn, -1)


def softmax_weights(logits: torch.Tensor, temperature: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Probabilities up to a factor, 1 for the best token, 0 where min_p forbids; arguments as above.

    Returns [R, V] float32. At temperature 0 only the first of the largest has weight.
    """
    values = logits.float()
    weights = ((values - values.amax(-1, keepdim=True)) / temperature[:, None]).exp()
    weights = weights.masked_fill(weights < min_p[:, None], 0.0)
    first = torch.nn.functional.one_hot(values.argmax(-1), values.shape[1])
    return torch.where(temperature[:, None] == 0, first.float(), weights)


def draw_cpu(library: CpuLibrary) -> Draw:
    return drawing(library, "draw", num_columns=2)


def drawing(library: CpuLibrary, name: str, num_columns: int) -> Callable[..., torch.Tensor]:
    """The library's op of that name, which draws by logits, so many columns of one float32 per row, and keys."""
    arguments = [POINTER] * (num_columns + 4) + [INT64] * 2
    calls = {dtype: library.op(name, dtype, arguments) for dtype in (torch.float32, torch.bfloat16)}

    def draw(logits: torch.Tensor, *columns_and_keys: torch.Tensor, penalties: Penalties | None = None) -> torch.Tensor:
        rows, vocab_size = logits.shape
        *columns, keys = columns_and_keys
        if any(len(each) != rows for each in columns_and_keys):
            raise ValueError(f"{rows} rows, but columns and keys for {[len(each) for each in columns_and_keys]}")
        logits, in_c = logits.contiguous(), penalties_in_c(penalties, rows, vocab_size)
        token_ids = torch.empty(rows, dtype=torch.int64)
        calls[logits.dtype](
            pointer(logits, logits.dtype),
            *(pointer(each, torch.float32) for each in columns),
            pointer(keys, torch.int32),
            ctypes.addressof(in_c) if in_c else None,
            token_ids.data_ptr(),
            rows,
            vocab_size,
        )
        return token_ids

    return draw
