"""Logits processors: code of the deployment's own that changes the logits before a token is drawn.

Two ways to one. `model.logits_processors` installs classes for all requests: each is made once, without arguments, and
is given the whole batch. A request may name one itself where `model.logits_processor_pattern` allows its path: it is
made for that request, with the request's arguments, and is given its row alone. In both cases it is an object as
`LogitsProcessor` describes; a request may also name a function of that form. How they are found: named_processors.py.

They come first: bias, penalties, min_tokens and temperature work on what they leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import isroutine
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from ..plugins import PluginError, said


@dataclass(frozen=True, slots=True)
class Rows:
    """The sequences that a batch of logits belongs to, row by row. R rows."""

    num_tokens: npt.NDArray[np.int64]  # [R] prompt and answer so far
    num_prompt_tokens: npt.NDArray[np.int64]  # [R]
    slots: npt.NDArray[np.int32]  # [R] place of each sequence in the engine's tables
    token_table: npt.NDArray[np.int32]  # [num_slots, max_model_len + 1] token ids by slot; not to be changed

    def token_ids(self, row: int) -> npt.NDArray[np.int32]:
        """Prompt and answer so far of one row."""
        return self.token_table[self.slots[row], : self.num_tokens[row]]


class LogitsProcessor(Protocol):
    """Called for each step. What it leaves must depend on the rows alone: sequences are preempted and computed again,
    and a slot is given to another sequence without a word."""

    def __call__(self, logits: torch.Tensor, rows: Rows) -> torch.Tensor:
        """logits: [R, V] float32, its own to change. Returns the new ones in the same shape; -inf forbids a token."""


def apply(processors: Sequence[LogitsProcessor], logits: torch.Tensor, rows: Rows) -> torch.Tensor:
    """All of them, one after another. Raises PluginError for one that fails or gives logits of another shape."""
    shape = logits.shape
    for processor in processors:
        try:
            logits = processor(logits, rows)
        except Exception as error:
            raise PluginError(f"{_path(processor)} failed: {said(error)}") from error
        if getattr(logits, "shape", None) != shape:
            found = getattr(logits, "shape", type(logits).__name__)
            raise PluginError(f"{_path(processor)} gave {found}, not {tuple(shape)}")
    return logits


def _path(processor: LogitsProcessor) -> str:
    named = processor if isroutine(processor) else type(processor)
    return f"{named.__module__}:{named.__qualname__}"
