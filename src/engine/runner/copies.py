"""Copies: what is moved before and after the body of a step, in one list: experts, recurrent states, stored blocks."""

from __future__ import annotations

from typing import Protocol

from ..step.plan import StepPlan
from .block_transfer import BlockTransfer
from .expert_balancer import ExpertBalancer, worst
from .state_cache import StateCache


class StepCopy(Protocol):
    def before(self, plan: StepPlan) -> None:
        """Called before the body. The plan has been applied to the slot table."""
        ...

    def after(self, plan: StepPlan) -> None:
        """Called after the body. Sampled tokens may not be known yet."""
        ...


class ExpertMoves:
    """Experts that move between ranks before a step, and how even the load of the ranks is."""

    def __init__(self, balancer: ExpertBalancer | None) -> None:
        self.balancer = balancer
        self.balance_of_others: float | None = None  # the smallest one of the other stages that are known here

    @property
    def own_balance(self) -> float | None:
        """Mean load of the ranks of this stage over the largest one; None if it is not measured."""
        return None if self.balancer is None else self.balancer.balancedness

    @property
    def balance(self) -> float | None:
        """The smallest balance of the stages that are known here."""
        return worst((self.balance_of_others, self.own_balance))

    def before(self, plan: StepPlan) -> None:
        if self.balancer is not None:
            self.balancer.before_step()

    def after(self, plan: StepPlan) -> None:
        """Does nothing."""


class StateCopies:
    """Copies of recurrent states between places."""

    def __init__(self, states: StateCache) -> None:
        self._states = states

    def before(self, plan: StepPlan) -> None:
        self._states.copy(plan.restored_states)

    def after(self, plan: StepPlan) -> None:
        self._states.copy(plan.kept_states)


class BlockCopies:
    """Stored blocks, from the store before a step and to the store after it."""

    def __init__(self, transfer: BlockTransfer | None) -> None:
        """transfer: None if plans load nothing; what they save is not stored then."""
        self._transfer = transfer

    def before(self, plan: StepPlan) -> None:
        if plan.loads:
            assert self._transfer is not None, "nothing is stored"
            self._transfer.load(plan.loads)

    def after(self, plan: StepPlan) -> None:
        if plan.saves and self._transfer is not None:
            self._transfer.save(plan.saves)
