"""The head and the inputs of a step where a network drafts, which gets from them what it needs."""

from __future__ import annotations

from typing import Any

import torch

from ..layers.linear import Mix
from ..models.draft_network import ModelReader
from ..step.plan import StepPlan
from ..step.result import StepResult
from .heads import Finish, HeadStep
from .inputs import HostInputs
from .model_drafts import ModelDrafts
from .sample_head import SampleHead
from .step_input import Int64, LogitTokens
from .step_part import Hidden


class DraftingInputs:
    """Inputs of a step, and the end of what is remembered of released slots."""

    def __init__(self, inputs: HostInputs, drafts: ModelDrafts) -> None:
        self._inputs, self._drafts = inputs, drafts

    def apply(self, plan: StepPlan) -> None:
        self._drafts.release(plan.released_slots)
        self._inputs.apply(plan)


class DraftingHead:
    def __init__(self, head: SampleHead, drafts: ModelDrafts, reader: ModelReader | None) -> None:
        """reader: of what the drafts begin with; None if they need nothing of the model."""
        self._head, self._drafts, self._reader = head, drafts, reader
        self.table = head.table

    def rows(self, wanted: LogitTokens, num_tokens: int) -> Int64 | None:
        return self._head.rows(wanted, num_tokens)

    def project(self, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix | None, /) -> Any:
        kept = None if self._reader is None else self._reader.read((hidden, residual))
        return self._head.project(hidden, residual, mix), kept

    def begin(self, step: HeadStep, hidden: Hidden) -> Finish:
        if self._reader is not None:
            self._drafts.keep(step.plan, self._reader.read(hidden))
        return self._timed(self._head.begin(step, hidden))

    def begin_projected(self, step: HeadStep, projected: Any) -> Finish:
        logits, kept = projected
        if kept is not None:
            self._drafts.keep(step.plan, kept)
        return self._timed(self._head.begin_projected(step, logits))

    def _timed(self, finish: Finish) -> Finish:
        def finished() -> StepResult:
            result = finish()
            result.draft_seconds, self._drafts.seconds = self._drafts.seconds, 0.0
            result.draft_error, result.undrafted = self._drafts.error, self._drafts.undrafted
            result.undraftable = self._drafts.undraftable
            result.is_of_new_shape |= self._drafts.is_of_new_shape
            return result

        return finished
