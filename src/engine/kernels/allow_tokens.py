"""Logits of tokens that a grammar does not allow become -inf."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .cpu.library import INT64, POINTER, CpuLibrary, pointer

AllowTokens = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
BITS = 32  # of a word


def allow_tokens_reference(logits: torch.Tensor, rows: torch.Tensor, masks: torch.Tensor) -> None:
    """Changes `logits` in place.

    logits: [R, V] in any float type. rows: [N] int64, none twice. masks: [N, W] int32 for these rows, 32 * W >= V: bit
    b of word w is set if token 32 * w + b is allowed.
    """
    _check(logits, rows, masks)
    shifts = torch.arange(BITS, dtype=torch.int32, device=logits.device)
    allowed = (masks.to(logits.device)[..., None] >> shifts & 1).flatten(1)[:, : logits.shape[1]].bool()
    rows = rows.to(logits.device)
    logits[rows] = logits[rows].masked_fill(~allowed, -torch.inf)


def allow_tokens_cpu(library: CpuLibrary) -> AllowTokens:
    calls = {
        dtype: library.op("allow_tokens", dtype, [POINTER] * 3 + [INT64] * 3)
        for dtype in (torch.float32, torch.bfloat16)
    }

    def allow_tokens(logits: torch.Tensor, rows: torch.Tensor, masks: torch.Tensor) -> None:
        _check(logits, rows, masks)
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(logits):
            raise ValueError(f"rows {rows.tolist()} of {len(logits)}")
        if not logits.is_contiguous() or logits.dtype not in calls:
            allow_tokens_reference(logits, rows, masks)
            return
        calls[logits.dtype](
            logits.data_ptr(),
            pointer(rows, torch.int64),
            pointer(masks, torch.int32),
            *masks.shape,
            logits.shape[1],
        )

    return allow_tokens


def _check(logits: torch.Tensor, rows: torch.Tensor, masks: torch.Tensor) -> None:
    if len(masks) != len(rows) or BITS * masks.shape[1] < logits.shape[1]:
        raise ValueError(f"logits {tuple(logits.shape)}, {len(rows)} rows, masks {tuple(masks.shape)}")
