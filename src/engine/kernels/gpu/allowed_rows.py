"""Copies of some rows of logits, in which the tokens that a grammar does not allow are -inf.

A row reads and writes 2 V bytes of bfloat16 each, and V / 8 bytes of its mask.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..allow_tokens import BITS

_BLOCK = 4096  # logits of one program


@triton.jit
def _allowed_rows(logits, stride, rows, masks, num_words, out, vocab_size, BLOCK: tl.constexpr, BITS: tl.constexpr):
    ids = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.program_id(1).to(tl.int64)
    row = tl.load(rows + index).to(tl.int64)
    is_there = ids < vocab_size
    words = tl.load(masks + index * num_words + ids // BITS, mask=is_there, other=0)
    is_allowed = (words >> (ids % BITS)) & 1
    values = tl.load(logits + row * stride + ids, mask=is_there & (is_allowed != 0), other=float("-inf"))
    tl.store(out + index * vocab_size + ids, values, mask=is_there)


def allowed_rows(logits: torch.Tensor, rows: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """[N, V] of the type of the logits.

    logits: [R, V] in any float type, rows of any stride. rows: [N] int32, each below R. masks: [N, W] int32 for these
    rows, 32 * W >= V: bit b of word w is set if token 32 * w + b is allowed.
    """
    num_rows, vocab_size = len(rows), logits.shape[1]
    out = torch.empty(num_rows, vocab_size, dtype=logits.dtype, device=logits.device)
    _allowed_rows[(triton.cdiv(vocab_size, _BLOCK), num_rows)](
        logits, logits.stride(0), rows, masks, masks.stride(0), out, vocab_size, BLOCK=_BLOCK, BITS=BITS, num_warps=8
    )
    return out
