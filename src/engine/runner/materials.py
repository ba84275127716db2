"""Materials: what the parts of a runner are made from."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...config import Resolved
from .copies import ExpertMoves
from .drafted_row import DraftedRow
from .loaded_model import LoadedModel
from .slot_table import SlotTable
from .step_features import StepFeature


@dataclass(slots=True)
class Launched:
    """Steps of the host since the start."""

    num_captured: int = 0
    num_single: int = 0  # kernel by kernel


@dataclass(frozen=True, slots=True)
class Materials:
    resolved: Resolved
    loaded: LoadedModel
    slots: SlotTable
    moves: ExpertMoves
    launched: Launched  # goes on when other kernels are used
    features: tuple[StepFeature, ...] = ()  # fill fields of StepInput that only some steps have
    # What rejected_drafts.py keeps, by slot. It remains when other kernels are used.
    drafted_rows: dict[int, DraftedRow] = field(default_factory=dict)
