"""Changes to single logits: bias, allowed tokens, bad words, penalties, no end before min_tokens.

Each changes only the affected (row, token) pairs, for all rows in one operation.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from ..kernels.penalise import Penalties
from .sampling_table import SamplingTable, Slots

Lengths = npt.NDArray[np.int64]


def apply_bias(logits: torch.Tensor, table: SamplingTable, slots: Slots) -> None:
    """Forbids what is not allowed, and adds each request's logit_bias.

    Args:
        logits: [R, V] float32, changed in place.
        slots: [R].
    """
    rows = np.flatnonzero(table.has_bias[slots])
    for row in rows.tolist():
        if (ids := table.allowed.get(int(slots[row]))) is not None:
            index = _to(logits, ids)
            kept = logits[row, index]
            logits[row] = -torch.inf
            logits[row, index] = kept
    rows = np.array([row for row in rows.tolist() if int(slots[row]) in table.bias], np.int64)
    if not len(rows):
        return
    entries = [table.bias[slot] for slot in slots[rows].tolist()]
    row_index = np.repeat(rows, [len(ids) for ids, _ in entries])
    logits[_to(logits, row_index), _to(logits, np.concatenate([ids for ids, _ in entries]))] += _to(
        logits, np.concatenate([values for _, values in entries])
    )


def forbid_bad_words(
    logits: torch.Tensor, table: SamplingTable, slots: Slots, lengths: Lengths, token_table: npt.NDArray[np.int32]
) -> None:
    """Forbids the last token of each bad word whose first tokens are the last generated ones. Arguments as below."""
    for row in np.flatnonzero(table.has_bad_words[slots]).tolist():
        slot, length = int(slots[row]), int(lengths[row])
        generated = token_table[slot, table.num_prompt_tokens[slot] : length]
        for first, last in table.bad_words[slot]:
            if len(first) <= len(generated) and np.array_equal(generated[-len(first) :], first):
                logits[row, last] = -torch.inf


def forbid_early_end(logits: torch.Tensor, table: SamplingTable, slots: Slots, lengths: Lengths) -> None:
    """Forbids eos and stop ids for sequences shorter than their min_tokens. Arguments as above."""
    rows = np.flatnonzero(lengths < table.end_allowed_at[slots])
    if not len(rows):
        return
    entries = [table.ending_ids[slot] for slot in slots[rows].tolist()]
    row_index = np.repeat(rows, [len(ids) for ids in entries])
    logits[_to(logits, row_index), _to(logits, np.concatenate(entries))] = -torch.inf


def _to(like: torch.Tensor, values: npt.NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(values).to(like.device)


def penalties_of(
    table: SamplingTable, slots: Slots, lengths: Lengths, token_table: npt.NDArray[np.int32]
) -> Penalties | None:
    """Penalties of rows; None if no row has any. They are applied last: a forbidden token stays forbidden.

    Args:
        token_table: [num_slots, max_model_len] the sequences' token ids, by slot.
    """
    has_penalties = table.has_penalties[slots]
    if not has_penalties.any():
        return None
    columns = lengths * has_penalties, table.repetition[slots], table.frequency[slots], table.presence[slots]
    return Penalties(*map(torch.from_numpy, (slots.astype(np.int64), *columns, token_table, table.counts)))
