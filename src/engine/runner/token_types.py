"""The types of the tokens of a step, for models with an embedding of them: 1 in the second of two texts, else 0."""

from __future__ import annotations

import torch

from ...model.spec import ModelSpec
from ..layers.step_input import StepInput
from ..step.plan import StepPlan
from .slot_columns import NO_SECOND_TEXT, SECOND_TEXT
from .slot_table import SlotTable
from .step_features import Columns, StepFeature
from .step_shape import StepFlag


def token_type_features(spec: ModelSpec) -> tuple[StepFeature, ...]:
    """The feature of the steps that have second texts, of a model with such an embedding: other tokens have type 0."""
    if not spec.num_token_types:
        return ()

    def is_in(plan: StepPlan, slots: SlotTable) -> bool:
        return bool((slots.columns[SECOND_TEXT][plan.slots] < NO_SECOND_TEXT).any())

    def fill(step: StepInput, columns: Columns) -> torch.Tensor:
        return token_types(step, columns[SECOND_TEXT])

    return (StepFeature(StepFlag.TOKEN_TYPES, is_in, fill),)


def token_types(step: StepInput, second_text: torch.Tensor) -> torch.Tensor:
    """second_text: [slots] int64, where the second text of each sequence begins. Returns [T] int64."""
    tokens = torch.arange(step.num_tokens, dtype=torch.int32, device=step.positions.device)
    rows = torch.searchsorted(step.query_start, tokens, right=True).sub_(1).clamp_(max=step.num_rows - 1)
    slots = step.seq_slots[rows].long().clamp_(min=0)  # of a padding row any
    return (step.positions >= second_text[slots]).long()
