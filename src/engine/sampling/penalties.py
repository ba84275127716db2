"""Changes to single logits: bias, penalties for tokens that were seen, no end before min_tokens.

Each touches only the (row, token) pairs concerned, all rows at once, and none of the vocabulary besides.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

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
    logits: torch.Tensor, table: SamplingTable, slots: Slots, lengths: Lengths, token_table: npt.NDArray[np.int32]
) -> None:
    """Repetition (prompt and generated tokens), then frequency and presence (generated tokens).

    Args:
        logits: [R, V] float32, changed in place.
        slots: [R].
        lengths: [R] tokens known of each sequence.
        token_table: [num_slots, max_model_len] their ids, by slot.

    A positive logit is divided by the repetition penalty, a negative one multiplied: Keskar et al.,
    arXiv:1909.05858, section 4.1, in the form of transformers. Frequency and presence as OpenAI defines them.
    """
    rows = np.flatnonzero(table.has_penalties[slots])
    if not len(rows):
        return
    # Every token of the sequence is one entry. A token seen twice gives two entries with the same result.
    row_lengths = lengths[rows]
    row_index = np.repeat(rows, row_lengths)
    slot_index = slots[row_index]
    ends = np.cumsum(row_lengths)
    token_ids = token_table[slot_index, np.arange(ends[-1]) - np.repeat(ends - row_lengths, row_lengths)]
    counts = table.counts[slot_index, token_ids].astype(np.float32)
    penalty = table.frequency[slot_index] * counts + table.presence[slot_index] * (counts > 0)
    at = _to(logits, row_index), _to(logits, token_ids.astype(np.int64))
    repetition, values = _to(logits, table.repetition[slot_index]), logits[at]
    logits[at] = torch.where(values > 0, values / repetition, values * repetition) - _to(logits, penalty)


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
