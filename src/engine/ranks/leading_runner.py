"""The runner and the sampler of rank 0: what it does, the other ranks do too."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..api import EngineInfo, StepLaunches
from ..core import StepPlan, StepResult
from ..loop.step_queue import FailedAfterExchange
from ..nodes.rank_link import Finish, Tokens
from .followers import Followers, in_step

if TYPE_CHECKING:  # they import torch
    import torch

    from ..core.step_plan import Int32
    from ..runner.model_runner import ModelRunner
    from ..runner.stages import FirstStageRunner
    from ..sampling.sampler import Int64, Sampled, Sampler
    from ..sampling.sampling_table import Slots


class LeadingRunner:
    """Executes steps together with the other ranks."""

    def __init__(self, runner: ModelRunner, others: Followers) -> None:
        """runner: of rank 0, with a LeadingSampler."""
        self._runner, self._others = runner, others

    def execute(self, plan: StepPlan) -> StepResult:
        """Raises as `in_step`."""
        with in_step(self._others):
            self._announce(plan)
            return self._runner.execute(plan)

    def _announce(self, plan: StepPlan) -> None:
        """The others begin the step too."""
        self._others.send(plan)

    def warm_up(self) -> None:
        self._runner.warm_up(self.execute)

    def info(self) -> EngineInfo:
        return self._runner.info()

    def launches(self) -> StepLaunches:
        return self._runner.launches()


class LeadingStageRunner(LeadingRunner):
    """Begins and finishes the steps of a pipeline together with the other ranks."""

    def __init__(self, runner: FirstStageRunner, others: Followers) -> None:
        super().__init__(runner, others)
        self._stage = runner

    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        """The first stage of a step. Returns a function that waits for the others, and samples. Raises as `execute`."""
        with in_step(self._others):
            self._announce(plan)
            begun = self._stage.begin(plan)

        def finish() -> StepResult:
            with in_step(self._others):
                self._others.send(Finish())
                return self._stage.finish(begun)

        return finish

    def execute(self, plan: StepPlan) -> StepResult:
        """As LeadingRunner."""
        return self.launch(plan)()


class LeadingSampler:
    """The sampler of rank 0, whose tokens are for the other ranks too: they have them before the next step begins."""

    def __init__(self, sampler: Sampler, others: Followers) -> None:
        from ..runner.model_runner import LOGIT_ROWS

        self._sampler, self._others = sampler, others
        self._max_rows = LOGIT_ROWS
        self.prompt_logprobs = sampler.prompt_logprobs

    def sample(self, logits: torch.Tensor, slots: Slots, lengths: Int64, token_table: Int32) -> Sampled:
        """As Sampler. Raises FailedAfterExchange, which the others know."""
        try:
            sampled = self._sampler.sample(logits, slots, lengths, token_table)
        except Exception as error:
            self._others.hold(Tokens(None))
            raise FailedAfterExchange(error) from error
        tokens = Tokens(sampled.token_ids)
        if len(slots) < self._max_rows:
            self._others.hold(tokens)
        else:  # more rows of this step may follow, whose logits are exchanged
            self._others.send(tokens)
        return sampled
