"""StepPart: some of the tokens of a step, which are computed by a separate forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from ..step.plan import StepPlan
from .step_input import Int64

Hidden = tuple[torch.Tensor, torch.Tensor | None]  # hidden states and residual of the tokens with logits


@dataclass(frozen=True, slots=True)
class StepPart:
    plan: StepPlan  # its changes of the slot table are made
    rows: Int64 | None  # the tokens that need logits, as indices into the plan's batch, ascending; None for all
    slots_by_rank: tuple[torch.Tensor, ...] = ()  # of SlotsOfRanks for each group of layers; empty without


Forward = Callable[[StepPart], Hidden]


class StepDivision(Protocol):
    """How steps are divided into parts."""

    @property
    def table(self) -> dict[str, str]:
        """A row of the start-up table."""
        ...

    def takes(self, plan: StepPlan) -> bool:
        """Whether this step is divided."""
        ...

    def before_whole(self, plan: StepPlan) -> None:
        """Called before a step that is not divided."""
        ...

    def compute(self, plan: StepPlan, rows: Int64 | None, forward: Forward) -> Hidden:
        """plan, rows: of the whole step, as of StepPart. Returns what `forward` would return for it."""
        ...


def tokens_of(plan: StepPlan, *ranges: range) -> StepPlan:
    """The rows, or parts of rows, that compute these tokens of the batch. ranges: ascending."""
    last = np.cumsum(plan.num_tokens, dtype=np.int64)
    first = last - plan.num_tokens
    found = []
    for tokens in ranges:
        skipped = np.maximum(tokens.start - first, 0)
        count = np.minimum(last, tokens.stop) - first - skipped
        rows = np.flatnonzero(count > 0)
        # The outputs of a row are its last tokens: this range has the outputs within it.
        first_output = np.maximum(last - plan.num_outputs, tokens.start)
        num_outputs = np.maximum(np.minimum(last, tokens.stop) - first_output, 0)
        found.append([each[rows] for each in (plan.slots, plan.num_computed + skipped, count, num_outputs)])
    slots, num_computed, num_tokens, num_outputs = (np.concatenate(each) for each in zip(*found, strict=True))
    return replace(
        plan,
        slots=slots,
        num_computed=num_computed.astype(np.int32),
        num_tokens=num_tokens.astype(np.int32),
        num_outputs=num_outputs.astype(np.int32),
    )


def joined(parts: Sequence[Hidden]) -> Hidden:
    hidden = [each for each, _ in parts]
    residual = [each for _, each in parts if each is not None]
    return torch.cat(hidden), torch.cat(residual) if residual else None
