"""Log-probabilities on the device: the normaliser of each row, the rank of a token, and the best tokens.

One pass over the logits computes mass and rank by tile; a program per row joins the tiles in order. torch sorts the
best tokens, which does not wait for the device either: few rows request them, and only a few tokens each.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ..top_tokens import top_tokens_reference
from .sample_row import weights_of

BLOCK = 4096  # logits of a tile


@triton.jit
def _measure(
    logits, stride, temperatures, bounds, limits, part_tops, part_masses, part_counts, vocab_size,
    HAS_MASS: tl.constexpr, HAS_BOUNDS: tl.constexpr, HAS_LIMITS: tl.constexpr, BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """Measure a tile: largest logit, sum of weights at or above the limit, number of logits above the bound."""
    tile = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    ids = tile * BLOCK + tl.arange(0, BLOCK)
    part = row * PARTS + tile
    values = tl.load(logits + row * stride + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)
    values = tl.where(values == values, values, float("-inf"))
    if HAS_MASS:
        top = tl.max(values, 0)
        tl.store(part_tops + part, top)
        if HAS_LIMITS:
            values = tl.where(values >= tl.load(limits + row), values, float("-inf"))
        tl.store(part_masses + part, tl.sum(weights_of(values, top, tl.load(temperatures + row)), 0))
    if HAS_BOUNDS:
        tl.store(part_counts + part, tl.sum((values > tl.load(bounds + row)).to(tl.int32), 0))


@triton.jit
def _join(
    temperatures, part_tops, part_masses, part_counts, tops, masses, counts, num_tiles,
    HAS_MASS: tl.constexpr, HAS_BOUNDS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    tiles = tl.arange(0, PARTS)
    is_there = tiles < num_tiles
    parts = row * PARTS + tiles
    if HAS_MASS:
        of_tiles = tl.load(part_tops + parts, mask=is_there, other=float("-inf"))
        top = tl.max(of_tiles, 0)
        weights = weights_of(of_tiles, top, tl.load(temperatures + row)).to(tl.float64)
        tl.store(tops + row, top)
        tl.store(masses + row, tl.sum(tl.load(part_masses + parts, mask=is_there, other=0.0) * weights, 0))
    if HAS_BOUNDS:
        found = tl.sum(tl.load(part_counts + parts, mask=is_there, other=0), 0)
        tl.store(counts + row, found.to(tl.int64))


class _Measured(NamedTuple):
    largest: torch.Tensor  # [R] float32
    mass: torch.Tensor  # [R] float64
    counts: torch.Tensor  # [R] int64


def _measured(
    logits: torch.Tensor,
    temperature: torch.Tensor | None = None,
    bounds: torch.Tensor | None = None,
    limits: torch.Tensor | None = None,
    block: int = BLOCK,
) -> _Measured:
    """Largest logit and mass at each temperature; the number of logits above each bound. Arguments: [R] float32."""
    columns = temperature, bounds, limits
    temperature, bounds, limits = (None if each is None else each.contiguous() for each in columns)
    rows, vocab_size = logits.shape
    num_tiles = triton.cdiv(vocab_size, block)
    parts = triton.next_power_of_2(num_tiles)
    device = logits.device
    part_tops = torch.empty(rows, parts, device=device)
    part_masses = torch.empty_like(part_tops)
    part_counts = torch.empty(rows, parts, dtype=torch.int32, device=device)
    found = _Measured(
        torch.empty(rows, device=device),
        torch.empty(rows, dtype=torch.float64, device=device),
        torch.empty(rows, dtype=torch.int64, device=device),
    )
    if rows:
        wanted = {"HAS_MASS": temperature is not None, "HAS_BOUNDS": bounds is not None, "PARTS": parts}
        _measure[(num_tiles, rows)](
            logits, logits.stride(0), temperature, bounds, limits, part_tops, part_masses, part_counts, vocab_size,
            HAS_LIMITS=limits is not None, BLOCK=block, num_warps=8, **wanted,
        )  # fmt: skip
        _join[(rows,)](temperature, part_tops, part_masses, part_counts, *found, num_tiles, num_warps=1, **wanted)
    return found


def softmax_mass_gpu(
    logits: torch.Tensor, temperature: torch.Tensor, min_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes softmax_mass_reference in two passes: the limit of min-p depends on the largest logit."""
    largest = _measured(logits, temperature).largest
    measured = _measured(logits, temperature, limits=largest + temperature * min_p.log())
    return largest, measured.mass


def count_above_gpu(logits: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
    """Computes count_above_reference."""
    return _measured(logits, bounds=bounds).counts


class LogprobsGpu(NamedTuple):
    own: torch.Tensor  # [R] float32, of each row's token
    ranks: torch.Tensor  # [R] int64, 1 for the best
    top_values: torch.Tensor  # [R, num_top] float32, best first, of equal ones the lowest id
    top_ids: torch.Tensor  # [R, num_top] int64


def logprobs_gpu(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int, *, normalise: bool = True) -> LogprobsGpu:
    """Computes ../../sampling/logprobs.py without waiting for the device, so that it can be captured in a CUDA graph.

    Args:
        logits: [R, V] in any float type.
        token_ids: [R] int32 or int64; results of a row with -1 have no meaning.
        num_top: from 0 to V.
        normalise: return log-probabilities; False returns logits.
    """
    own = logits.gather(1, token_ids.long().clamp(min=0)[:, None])[:, 0].float()
    measured = _measured(logits, torch.ones_like(own) if normalise else None, bounds=own)
    if num_top:
        top_values, top_ids = top_tokens_reference(logits, num_top)
    else:
        top_values, top_ids = own.new_empty(len(own), 0), token_ids.new_empty((len(own), 0), dtype=torch.int64)
    if normalise:
        normaliser = measured.largest + measured.mass.log().float()
        own, top_values = own - normaliser, top_values - normaliser[:, None]
    return LogprobsGpu(own, measured.counts + 1, top_values, top_ids)
