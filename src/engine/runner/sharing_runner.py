"""SharingRunner: a ModelRunner with some of the experts. Replicas with the others compute each of its steps too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ..api import EngineInfo, StepLaunches, TokenLogprobs
from ..core import StepPlan, StepResult
from ..loop.step_queue import FailedAfterExchange, RunnerUnusable, cause_of
from ..parallel import SharedExperts
from .model_runner import ModelRunner

if TYPE_CHECKING:
    import torch

    from ..core.step_plan import Int32
    from ..sampling.sampler import Int64, Sampled, Sampler
    from ..sampling.sampling_table import Slots


class ReplicaLost(RunnerUnusable):
    def __init__(self) -> None:
        super().__init__("another replica, which has other experts, has ended")


class SharingRunner:
    def __init__(self, runner: ModelRunner, replicas: SharedExperts) -> None:
        self._runner, self._replicas = runner, replicas

    @property
    def is_waited_for(self) -> bool:
        return self._replicas.is_waited_for

    def execute(self, plan: StepPlan) -> StepResult:
        """A step with the others; of a plan without rows, their step.

        Raises RunnerUnusable if it fails: the others have computed a part of it, and no step can follow in any replica;
        ReplicaLost if another one has ended.
        """
        try:
            self._replicas.begin(plan.num_batched_tokens)
            if plan.num_rows:
                return self._runner.execute(plan)
            self._runner.assist()
        except FailedAfterExchange as failed:
            raise failed.error from None
        except BaseException as error:
            is_of_another = self._replicas.is_closed
            self._replicas.close()
            if not isinstance(error, Exception):
                raise
            if is_of_another:
                raise ReplicaLost from None
            raise RunnerUnusable(f"a step failed, which other replicas have begun: {cause_of(error)}") from error
        return StepResult(np.empty(0, np.int32))

    def warm_up(self) -> None:
        """The others do the same."""
        self._runner.warm_up(self.execute)

    def free_memory(self) -> None:
        self._runner.free_memory()

    def take_memory(self) -> None:
        self._runner.take_memory()

    def info(self) -> EngineInfo:
        return self._runner.info()

    def launches(self) -> StepLaunches:
        return self._runner.launches()


class SamplerOfOwnTokens:
    """The sampler of a replica, whose failures are its own."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def sample(self, logits: torch.Tensor, slots: Slots, lengths: Int64, token_table: Int32) -> Sampled:
        """As Sampler. Raises FailedAfterExchange."""
        with _failures():
            return self._sampler.sample(logits, slots, lengths, token_table)

    def prompt_logprobs(self, logits: torch.Tensor, next_ids: torch.Tensor, slots: Slots) -> list[TokenLogprobs]:
        """As Sampler. Raises FailedAfterExchange."""
        with _failures():
            return self._sampler.prompt_logprobs(logits, next_ids, slots)


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Of sampling."""
    try:
        yield
    except Exception as error:
        raise FailedAfterExchange(error) from error
