"""One token per row of logits that cover a part of the vocabulary, with the noise of the whole vocabulary.

A network that drafts may have logits for fewer tokens than the model. With the model's noise for each of them, it
samples the token that the model samples as often as the two distributions allow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from .cpu.library import INT64, POINTER, CpuLibrary, pointer
from .noise import exponential_noise
from .sample_tokens import softmax_weights


class Choice(NamedTuple):
    """How each of R rows is sampled."""

    temperature: torch.Tensor  # [R] float32; 0 takes the first of the largest logits
    min_p: torch.Tensor  # [R] float32; 0: off
    top_p: torch.Tensor  # [R] float32; 1: off
    top_k: torch.Tensor  # [R] int32; 0 or less: off


SampleAmong = Callable[[torch.Tensor, Choice, torch.Tensor, torch.Tensor], torch.Tensor]


def sample_among_reference(
    logits: torch.Tensor, choice: Choice, keys: torch.Tensor, token_ids: torch.Tensor
) -> torch.Tensor:
    """Sample as the ops for a whole vocabulary do where all other tokens have logits of -inf.

    Args:
        logits: [R, N] in any float type; arithmetic in float32.
        keys: [R, 2] int32 of `noise.row_keys`.
        token_ids: [N] int32, the token of each column. Among equal logits the first column is the better one.
    Returns:
        [R] int64 ids of tokens: the first of `token_ids` for a row whose logits are all NaN or -inf.
    """
    order = logits.float().argsort(dim=-1, descending=True, stable=True)
    weights = softmax_weights(logits, choice.temperature, choice.min_p).nan_to_num(0.0).gather(1, order)
    top_k = torch.where(choice.top_k > 0, choice.top_k, len(token_ids))
    weights = weights.masked_fill(torch.arange(len(token_ids), device=logits.device) >= top_k[:, None], 0.0)
    reached, top_p = weights.cumsum(-1, dtype=torch.float64), choice.top_p[:, None]
    is_cut = (reached - weights >= top_p * reached[:, -1:]) & (top_p < 1)  # the tokens before it reach top_p
    is_cut[:, 0] = False
    own_ids = token_ids.to(torch.int64)[order]
    chosen = (weights.masked_fill(is_cut, 0.0) / exponential_noise(keys, own_ids)).argmax(-1, keepdim=True)
    is_valid = (logits > -torch.inf).any(-1)
    return torch.where(is_valid, own_ids.gather(1, chosen)[:, 0], token_ids[0].to(torch.int64))


def sample_among_cpu(library: CpuLibrary) -> SampleAmong:
    """Return the op, which can be captured."""
    arguments = [*[POINTER] * 8, INT64, INT64]
    calls = {dtype: library.op("sample_among", dtype, arguments) for dtype in (torch.float32, torch.bfloat16)}
    empty = library.memory.empty

    def sample_among(logits: torch.Tensor, choice: Choice, keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        rows, num_tokens = logits.shape
        if any(len(each) != rows for each in (*choice, keys)) or len(token_ids) != num_tokens:
            raise ValueError(f"logits are {rows} x {num_tokens}, but {len(keys)} keys and {len(token_ids)} tokens")
        *floats, top_k = choice
        chosen = empty(rows, dtype=torch.int64)
        calls[logits.dtype](
            pointer(logits, logits.dtype),
            *(pointer(each, torch.float32) for each in floats),
            pointer(top_k, torch.int32),
            pointer(keys, torch.int32),
            pointer(token_ids, torch.int32),
            chosen.data_ptr(),
            rows,
            num_tokens,
        )
        return chosen

    return sample_among
