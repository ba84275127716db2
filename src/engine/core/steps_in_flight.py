"""StepsInFlight: plans that were returned and are not finished, oldest first.

Their rows may still write to the blocks of sequences that have ended or were preempted. Such blocks are kept here until
the last of these steps is finished, and go back to the pool then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...model.step_costs import StepCosts
from ..step.plan import Int64, StepPlan
from .block_pool import BlockPool
from .histogram import Histogram
from .request import Request
from .step_work import StepWork


@dataclass(slots=True)
class StepInFlight:
    plan: StepPlan
    requests: list[Request]  # by row; a slot may have another sequence by the time the step is finished
    serials: Int64  # by row: SlotColumns.serial when the step was planned
    unnamed_states: list[tuple[int, int]] = field(default_factory=list)  # rows and places: sequence_states.py


class StepsInFlight:
    def __init__(self, pool: BlockPool, token_limits: Sequence[float] = (), costs: StepCosts | None = None) -> None:
        """token_limits: of the buckets of `tokens`. costs: None if the work of the steps is not counted."""
        self._pool = pool
        self._steps: deque[StepInFlight] = deque()
        self._held: dict[int, list[list[int]]] = {}  # step -> block tables to release when it is finished
        self._last_with_tables = -1  # the newest step with a table of a sequence that has left its slot
        self.num_planned = 0
        self.tokens = Histogram(token_limits)
        self.iteration_tokens = Histogram(token_limits)  # with the first token of each answer
        self.work = None if costs is None else StepWork(costs)
        self.last_finished = -1

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[StepInFlight]:
        return iter(self._steps)

    def __getitem__(self, index: int) -> StepInFlight:
        return self._steps[index]

    @property
    def holds_tables(self) -> bool:
        """Blocks of a sequence that has left its slot will be released when a step is finished."""
        return self._last_with_tables > self.last_finished

    def add(self, step: StepInFlight) -> None:
        self._steps.append(step)
        self.num_planned += 1
        num_tokens = step.plan.num_batched_tokens
        self.tokens.add(num_tokens)
        self.iteration_tokens.add(num_tokens + _num_first_tokens(step))
        if self.work is not None:
            self.work.add(step.plan)

    def retire(self, plan: StepPlan) -> StepInFlight:
        """The plan will write no more: release the blocks held for it. RuntimeError if it is not the oldest one."""
        if not self._steps or self._steps[0].plan is not plan:
            raise RuntimeError(f"step {plan.step} is not the oldest one in flight")
        self.last_finished = plan.step
        for block_ids in self._held.pop(plan.step, ()):
            self._pool.release(block_ids)
        return self._steps.popleft()

    def release(self, block_ids: list[int], last_step: int, *, is_table: bool = True) -> None:
        """Release a sequence's blocks once `last_step`, the newest with a row for it, is finished.

        is_table: all of them; otherwise those before its windows, in place of which it will take others.
        """
        if last_step <= self.last_finished:
            self._pool.release(block_ids)
            return
        self._held.setdefault(last_step, []).append(block_ids)
        if is_table:
            self._last_with_tables = max(self._last_with_tables, last_step)


def _num_first_tokens(step: StepInFlight) -> int:
    """How many rows end a prompt, so that an answer begins."""
    plan, num_first = step.plan, 0
    for row in reversed(range(len(step.requests))):
        end = int(plan.num_computed[row] + plan.num_tokens[row])
        num_prompt_tokens = step.requests[row].num_prompt_tokens
        is_decode = end > num_prompt_tokens and plan.num_tokens[row] == 1
        if is_decode:  # so are all rows before it
            break
        if end == num_prompt_tokens and plan.num_outputs[row]:
            num_first += 1
    return num_first
