"""Changes to single logits: bias, penalties for tokens that were seen, no end before min_tokens.

Each touches only the (row, token) pairs concerned, all rows at once, and none of the vocabulary besides.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from ..kernels import KernelSet
from ..kernels.penalise import Penalised
from .sampling_table import SamplingTable, Slots

Lengths = npt.NDArray[np.int64]


def apply_bias(logits: torch.Tensor, table: SamplingTable, slots: Slots) -> None:
    """Adds each request's logit_bias. logits: [R, V] float32, changed in place; slots: [R]."""
    rows = np.flatnonzero(table.has_bias[slots])
    if not len(rows):
        return
    entries = [table.bias[slot] for slot in slots[rows].tolist()]
    row_index = np.repeat(rows, [len(ids) for ids, _ in entries])
    logits[_to(logits, row_index), _to(logits, np.concatenate([ids for ids, _ in entries]))] += _to(
        logits, np.concatenate([values for _, values in entries])
    )


def apply_penalties(
    logits: torch.Tensor,
    table: SamplingTable,
    slots: Slots,
    lengths: Lengths,
    token_table: npt.NDArray[np.int32],
    kernels: KernelSet,
) -> None:
    """For tokens that were seen, as kernels/penalise.py says.

    Args:
        logits: [R, V] float32, changed in place.
        slots: [R].
        lengths: [R] tokens known of each sequence.
        token_table: [num_slots, max_model_len] their ids, by slot.
    """
    rows = np.flatnonzero(table.has_penalties[slots])
    if not len(rows):
        return
    slots = slots[rows]
    columns = slots.astype(np.int64), lengths[rows], table.repetition[slots], table.frequency[slots]
    tables = table.presence[slots], token_table, table.counts
    kernels.penalise(logits, Penalised(*map(torch.from_numpy, (rows, *columns, *tables))))


def forbid_early_end(logits: torch.Tensor, table: SamplingTable, slots: Slots, lengths: Lengths) -> None:
    """Eos and stop ids of sequences shorter than their min_tokens become impossible. Arguments as above."""
    rows = np.flatnonzero(lengths < table.end_allowed_at[slots])
    if not len(rows):
        return
    entries = [table.ending_ids[slot] for slot in slots[rows].tolist()]
    row_index = np.repeat(rows, [len(ids) for ids in entries])
    logits[_to(logits, row_index), _to(logits, np.concatenate(entries))] = -torch.inf


def _to(like: torch.Tensor, values: npt.NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(values).to(like.device)
