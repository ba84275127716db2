"""Penalties for tokens of a sequence: repetition (prompt and output), then frequency and presence (output only).

The ops that choose tokens apply them: a row in float32 is cheap in a core's cache and expensive in memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from .cpu.library import INT64, POINTER, pointer

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Penalties:
    """The penalties of R rows of logits. In host memory, also when the logits are on a device."""

    slots: torch.Tensor  # [R] int64, rows of the tables
    lengths: torch.Tensor  # [R] int64, tokens of each sequence; 0 where a row has no penalties
    repetition: torch.Tensor  # [R] float32
    frequency: torch.Tensor  # [R] float32
    presence: torch.Tensor  # [R] float32
    token_table: torch.Tensor  # [num_slots, W] int32, the sequences' tokens
    counts: torch.Tensor  # [num_slots, V] int32, how often each token was generated


def penalised(logits: torch.Tensor, penalties: Penalties | None) -> torch.Tensor:
    """[R, V] float32: the logits with penalties applied. Without penalties the logits are returned unchanged.

    Args:
        logits: [R, V] in any float type. Not changed.

    A positive logit is divided by the repetition penalty, a negative one multiplied: Keskar et al.,
    arXiv:1909.05858, section 4.1, in the form of transformers. Frequency and presence as OpenAI defines them.
    """
    if penalties is None:
        return logits
    # One entry per token of the sequence. A token that occurs twice gives two entries with the same result.
    lengths = penalties.lengths
    rows = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    slots = penalties.slots[rows]
    token_ids = penalties.token_table[slots, torch.arange(len(rows)) - (lengths.cumsum(0) - lengths)[rows]].long()
    counts = penalties.counts[slots, token_ids]
    penalty = penalties.frequency[rows] * counts + penalties.presence[rows] * (counts > 0)
    at = rows.to(logits.device), token_ids.to(logits.device)
    repetition, values = penalties.repetition[rows].to(logits.device), logits[at].float()
    scaled = torch.where(values > 0, values / repetition, values * repetition)
    changed = logits.to(torch.float32, copy=True)
    changed[at] = scaled - penalty.to(logits.device)
    return changed


def after_penalties(op: Callable[..., Result]) -> Callable[..., Result]:
    """An op over logits that takes `penalties` and applies them first."""

    def run(logits: torch.Tensor, *others: object, penalties: Penalties | None = None) -> Result:
        return op(penalised(logits, penalties), *others)

    return run


class PenaltiesInC(ctypes.Structure):
    """Penalties in sampling.cpp."""

    _fields_ = [
        *((name, POINTER) for name in ("slots", "lengths", "token_table", "counts")),
        *((name, POINTER) for name in ("repetition", "frequency", "presence")),
        ("table_width", INT64),
    ]


def penalties_in_c(penalties: Penalties | None, rows: int, vocab_size: int) -> PenaltiesInC | None:
    """Raises ValueError if sizes do not match. Points into `penalties`, which the caller must keep alive."""
    if penalties is None:
        return None
    found = penalties
    columns = (found.slots, found.lengths, found.repetition, found.frequency, found.presence)
    if any(len(each) != rows for each in columns) or found.counts.shape != (len(found.token_table), vocab_size):
        raise ValueError(
            f"{rows} rows of {vocab_size} tokens, but penalties for {[len(each) for each in columns]} and"
            f" counts of {list(found.counts.shape)} for {len(found.token_table)} slots"
        )
    return PenaltiesInC(
        *(pointer(each, torch.int64) for each in (found.slots, found.lengths)),
        *(pointer(each, torch.int32) for each in (found.token_table, found.counts)),
        *(pointer(each, torch.float32) for each in (found.repetition, found.frequency, found.presence)),
        found.token_table.shape[1],
    )
