"""SharedSteps: steps of which each rank computes some of the tokens: prefill context parallel.

All ranks have the same weights, plans and slot tables. In each layer a rank gets the keys and values of the tokens that
others compute (parallel/prompt_parts.py), so all caches are the same after a step. A step of few tokens is not shared:
each rank computes all of it, and after some of them they wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..core.step_plan import StepPlan
from ..parallel.prompt_parts import Gathering
from .slot_table import SlotTable
from .step_input import Int64, written_slots
from .step_part import Forward, Hidden, StepPart, tokens_of

MIN_TOKENS_EACH = 32  # with fewer, each rank would read all weights for a part that is hardly faster than the whole
MAX_STEPS_AHEAD = 16  # of the slowest rank, while each computes whole steps


@dataclass(frozen=True, slots=True)
class SharedSteps:
    ranks: Gathering
    slots: SlotTable

    @property
    def table(self) -> dict[str, str]:
        """As StepDivision."""
        count = self.ranks.size
        return {"shared_steps": f"from {count * MIN_TOKENS_EACH} tokens on, by {count} processes with all weights"}

    def takes(self, plan: StepPlan) -> bool:
        """As StepDivision."""
        return plan.num_batched_tokens >= self.ranks.size * MIN_TOKENS_EACH

    def before_whole(self, plan: StepPlan) -> None:
        """As StepDivision. Else the next prompt would wait for all steps that a slower rank has not computed yet."""
        if plan.step % MAX_STEPS_AHEAD == 0:
            self.ranks.of_all(torch.zeros(1))

    def compute(self, plan: StepPlan, rows: Int64 | None, forward: Forward) -> Hidden:
        """As StepDivision."""
        num_tokens, rank = plan.num_batched_tokens, self.ranks.rank
        wanted = np.arange(num_tokens) if rows is None else rows
        shares = [shares_of(each, self.ranks.size, num_tokens) for each in range(self.ranks.size)]
        tokens = [np.concatenate([np.arange(each.start, each.stop) for each in share]) for share in shares]
        own = None if rows is None else np.flatnonzero(np.isin(tokens[rank], rows))
        part = StepPart(tokens_of(plan, *shares[rank]), own, self._slots_by_rank(plan, tokens))
        return self._gathered(forward(part), [np.flatnonzero(np.isin(wanted, each)) for each in tokens])

    def _slots_by_rank(self, plan: StepPlan, tokens: list[Int64]) -> tuple[torch.Tensor, ...]:
        by_group = written_slots(plan, self.slots)
        found = np.full((len(by_group), len(tokens), max(map(len, tokens))), -1, np.int64)
        for rank, each in enumerate(tokens):
            found[:, rank, : len(each)] = by_group[:, each]
        return tuple(torch.from_numpy(found))

    def _gathered(self, own: Hidden, places: list[Int64]) -> Hidden:
        """places: of the rows of each rank, among those of all."""
        hidden, residual = own
        longest = max(map(len, places))
        if not longest:
            return own
        both = hidden if residual is None else torch.cat((hidden, residual), 1)
        sent = both.new_zeros(longest, both.shape[1])
        sent[: len(both)] = both
        whole = both.new_empty(sum(map(len, places)), both.shape[1])
        for place, found in zip(places, self.ranks.of_all(sent), strict=True):
            whole[torch.from_numpy(place)] = found[: len(place)]
        if residual is None:
            return whole, None
        width = hidden.shape[1]
        return whole[:, :width].contiguous(), whole[:, width:].contiguous()


def shares_of(rank: int, num_ranks: int, num_tokens: int) -> list[range]:
    """The tokens of a rank: one piece near the beginning and one as near to the end, so that those of one prompt have
    the same number of tokens before them on all ranks. Sources: Liu et al., arXiv:2310.01889; Brandon et al.,
    arXiv:2311.09431."""
    bounds = np.linspace(0, num_tokens, 2 * num_ranks + 1).astype(int).tolist()
    return [range(bounds[piece], bounds[piece + 1]) for piece in (rank, 2 * num_ranks - 1 - rank)]
