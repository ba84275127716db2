"""The sampler's kernels as ops of the KernelSet: the host chooses the method and passes the parameters of each row.

Every call allocates its workspace. The device runner calls sample.py directly, with a workspace that it keeps.
"""

from __future__ import annotations

import torch

from .sample import sample, sampling_workspace
from .sample_row import SamplingColumns


def sample_tokens_gpu(
    logits: torch.Tensor, temperature: torch.Tensor, min_p: torch.Tensor | None, keys: torch.Tensor
) -> torch.Tensor:
    """Computes sample_tokens_reference; min_p: None where no row has one, which spares a pass over the logits."""
    return _sample_rows(logits, temperature, min_p, None, keys)


def sample_top_p_gpu(
    logits: torch.Tensor, temperature: torch.Tensor, min_p: torch.Tensor, top_p: torch.Tensor, keys: torch.Tensor
) -> torch.Tensor:
    """Computes sample_top_p_reference."""
    return _sample_rows(logits, temperature, min_p, top_p, keys)


def _sample_rows(
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
    sampled = torch.empty_like(slots)
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
    is_fast_path = min_p is None and top_p is None
    sample(logits, slots, slots, by_row, sampled, workspace, is_fast_path=is_fast_path, is_keyed=True)
    return sampled.long()
