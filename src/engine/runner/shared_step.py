"""SharedSteps: steps of which each rank computes some of the tokens: prefill context parallel.

All ranks have the same weights, plans and slot tables. In each layer a rank gets the keys and values of the tokens that
others compute (collectives/prompt_parts.py), so all caches are the same after a step. A step of few tokens is not
shared: each rank computes all of it, and after some of these steps the ranks wait for each other.

The two pieces that a rank has can be computed in turns, as the parts of divided_step.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from ...config.schema.parallel import MIN_TOKENS_EACH
from ..collectives.prompt_parts import Gathering
from ..collectives.turns import call_in_turns
from ..step.plan import StepPlan
from .divided_step import DividedSteps
from .slot_table import SlotTable
from .step_input import Int64, written_slots
from .step_part import Forward, Hidden, StepPart, joined, tokens_of

MAX_STEPS_AHEAD = 16  # of the slowest rank, while each computes whole steps


@dataclass(frozen=True, slots=True)
class SharedSteps:
    ranks: Gathering
    slots: SlotTable
    in_turns: DividedSteps | None = None  # which steps are computed so; None for none

    @property
    def table(self) -> dict[str, str]:
        """See StepDivision."""
        count = self.ranks.size
        shared = f"from {count * MIN_TOKENS_EACH} tokens on, by {count} processes with all weights"
        return {"shared_steps": shared} | ({} if self.in_turns is None else self.in_turns.table)

    def takes(self, plan: StepPlan) -> bool:
        """See StepDivision."""
        return plan.num_batched_tokens >= self.ranks.size * MIN_TOKENS_EACH

    def before_whole(self, plan: StepPlan) -> None:
        """Wait for the other ranks every MAX_STEPS_AHEAD steps. Otherwise the next prompt would wait for all steps that
        a slower rank has not computed yet."""
        if plan.step % MAX_STEPS_AHEAD == 0:
            self.ranks.of_all(torch.zeros(1))

    def compute(self, plan: StepPlan, rows: Int64 | None, forward: Forward) -> Hidden:
        """See StepDivision."""
        num_tokens, size = plan.num_batched_tokens, self.ranks.size
        pieces = [pieces_of(rank, size, num_tokens) for rank in range(size)]
        if self.in_turns is not None and self.in_turns.takes(plan):
            parts = [self._part(plan, rows, [[own[index]] for own in pieces]) for index in range(2)]
        else:
            parts = [self._part(plan, rows, pieces)]
        own = joined(call_in_turns([partial(forward, part) for part in parts]))
        wanted = np.arange(num_tokens) if rows is None else rows
        return self._gathered(own, [np.flatnonzero(np.isin(wanted, _tokens(each))) for each in pieces])

    def _part(self, plan: StepPlan, rows: Int64 | None, pieces: Sequence[Sequence[range]]) -> StepPart:
        """The part of this rank. pieces: of each rank."""
        own, tokens = self.ranks.rank, [_tokens(each) for each in pieces]
        own_rows = None if rows is None else np.flatnonzero(np.isin(tokens[own], rows))
        return StepPart(tokens_of(plan, *pieces[own]), own_rows, self._slots_by_rank(plan, tokens))

    def _slots_by_rank(self, plan: StepPlan, tokens: list[Int64]) -> tuple[torch.Tensor, ...]:
        by_group = written_slots(plan, self.slots)
        found = np.full((len(by_group), len(tokens), max(map(len, tokens))), -1, np.int64)
        for rank, each in enumerate(tokens):
            found[:, rank, : len(each)] = by_group[:, each]
        return tuple(torch.from_numpy(found))

    def _gathered(self, own: Hidden, places: list[Int64]) -> Hidden:
        """places: of the rows of each rank, among the rows of all ranks."""
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


def pieces_of(rank: int, num_ranks: int, num_tokens: int) -> list[range]:
    """The tokens of a rank: one piece near the beginning and one as near to the end, so that tokens of one prompt
    have the same number of tokens before them on all ranks. Sources: Liu et al., arXiv:2310.01889; Brandon et al.,
    arXiv:2311.09431."""
    bounds = np.linspace(0, num_tokens, 2 * num_ranks + 1).astype(int).tolist()
    return [range(bounds[piece], bounds[piece + 1]) for piece in (rank, 2 * num_ranks - 1 - rank)]


def _tokens(pieces: Sequence[range]) -> Int64:
    return np.concatenate([np.arange(piece.start, piece.stop) for piece in pieces])
