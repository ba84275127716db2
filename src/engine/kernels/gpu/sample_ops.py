"""The sampler's kernels as ops of the KernelSet, where the host chooses what is drawn how, and gives parameters by row.

Memory is taken at every call: the runner of a device calls sample.py with a workspace of its own.
"""

from __future__ import annotations

import torch

from .sample import sample, sampling_workspace
from .sample_row import SamplingColumns


def draw_gpu(
    logits: torch.Tensor, temperature: torch.Tensor, min_p: torch.Tensor | None, keys: torch.Tensor
) -> torch.Tensor:
    """As draw_reference; min_p: None where no row has one, which spares a pass over the logits."""
    return _draw(logits, temperature, min_p, None, keys)


def draw_nucleus_gpu(
    logits: torch.Tensor, temperature: torch.Tensor, min_p: torch.Tensor, top_p: torch.Tensor, keys: torch.Tensor
) -> torch.Tensor:
    """As draw_nucleus_reference."""
    return _draw(logits, temperature, min_p, top_p, keys)


def _draw(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    min_p: torch.Tensor | None,
    top_p: torch.Tensor | None,
    keys: torch.Tensor,
) -> torch.Tensor:
    rows, vocab_size = logits.shape
    columns = [each for each in (temperature, min_p, top_p, keys) if each is not None]
    if any(len(each) != rows for each in columns):
        raise ValueError(f"{rows} rows, but columns and keys for {[len(each) for each in columns]}")
    off = torch.zeros(rows, dtype=torch.int32, device=logits.device)
    slots = torch.arange(rows, dtype=torch.int32, device=logits.device)
    drawn = torch.empty_like(slots)
    temperature = temperature.contiguous()
    by_row = SamplingColumns(
        temperature=temperature,
        top_k=off,
        top_p=torch.ones_like(temperature) if top_p is None else top_p.contiguous(),
        min_p=torch.zeros_like(temperature) if min_p is None else min_p.contiguous(),
        seed_low=keys[:, 0].contiguous(),
        seed_high=keys[:, 1].contiguous(),
        has_bias=off,
        has_penalties=off,  # so none of what follows is read
        repetition=temperature,
        frequency=temperature,
        presence=temperature,
        bias=temperature,
        counts=off,
    )
    workspace = sampling_workspace(rows, vocab_size, logits.device)
    is_lean = min_p is None and top_p is None
    sample(logits, slots, slots, by_row, drawn, workspace, is_lean=is_lean, is_keyed=True)
    return drawn.long()
