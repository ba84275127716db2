"""Penalties for tokens that a sequence has: repetition (all of it), then frequency and presence (what it generated)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .cpu.library import INT64, POINTER, CpuLibrary, pointer


@dataclass(frozen=True, slots=True)
class Penalised:
    """The rows that have penalties, P of them, and what they are."""

    rows: torch.Tensor  # [P] int64, of the logits
    slots: torch.Tensor  # [P] int64, of the tables
    lengths: torch.Tensor  # [P] int64, tokens of each sequence
    repetition: torch.Tensor  # [P] float32
    frequency: torch.Tensor  # [P] float32
    presence: torch.Tensor  # [P] float32
    token_table: torch.Tensor  # [num_slots, W] int32, the sequences' tokens
    counts: torch.Tensor  # [num_slots, V] int32, how often each token was generated


Penalise = Callable[[torch.Tensor, Penalised], None]


def penalise_reference(logits: torch.Tensor, penalised: Penalised) -> None:
    """Changes the logits of the tokens concerned in place, and none besides.

    Args:
        logits: [R, V] float32, on any device; the rest is in the host's memory.

    A positive logit is divided by the repetition penalty, a negative one multiplied: Keskar et al.,
    arXiv:1909.05858, section 4.1, in the form of transformers. Frequency and presence as OpenAI defines them.
    """
    # Every token of the sequence is one entry. A token seen twice gives two entries with the same result.
    lengths = penalised.lengths
    entry = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    slots = penalised.slots[entry]
    place = torch.arange(len(entry)) - (lengths.cumsum(0) - lengths)[entry]
    token_ids = penalised.token_table[slots, place].long()
    counts = penalised.counts[slots, token_ids]
    penalty = penalised.frequency[entry] * counts + penalised.presence[entry] * (counts > 0)
    at = penalised.rows[entry].to(logits.device), token_ids.to(logits.device)
    repetition, values = penalised.repetition[entry].to(logits.device), logits[at]
    scaled = torch.where(values > 0, values / repetition, values * repetition)
    logits[at] = scaled - penalty.to(logits.device)


def penalise_cpu(library: CpuLibrary) -> Penalise:
    function = library.function("penalise", [POINTER] * 9 + [INT64] * 3)

    def penalise(logits: torch.Tensor, penalised: Penalised) -> None:
        vocab_size, num_slots = logits.shape[1], len(penalised.token_table)
        if penalised.counts.shape != (num_slots, vocab_size):
            raise ValueError(f"counts {list(penalised.counts.shape)} for {num_slots} slots, {vocab_size} tokens")
        function(
            pointer(logits, torch.float32),
            *(pointer(each, torch.int64) for each in (penalised.rows, penalised.slots, penalised.lengths)),
            *(pointer(each, torch.int32) for each in (penalised.token_table, penalised.counts)),
            *(
                pointer(each, torch.float32)
                for each in (penalised.repetition, penalised.frequency, penalised.presence)
            ),
            len(penalised.rows),
            penalised.token_table.shape[1],
            vocab_size,
        )

    return penalise
