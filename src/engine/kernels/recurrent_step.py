"""The part of a step that layers with a recurrent state read: R rows, T tokens (the whole is in layers/step_input.py).

A sequence's state has the place of its slot. A row's tokens follow those that its state was computed from; a row whose
sequence has none begins with zeros, whatever its slot holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch

from .cpu.library import pointer


class RecurrentStep(Protocol):
    @property
    def query_start(self) -> torch.Tensor: ...  # [R + 1] int32, row r has tokens query_start[r] to query_start[r + 1]
    @property
    def context_lens(self) -> torch.Tensor: ...  # [R] int32, tokens computed after the step
    @property
    def seq_slots(self) -> torch.Tensor: ...  # [R] int32, different ones; -1 of a padding row, which changes nothing
    @property
    def max_query_len(self) -> int: ...  # no row has more tokens


def rows_of(step: RecurrentStep) -> Iterator[tuple[int, int, int, bool]]:
    """First token, token after the last, slot, and whether nothing of the sequence is computed, by row that has tokens
    and a slot."""
    starts, contexts, slots = step.query_start.tolist(), step.context_lens.tolist(), step.seq_slots.tolist()
    for start, end, context, slot in zip(starts, starts[1:], contexts, slots, strict=False):
        if end > start and slot >= 0:
            yield start, end, slot, context == end - start


def row_pointers(step: RecurrentStep) -> tuple[int, int, int, int]:
    """The arguments of a C++ kernel: RecurrentRows in cpu/recurrent.h."""
    columns = step.query_start, step.context_lens, step.seq_slots
    first, second, third = (pointer(column, torch.int32) for column in columns)
    return first, second, third, len(step.seq_slots)


def is_narrow(state: torch.Tensor) -> bool:
    """Whether a C++ kernel widens the state. Raises ValueError for a type that none has."""
    if state.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"states are {state.dtype}; they must be float32 or bfloat16")
    return state.dtype == torch.bfloat16
