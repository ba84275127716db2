"""StepFeature: a field of StepInput that only some steps have, and what fills it.

An entry in `Materials.features` is all that a field needs. All kinds of inputs fill it by the same function: steps of
the host, whole or in parts (inputs.py), and steps of a device, within their graphs (cuda/device_step.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..layers.step_input import StepInput
from ..step.plan import StepPlan
from .slot_table import SlotTable
from .step_shape import StepFlag

Columns = Mapping[str, torch.Tensor]  # [slots] each: slot_columns.py; and TOKEN_IDS
FIELDS = {
    StepFlag.MIX: "mix",
    StepFlag.ROPE_POSITIONS: "rope_positions",
    StepFlag.GIVEN: "given",
    StepFlag.EARLIER_IDS: "earlier_ids",
    StepFlag.TOKEN_TYPES: "token_types",
}
TOKEN_IDS = "token_ids"  # in the columns: [slots, tokens] int32, the ids of all sequences


@dataclass(frozen=True, slots=True)
class StepFeature:
    flag: StepFlag  # of the steps that have the field: one of FIELDS
    is_in: Callable[[StepPlan, SlotTable], bool]  # whether the step of an applied plan has it
    # Makes the value from the other tensors of the step and the columns of its slots. It must not depend on blocks:
    # all groups of layers get the same value. A padding row has slot -1. Steps of a CPU are captured if the value has
    # `clone` and `copy_` as tensors do, and the same sizes in all steps of a shape (decode_steps.py).
    fill: Callable[[StepInput, Columns], Any]


def fields_of(flags: int) -> list[str]:
    """The fields of StepInput that a step of these flags has."""
    return [field for flag, field in FIELDS.items() if flag & flags]


def flags_of(features: Iterable[StepFeature], plan: StepPlan, slots: SlotTable) -> int:
    """The flags of the features that the step of an applied plan has."""
    return sum(each.flag for each in features if each.is_in(plan, slots))


def with_features(
    steps: Sequence[StepInput], features: Iterable[StepFeature], flags: int, columns: Columns
) -> Sequence[StepInput]:
    """The step, as each group of layers sees it, with the fields of these flags."""
    values = {FIELDS[each.flag]: each.fill(steps[0], columns) for each in features if each.flag & flags}
    return [replace(step, **values) for step in steps] if values else steps
