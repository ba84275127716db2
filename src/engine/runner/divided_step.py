"""DividedSteps: steps computed in parts by each rank, so that one part is computed while another is exchanged.

The parts take turns at every exchange (collectives/turns.py), and so do all ranks in the same order. A part has
consecutive tokens of the batch, also of one prompt: in each layer it writes its keys, values and states before a later
part reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from ...config import Resolved
from ..collectives.turns import call_in_turns
from ..step.plan import StepPlan
from .step_input import Int64
from .step_part import Forward, Hidden, StepPart, joined, tokens_of


@dataclass(frozen=True, slots=True)
class DividedSteps:
    num_parts: int
    prompt_threshold: int  # tokens of a step with a prompt, from which it is divided
    decode_threshold: int  # and of one without

    @property
    def table(self) -> dict[str, str]:
        """See StepDivision."""
        where = f"with prompts from {self.prompt_threshold} tokens, without from {self.decode_threshold} sequences"
        return {"divided_steps": f"{self.num_parts} parts in turns, one computed while others are exchanged; {where}"}

    def takes(self, plan: StepPlan) -> bool:
        """See StepDivision."""
        num_tokens = plan.num_batched_tokens
        is_decode = num_tokens == plan.num_rows
        return num_tokens >= max(self.num_parts, self.decode_threshold if is_decode else self.prompt_threshold)

    def before_whole(self, plan: StepPlan) -> None:
        """Does nothing: the ranks meet in the exchanges of the step."""

    def compute(self, plan: StepPlan, rows: Int64 | None, forward: Forward) -> Hidden:
        """See StepDivision."""
        bounds = np.linspace(0, plan.num_batched_tokens, self.num_parts + 1).astype(np.int64)
        calls = []
        for start, end in pairwise(bounds.tolist()):
            own = None if rows is None else rows[(rows >= start) & (rows < end)] - start
            calls.append(partial(forward, StepPart(tokens_of(plan, range(start, end)), own)))
        return joined(call_in_turns(calls))


def divided_steps(resolved: Resolved) -> DividedSteps | None:
    """How steps are divided; None if they are computed whole."""
    parallel = resolved.parallel
    if parallel.num_step_parts == 1:
        return None
    thresholds = parallel.dbo_prefill_token_threshold, parallel.dbo_decode_token_threshold
    return DividedSteps(parallel.num_step_parts, *thresholds)
