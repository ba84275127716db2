"""StepWork: operations and bytes of all steps since the start, estimated from their plans."""

from __future__ import annotations

import numpy as np

from ...model.step_costs import StepCosts
from ..api import Work
from .step_plan import StepPlan


class StepWork:
    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self.total = Work()

    def add(self, plan: StepPlan) -> None:
        costs, total = self._costs, self.total
        starts, counts = plan.num_computed.astype(np.float64), plan.num_tokens.astype(np.float64)
        num_tokens = float(counts.sum())
        flops = num_tokens * costs.token_flops + float(plan.is_sampled.sum()) * costs.logit_flops
        read = costs.weights_bytes * min(1.0, num_tokens * costs.active_share) + plan.num_rows * costs.state_bytes
        for each in costs.attention:
            most = np.inf if each.window is None else each.window
            seen = np.minimum(starts + (counts + 1) / 2, most)  # by a query in the middle of its row
            flops += each.flops * float((counts * seen).sum())
            read += each.num_bytes * float(np.minimum(starts + counts, most + counts - 1).sum())
        written = num_tokens * costs.written_bytes + plan.num_rows * costs.state_bytes
        self.total = Work(total.flops + flops, total.read_bytes + read, total.written_bytes + written)
