"""The best tokens of each row, exactly and without sorting the vocabulary.

The order is total - larger logit first, then smaller id - so the result does not depend on how many tokens are
requested or on the other rows. Equal logits are common in bfloat16.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from .cpu.library import INT64, POINTER, CpuLibrary, pointer
from .penalise import Penalties, penalised, penalties_in_c

# as the reference, and `penalties=` of penalise.py
TopTokens = Callable[..., tuple[torch.Tensor, torch.Tensor]]
_BLOCK = 64
_LAST_ID = 0x7FFFFFFF


def top_tokens_reference(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` best tokens of each row, best first.

    Args:
        logits: [R, V] in any float type, without nan.
        count: from 1 to V.
    Returns:
        values [R, count] float32 and ids [R, count] int64.

    The best `count` tokens are in the `count` blocks with the best maxima: for a token of any other block, each of
    those blocks has a better one. So only the maxima and the chosen blocks are ordered.
    """
    logits = logits.float()
    rows, vocab_size = logits.shape
    num_blocks = -(-vocab_size // _BLOCK)
    if count * 4 >= num_blocks:  # most blocks would be chosen
        ids = torch.arange(vocab_size, device=logits.device).expand(rows, -1)
        return _best(logits, ids, count)
    if vocab_size % _BLOCK:
        logits = F.pad(logits, (0, -vocab_size % _BLOCK), value=-torch.inf)
    blocks = logits.view(rows, num_blocks, _BLOCK)
    block_ids = torch.arange(num_blocks, device=logits.device).expand(rows, -1)
    _, chosen = _best(blocks.amax(-1), block_ids, count)  # [R, count]
    values = blocks.gather(1, chosen[..., None].expand(-1, -1, _BLOCK)).flatten(1)
    ids = (chosen[..., None] * _BLOCK + torch.arange(_BLOCK, device=logits.device)).flatten(1)
    return _best(values, ids, count)


def _best(values: torch.Tensor, ids: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One int64 key per value: the float's bits in ascending order above, the negated id below."""
    bits = (values + 0.0).view(torch.int32).to(torch.int64)  # + 0.0: -0.0 and 0.0 are equal
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = (ordered << 32) + (_LAST_ID - ids)
    if count * 4 < keys.shape[1]:
        best = keys.topk(count, dim=-1).values
    elif (
        keys.device.type == "cpu"
    ):  # numpy sorts integers with vector instructions: 2 ms for 152k of them, torch takes 18
        best = torch.from_numpy(np.sort(keys.numpy(), axis=-1)[:, ::-1][:, :count].copy())
    else:
        best = keys.sort(dim=-1, descending=True).values[:, :count]
    ordered, chosen = best >> 32, _LAST_ID - (best & 0xFFFFFFFF)
    bits = torch.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered)
    return bits.to(torch.int32).view(torch.float32), chosen


def top_tokens_cpu(library: CpuLibrary) -> TopTokens:
    calls = {
        dtype: library.op("top_tokens", dtype, [POINTER] * 4 + [INT64] * 3) for dtype in (torch.float32, torch.bfloat16)
    }

    def top_tokens(
        logits: torch.Tensor, count: int, penalties: Penalties | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, vocab_size = logits.shape
        if not 1 <= count <= vocab_size:
            raise ValueError(f"{count} of {vocab_size} tokens")
        if count * 8 > vocab_size:  # nearly a full sort, for which numpy uses vector instructions
            return top_tokens_reference(penalised(logits, penalties), count)
        logits, in_c = logits.contiguous(), penalties_in_c(penalties, rows, vocab_size)
        values, ids = torch.empty(rows, count), torch.empty(rows, count, dtype=torch.int64)
        calls[logits.dtype](
            pointer(logits, logits.dtype),
            ctypes.addressof(in_c) if in_c else None,
            values.data_ptr(),
            ids.data_ptr(),
            rows,
            vocab_size,
            count,
        )
        return values, ids

    return top_tokens
