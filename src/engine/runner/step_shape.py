"""StepShape: what decides which kernels a step launches, and on which sizes. Steps of one shape share a graph."""

from __future__ import annotations

from enum import IntFlag
from typing import NamedTuple


class StepFlag(IntFlag):
    """Features of a step that change its kernels. A shape without flags has the fewest."""

    FULL_SAMPLER = 1  # some row is neither greedy nor has only a temperature
    RESIDUAL = 2  # the stage before has sent a residual beside the hidden states
    MIX = 4  # this flag and those below: StepInput has the field of that name (step_features.py)
    ROPE_POSITIONS = 8
    GIVEN = 16
    EARLIER_IDS = 32
    TOKEN_TYPES = 64


class StepShape(NamedTuple):
    num_tokens: int  # with padding
    num_rows: int  # with padding
    tokens_per_row: int  # 1 of a decode step; 0: the rows differ
    flags: int = 0  # of StepFlag
    num_expert_rows: int = 0  # of the experts that replicas share, with padding; 0 without them
