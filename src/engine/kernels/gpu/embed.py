"""Rows of the embedding. An id outside the vocabulary gives zeros: kernels do not raise, requests are checked."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch import dependent, wait

_BLOCK = 1024  # elements of one program


@triton.jit
def _embed(token_ids, weight, out, vocab_size, width, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr):
    wait(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token_id = tl.load(token_ids + row)
    known = tl.where((token_id >= 0) & (token_id < vocab_size), width, 0)
    found = tl.load(weight + token_id * width + columns, mask=columns < known, other=0.0)
    tl.store(out + row * width + columns, found, mask=columns < width)


def embed_gpu(token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """token_ids: [T] int64; weight: [vocab_size, width], contiguous. Returns [T, width] in its dtype."""
    vocab_size, width = weight.shape
    out = torch.empty(len(token_ids), width, dtype=weight.dtype, device=weight.device)
    block = min(_BLOCK, triton.next_power_of_2(width))
    if len(token_ids):
        _embed[(len(token_ids), triton.cdiv(width, block))](
            token_ids, weight, out, vocab_size, width, BLOCK=block, **dependent()
        )
    return out
