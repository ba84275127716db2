"""StepWork: operations and bytes of all steps since the start, estimated from their plans."""

from __future__ import annotations

import numpy as np

from ...model.step_costs import StepCosts
from ..api import Work
from ..step.plan import StepPlan


class StepWork:
    """Adds up plans by the model's StepCosts. `total` is the sum so far."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self.total = Work()

    def add(self, plan: StepPlan) -> None:
        """Add one step. It reads `active_share` of the weights for each token, and at most all of them."""
        costs, total = self._costs, self.total
        starts, counts = plan.num_computed.astype(np.float64), plan.num_tokens.astype(np.float64)
        num_tokens = float(counts.sum())
        flops = num_tokens * costs.token_flops + float(plan.num_outputs.sum()) * costs.logit_flops
        read = costs.weights_bytes * min(1.0, num_tokens * costs.active_share) + plan.num_rows * costs.state_bytes
        for attention in costs.attention:
            window = np.inf if attention.window is None else attention.window
            num_seen = np.minimum(starts + (counts + 1) / 2, window)  # keys of a query in the middle of its row
            num_read = np.minimum(starts + counts, window + counts - 1)  # keys of all queries of the row
            flops += attention.flops * float((counts * num_seen).sum())
            read += attention.num_bytes * float(num_read.sum())
        written = num_tokens * costs.written_bytes + plan.num_rows * costs.state_bytes
        self.total = Work(total.flops + flops, total.read_bytes + read, total.written_bytes + written)
