"""One token per row of logits: the best one, or one sampled with temperature and min_p from the whole vocabulary."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from .cpu.library import INT64, POINTER, CpuLibrary, pointer
from .noise import exponential_noise
from .penalise import Penalties, penalties_in_c

SampleTokens = Callable[..., torch.Tensor]  # as the reference, and `penalties=` of penalise.py


def sample_tokens_reference(
    logits: torch.Tensor, temperature: torch.Tensor, min_p: torch.Tensor, keys: torch.Tensor
) -> torch.Tensor:
    """Samples with probability softmax(logits / temperature), among tokens at least min_p times as likely as the best.

    Args:
        logits: [R, V] in any float type; arithmetic in float32.
        temperature: [R] float32; 0 takes the first of the largest logits.
        min_p: [R] float32, 0 for off.
        keys: [R, 2] int32 of `noise.row_keys`.
    Returns:
        [R] int64, -1 for rows whose logits are all NaN or -inf.
    """
    token_ids = torch.arange(logits.shape[1], device=logits.device)[None]
    weights = softmax_weights(logits, temperature, min_p)
    return invalid_rows_as_none(logits, (weights / exponential_noise(keys, token_ids)).argmax(-1))


def invalid_rows_as_none(logits: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
    """[R] int64: the sampled tokens, -1 for rows of logits [R, V] that are NaN or -inf everywhere."""
    return torch.where((logits > -torch.inf).any(-1), sampled, -1)


def softmax_weights(logits: torch.Tensor, temperature: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Probabilities up to a factor: 1 for the best token, 0 for tokens that min_p excludes. Arguments as above.

    Returns [R, V] float32. At temperature 0 only the first of the largest has weight.
    """
    values = logits.float()
    weights = ((values - values.amax(-1, keepdim=True)) / temperature[:, None]).exp()
    weights = weights.masked_fill(weights < min_p[:, None], 0.0)
    first = torch.nn.functional.one_hot(values.argmax(-1), values.shape[1])
    return torch.where(temperature[:, None] == 0, first.float(), weights)


def sample_tokens_cpu(library: CpuLibrary) -> SampleTokens:
    return sampling_op(library, "sample_tokens", num_columns=2)


def sampling_op(library: CpuLibrary, name: str, num_columns: int) -> Callable[..., torch.Tensor]:
    """The library's op `name`: its inputs are logits, `num_columns` float32 columns of [R], and keys."""
    arguments = [POINTER] * (num_columns + 4) + [INT64] * 2
    calls = {dtype: library.op(name, dtype, arguments) for dtype in (torch.float32, torch.bfloat16)}

    def sample(
        logits: torch.Tensor, *columns_and_keys: torch.Tensor, penalties: Penalties | None = None
    ) -> torch.Tensor:
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

    return sample
