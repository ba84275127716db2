"""Log-probabilities of a step's tokens, queued after the step: its logits are valid only until the next step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ...api import TokenLogprobs
from ...kernels.gpu.sample_logprobs import logprobs_gpu
from .staging import new_event

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LaunchedLogprobs:
    rows: Int64
    counts: Int64
    columns: tuple[torch.Tensor, ...]  # token, its log-probability and rank, best log-probabilities, best tokens
    done: torch.cuda.Event | None

    def read(self) -> dict[int, TokenLogprobs]:
        """Log-probabilities by row. Waits until they are on the host."""
        if self.done is not None:
            self.done.synchronize()
        tokens, own, ranks, values, ids = (each.tolist() for each in self.columns)
        return {
            row: TokenLogprobs([tokens[at], *ids[at][:count]], [own[at], *values[at][:count]], ranks[at])
            for at, (row, count) in enumerate(zip(self.rows.tolist(), self.counts.tolist(), strict=True))
        }


def launch_logprobs(
    logits: torch.Tensor, sampled: torch.Tensor, rows: Int64, counts: Int64, *, normalise: bool
) -> LaunchedLogprobs:
    """
    Args:
        logits: [R, V] of the step's rows.
        sampled: [at least R] int32, their tokens.
        rows: those that request log-probabilities, ascending. counts: how many of the best tokens, for each of them.
        normalise: return log-probabilities; False returns logits.
    """
    index = torch.from_numpy(rows).to(logits.device, non_blocking=True)
    tokens = sampled[index].clamp_(min=0).long()
    width = min(max(1, int(counts.max())), logits.shape[1])
    found = logprobs_gpu(logits[index], tokens, width, normalise=normalise)
    columns = tuple(_to_host(each) for each in (tokens, *found))
    done = new_event() if logits.is_cuda else None
    if done is not None:
        done.record()
    return LaunchedLogprobs(rows, counts, columns, done)


def _to_host(values: torch.Tensor) -> torch.Tensor:
    if not values.is_cuda:
        return values.clone()
    return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)
