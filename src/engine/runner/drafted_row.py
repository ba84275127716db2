"""DraftedRow: what is kept of a row with drafts until it is known how many of its tokens were accepted."""

from __future__ import annotations

from dataclasses import dataclass

from ..layers.step_input import StateInputs


@dataclass(frozen=True, slots=True)
class DraftedRow:
    num_computed: int  # tokens computed before the step
    num_tokens: int  # of the row
    inputs: list[StateInputs]  # of these tokens, of each part with a recurrent state, in the order of their calls
