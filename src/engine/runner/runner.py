"""Runner: executes step plans. It is composed of four parts, chosen once, when the model is loaded.

Inputs are what a step is computed from, the body is the layers of this stage and rank, the head makes of their hidden
states what is wanted, and copies are what is moved before and after the body. No part knows which others it runs with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from ..api import EngineInfo, StepLaunches
from ..kernels.spans import span
from ..step.plan import StepPlan
from ..step.result import StepResult
from .copies import StepCopy
from .engine_info import engine_info
from .heads import Finish
from .loaded_model import LoadedModel
from .materials import Materials
from .measure import PhaseClock
from .model_drafts import ModelDrafts
from .rank_model import RankModel
from .slot_table import SlotTable
from .warm_up import warm_up_plans


class Inputs(Protocol):
    def apply(self, plan: StepPlan) -> object:
        """Apply the changes since the previous plan. Plans must arrive in the order in which they were made."""
        ...


class Body(Protocol):
    """The layers of this stage and rank, with the inputs and the head that they were made with."""

    @property
    def table(self) -> dict[str, str]:
        """Rows of the start-up table."""
        ...

    def compute(self, plan: StepPlan) -> Finish:
        """Compute the layers, and begin the head, for a plan that was applied. Returns what ends the step.

        A plan without rows is the part of this process in a step of others.
        """
        ...

    def warm_up(self, phases: PhaseClock) -> None:
        """Called after the first steps, before the engine is ready."""
        ...

    def idle(self) -> bool:
        """Do one part of the work that can wait until no request runs. Returns False when none is left."""
        ...

    def forget(self) -> None:
        """Forget what was captured: weights are replaced."""
        ...

    def launches(self) -> StepLaunches:
        """Numbers of steps by how they were launched, since the start."""
        ...


class Parts(NamedTuple):
    inputs: Inputs
    body: Body  # with the head
    copies: Sequence[StepCopy]


class Runner:
    def __init__(self, made: Materials, parts: Parts, phases: PhaseClock) -> None:
        """made: what the parts are made from. phases: of the start so far."""
        self.made, self.parts, self.phases = made, parts, phases
        self._lock = threading.RLock()  # held while the body computes, and while the kernels change
        self.self_test = ""  # result of the self-test, for the start-up table

    def execute(self, plan: StepPlan) -> StepResult:
        """One step. Plans must arrive in the order in which the scheduler made them."""
        with self._lock, span(f"step {plan.step}"), torch.inference_mode():
            return self._launch(plan)()

    def launch(self, plan: StepPlan) -> Finish:
        """Begin a step. Returns a function that waits for its result. Steps end in the order in which they begin."""
        with self._lock, span(f"step {plan.step}"), torch.inference_mode():
            return self._launch(plan)

    def _launch(self, plan: StepPlan) -> Finish:
        inputs, body, copies = self.parts
        inputs.apply(plan)
        for copy in copies:
            copy.before(plan)
        finish = body.compute(plan)
        for copy in copies:
            copy.after(plan)
        return finish

    def warm_up(self, execute: Callable[[StepPlan], object] | None = None) -> None:
        """Runs a short prompt and one token after it, so that lazy initialisation happens before the first request.

        execute: executes the steps; None for `self.execute`.
        """
        execute = execute or self.execute
        self.phases.start("warm-up")
        for plan in warm_up_plans(self.made.resolved, self.loaded.cache):
            execute(plan)
        self.phases.stop()
        self.parts.body.warm_up(self.phases)

    def idle(self) -> bool:
        """See Body.idle."""
        return self.parts.body.idle()

    def free_memory(self) -> None:
        """Give the memory that only steps need back to the system. Raises MemoryError, and has all of it still."""
        with self._lock:
            self.loaded.free_memory()

    def take_memory(self) -> None:
        """Take it again, before the next step. Raises MemoryError, and has none of it then."""
        with self._lock:
            self.loaded.take_memory()

    def rank_model(self, rank: int = 0) -> RankModel:
        """The weights. rank: of this process within its stage."""
        return RankModel(self.loaded.model, self.made.resolved, rank, self._between_steps)

    def _between_steps(self, replace: Callable[[], None]) -> None:
        with self._lock:
            replace()
            self.parts.body.forget()
            if (drafts := self.drafts) is not None:
                drafts.forget()

    def switch(self, make: Callable[[], tuple[Materials, Parts]]) -> None:
        """Go on with other parts, between two steps. make: makes them."""
        with self._lock:
            self.made, self.parts = make()

    @property
    def drafts(self) -> ModelDrafts | None:
        """What drafts tokens with a network of its own."""
        return next((copy for copy in self.parts.copies if isinstance(copy, ModelDrafts)), None)

    @property
    def loaded(self) -> LoadedModel:
        return self.made.loaded

    @property
    def slots(self) -> SlotTable:
        return self.made.slots

    @property
    def num_blocks(self) -> int:
        """Number of blocks of the KV cache, of all groups of layers together."""
        return self.loaded.cache.num_blocks

    @property
    def expert_balance(self) -> float | None:
        """Mean load of the ranks over the largest one, in the stage where it is smallest; None if it is not known."""
        return self.made.moves.balance

    def launches(self) -> StepLaunches:
        """See Body.launches."""
        return self.parts.body.launches()

    def info(self) -> EngineInfo:
        adapters = self.loaded.adapters
        rows = self.parts.body.table | ({} if adapters is None else {"adapters": str(adapters)})
        rows |= {"self_test": self.self_test} if self.self_test else {}
        return engine_info(self.made.resolved, self.loaded, rows, self.phases.seconds)
