"""Logits processors: user code that changes the logits before a token is sampled.

There are two kinds. `model.logits_processors` installs classes for all requests: each is created once, with its
settings, and is called with the whole batch. A request may name a processor if `model.logits_processor_pattern` allows
its path: it is created for that request, with the request's arguments, and is called with only that request's row.
Both are objects that follow `LogitsProcessor`; a request may also name a function. Import: named_processors.py.

Processors run first: bias, penalties, min_tokens and temperature are applied to their result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import isroutine
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from ...config.resolve.import_path import error_text
from ..plugins import PluginError


@dataclass(frozen=True, slots=True)
class Rows:
    """The sequences of a batch of logits. R rows."""

    num_tokens: npt.NDArray[np.int64]  # [R] prompt and answer so far
    num_prompt_tokens: npt.NDArray[np.int64]  # [R]
    slots: npt.NDArray[np.int32]  # [R] the row of each sequence in `token_table`
    token_table: npt.NDArray[np.int32]  # [num_slots, max_model_len + 1] token ids by slot; read only

    def token_ids(self, row: int) -> npt.NDArray[np.int32]:
        """Prompt and answer so far of one row."""
        return self.token_table[self.slots[row], : self.num_tokens[row]]


class LogitsProcessor(Protocol):
    """A change to the logits, called for each step.

    The result must depend only on the arguments: a sequence may be preempted and computed again, and its slot may be
    reused for another sequence without notice.
    """

    def __call__(self, logits: torch.Tensor, rows: Rows) -> torch.Tensor:
        """logits: [R, V] float32, may be changed in place. Returns logits of the same shape; -inf forbids a token."""


def apply(processors: Sequence[LogitsProcessor], logits: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Applies all processors in order. Raises PluginError if one fails or returns logits of another shape."""
    shape = logits.shape
    for processor in processors:
        try:
            logits = processor(logits, rows)
        except Exception as error:
            raise PluginError(f"{_path(processor)} failed: {error_text(error)}") from error
        if getattr(logits, "shape", None) != shape:
            found = getattr(logits, "shape", type(logits).__name__)
            raise PluginError(f"{_path(processor)} gave {found}, not {tuple(shape)}")
    return logits


def _path(processor: LogitsProcessor) -> str:
    named = processor if isroutine(processor) else type(processor)
    return f"{named.__module__}:{named.__qualname__}"
