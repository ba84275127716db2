"""Heads: what is done with the hidden states that the body of a step has computed.

A head of the same interface decides which tokens it needs, so it can have any number of outputs for a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from ...config import Resolved
from ..collectives.stages import Passed, StageLink
from ..layers.linear import Mix
from ..step.plan import StepPlan
from ..step.result import StepResult
from .copies import ExpertMoves
from .materials import Materials
from .step_input import Int64, LogitTokens
from .step_part import Hidden

Finish = Callable[[], StepResult]  # ends a step: waits for what is missing, and returns its result


@dataclass(frozen=True, slots=True)
class HeadStep:
    """A step as its head sees it."""

    plan: StepPlan
    wanted: LogitTokens
    rows: Int64 | None  # the tokens whose hidden states the head gets, as indices into the batch; None: all
    mix: Mix | None  # of all tokens

    @property
    def tokens(self) -> Int64:
        return np.arange(self.plan.num_batched_tokens) if self.rows is None else self.rows


class Head(Protocol):
    @property
    def table(self) -> dict[str, str]:
        """Rows of the start-up table."""
        ...

    def rows(self, wanted: LogitTokens, num_tokens: int) -> Int64 | None:
        """The tokens of a step whose hidden states the head needs, as indices into the batch; None: all of them."""
        ...

    def project(self, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix | None, /) -> Any:
        """The part of the head that is captured together with the body, for all tokens of a step, which are sampled."""
        ...

    def begin(self, step: HeadStep, hidden: Hidden) -> Finish:
        """Begin what the head does with the hidden states of `step.rows`. What may fail for one step only, and what
        waits for other processes, is done by the function that is returned."""
        ...

    def begin_projected(self, step: HeadStep, projected: Any) -> Finish:
        """The same for all tokens, with what `project` has returned: it is valid until the next step."""
        ...


MakeHead = Callable[[Materials], Head]


class PassOnHead:
    """The head of another stage than the first: the next stage gets the hidden states."""

    def __init__(self, link: StageLink, moves: ExpertMoves, *, sends_all: bool) -> None:
        """sends_all: False if the next stage is the first one, which needs only the tokens with logits."""
        self._link, self._moves, self._sends_all = link, moves, sends_all
        self.table: dict[str, str] = {}

    def rows(self, wanted: LogitTokens, num_tokens: int) -> Int64 | None:
        return None if self._sends_all else wanted.union(num_tokens)

    def project(self, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix | None, /) -> Hidden:
        return hidden, residual

    def begin(self, step: HeadStep, hidden: Hidden) -> Finish:
        """Raises StageClosed."""
        self._link.send(Passed(*hidden, self._moves.balance))
        return no_result

    begin_projected = begin


class RingHead:
    """The head of the first of several stages: `head` gets the hidden states that have passed all others."""

    def __init__(self, link: StageLink, head: Head, resolved: Resolved, moves: ExpertMoves) -> None:
        """link: to the second stage, and from the last one."""
        self._link, self.inner, self._moves, self._resolved = link, head, moves, resolved
        self.table = head.table | _stages_table(resolved)

    def with_inner(self, head: Head) -> RingHead:
        """The same with another head for what comes back."""
        return RingHead(self._link, head, self._resolved, self._moves)

    def rows(self, wanted: LogitTokens, num_tokens: int) -> None:
        """The next stage needs all tokens."""

    def project(self, hidden: torch.Tensor, residual: torch.Tensor | None, mix: Mix | None, /) -> Hidden:
        return hidden, residual

    def begin(self, step: HeadStep, hidden: Hidden) -> Finish:
        """Raises StageClosed."""
        self._link.send(Passed(*hidden, self._moves.own_balance))
        return partial(self._finish, step)

    begin_projected = begin

    def _finish(self, step: HeadStep) -> StepResult:
        """Steps are finished in the order in which they begin, and no sequence has a row in a step after one that
        samples for it before that one is finished."""
        hidden, residual, self._moves.balance_of_others = self._link.receive()
        rows = self.inner.rows(step.wanted, step.plan.num_batched_tokens)
        return self.inner.begin(replace(step, rows=rows), (hidden, residual))()


def no_result() -> StepResult:
    """The result where another process has it."""
    return StepResult(np.empty(0, np.int32))


def around(link: StageLink, head: MakeHead) -> MakeHead:
    """The head of the first stage. link: to the second one, and from the last one. head: gets what comes back."""
    return lambda made: RingHead(link, head(made), made.resolved, made.moves)


def _stages_table(resolved: Resolved) -> dict[str, str]:
    layers, num_stages = resolved.stage_layers, resolved.num_stages
    others = " and ".join(f"{layers(stage)[0]} to {layers(stage)[-1]}" for stage in range(1, num_stages))
    stages = f"{num_stages} stages of {resolved.topology.group_size} processes"
    rows = {"pipeline": f"{stages}: layers 0 to {layers(0)[-1]} and the output layer here, {others} in others"}
    if resolved.device.device == "cuda":
        rows["steps"] = "kernels launched one by one: the stages exchange through the host"
    return rows
