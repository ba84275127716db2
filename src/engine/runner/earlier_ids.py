"""The ids before each token of a step, for models with embeddings of n-grams: they are data of the step, not a state.

The slot tables have all ids of a sequence. So chunks, cached prefixes and resumed sequences need nothing else.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ...model.spec import ModelSpec
from ..layers.step_input import StepInput
from .step_features import TOKEN_IDS, Columns, StepFeature
from .step_shape import StepFlag


def features_of(spec: ModelSpec) -> tuple[StepFeature, ...]:
    """The features that all steps of a model have."""
    if not spec.ngram_size:
        return ()

    def fill(step: StepInput, columns: Columns) -> torch.Tensor:
        return earlier_ids(step, columns[TOKEN_IDS], spec.ngram_size - 1)

    return (StepFeature(StepFlag.EARLIER_IDS, lambda plan, slots: True, fill),)


def with_earlier_ids(step: StepInput, spec: ModelSpec, token_ids: torch.Tensor) -> StepInput:
    """A step that no plan has made, with the field if the model needs it. token_ids: [slots, tokens]."""
    if not spec.ngram_size:
        return step
    return replace(step, earlier_ids=earlier_ids(step, token_ids, spec.ngram_size - 1))


def earlier_ids(step: StepInput, token_ids: torch.Tensor, count: int) -> torch.Tensor:
    """token_ids: [slots, tokens], on any device. Returns [count, T] int64 as StepInput has it."""
    tokens = torch.arange(step.num_tokens, dtype=torch.int32, device=step.positions.device)
    rows = torch.searchsorted(step.query_start, tokens, right=True).sub_(1).clamp_(max=step.num_rows - 1)
    slots = step.seq_slots[rows].long().clamp_(min=0)  # of a padding row any
    distances = torch.arange(1, count + 1, device=step.positions.device)
    places = step.positions - distances[:, None]
    flat = (slots * token_ids.shape[1] + places.clamp(min=0)).to(token_ids.device)
    found = token_ids.view(-1)[flat].long().to(step.positions.device)
    return found.masked_fill_(places < 0, -1)
