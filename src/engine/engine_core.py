"""EngineCore: the scheduler and a runner, step by step. The same class in the engine process and in `LLM`.

Knows no sockets and no torch: whoever owns it adds, aborts and steps from one thread.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from .api import EngineInfo, EngineRequest, EngineStats, InvalidRequest
from .core import SchedulerInterface, StepOutputs, StepPlan, StepResult
from .sampling.named_processors import check_named

INTERRUPTED = "the step was interrupted"
STEPS_AHEAD = 2  # in flight with async_scheduling: one computes, one is ready to
MAX_FAILED_STEPS = 3  # in a row; after so many the device or the runner's state is broken, not the requests
logger = logging.getLogger(__name__)
PendingT = TypeVar("PendingT", bound="Pending")


class Runner(Protocol):
    """What carries out steps: runner/model_runner.py, or a fake in tests."""

    def execute(self, plan: StepPlan) -> StepResult: ...


class Pending(Protocol):
    """A step that was handed over."""

    def result(self) -> tuple[StepResult, float]:
        """What came of it and the seconds that it took; raises what the runner raised."""
        ...


class StepQueue(Protocol[PendingT]):
    """What carries out steps beside the core: step_worker.py in a thread, launch_queue.py on a device."""

    def submit(self, plan: StepPlan) -> PendingT: ...

    def recover(self, unfinished: list[PendingT]) -> None:
        """After a failure: wait for these to end, and take plans again."""
        ...


class RunnerUnusable(RuntimeError):
    """Steps fail one after another: the engine must be started anew."""


@dataclass(slots=True)
class _InFlight:
    plan: StepPlan
    result: Pending


class EngineCore:
    """steps: carries out steps while the next one is planned; None: one after the other.
    idle: does a part of what can wait until there is nothing to do; False when nothing is left.
    processor_pattern: import paths of logits processors that requests may name; None for none."""

    def __init__(
        self,
        scheduler: SchedulerInterface,
        runner: Runner,
        info: EngineInfo,
        clock: Callable[[], float] = time.perf_counter,
        *,
        steps: StepQueue[Any] | None = None,
        idle: Callable[[], bool] | None = None,
        processor_pattern: str | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._steps = steps
        self._idle = idle
        self._in_flight: deque[_InFlight] = deque()
        self._processor_pattern = processor_pattern
        self._num_failed = 0  # steps, since the last that worked
        self.info = info
        self.num_steps = 0  # carried out or failed; with is_stepping read by the thread that sends signs of life
        self.is_stepping = False

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def stats(self) -> EngineStats:
        return self._scheduler.stats()

    def add(self, request: EngineRequest) -> None:
        """Queue one sequence. Raises InvalidRequest or QueueFull; then nothing is kept of it."""
        self._check_ids(request.prompt_token_ids, "prompt")
        self._check_ids(request.sampling.logit_bias, "logit_bias")
        self._check_ids(request.sampling.stop_token_ids, "stop_token_ids")
        if request.sampling.logits_processors:
            check_named(request.sampling.logits_processors, self._processor_pattern)
        self._scheduler.add(request)

    def _check_ids(self, token_ids: Collection[int], param: str) -> None:
        vocab_size = self.info.vocab_size
        for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
            if not 0 <= token_id < vocab_size:
                message = f"token id {token_id} is outside the vocabulary of {vocab_size} tokens"
                raise InvalidRequest(message, param=param, code="invalid_token_id")

    def abort(self, request_id: str) -> None:
        """Forget a request. One that is unknown or over is passed by: the abort crossed its last output."""
        self._scheduler.abort(request_id)

    def step(self) -> StepOutputs:
        """One scheduling decision, carried out. Empty when nothing could be scheduled.

        A step that fails ends the requests in it with FinishReason.ERROR and leaves the others running.
        Raises RunnerUnusable when steps keep failing.
        """
        return self._step_now() if self._steps is None else self._step_ahead(self._steps)

    def idle(self) -> bool:
        """Called when there is no work: something that was put off is done. False when nothing is left.

        What fails is given up: it is not needed to go on.
        """
        try:
            if self._idle is not None and not self._idle():
                self._idle = None
        except Exception as error:
            logger.error("what was put off until there is nothing to do failed", exc_info=error)
            self._idle = None
        return self._idle is not None

    def _step_now(self) -> StepOutputs:
        plan = self._scheduler.schedule()
        if plan is None:
            return StepOutputs()
        self.is_stepping = True
        started = self._clock()
        try:
            result = self._runner.execute(plan)
        except Exception as error:
            return self._fail([plan], error)
        except BaseException:  # an interrupt: what the step has written is unknown, and its plan must not stay open
            self._scheduler.fail_step(plan, INTERRUPTED)
            raise
        finally:
            self.num_steps += 1
            self.is_stepping = False
        self._num_failed = 0
        return self._scheduler.finish_step(plan, result, self._clock() - started)

    def _step_ahead(self, steps: StepQueue[Any]) -> StepOutputs:
        """The outputs of the oldest step in flight, while the queue goes on with the one after it."""
        self.is_stepping = True  # handing a step over may take long: the first launch of a kernel compiles it
        try:
            return self._oldest_outputs(steps)
        finally:
            self.is_stepping = bool(self._in_flight)

    def _oldest_outputs(self, steps: StepQueue[Any]) -> StepOutputs:
        flights = self._in_flight
        while len(flights) < STEPS_AHEAD:
            plan = self._scheduler.schedule()
            if plan is None:
                break
            flights.append(_InFlight(plan, steps.submit(plan)))
        if not flights:
            return StepOutputs()
        try:
            result, seconds = flights[0].result.result()
        except BaseException as error:
            plans = [flight.plan for flight in flights]
            steps.recover([flight.result for flight in flights])
            flights.clear()
            if isinstance(error, Exception):
                return self._fail(plans, error)
            for plan in plans:
                self._scheduler.fail_step(plan, INTERRUPTED)
            raise
        finally:
            self.num_steps += 1
        self._num_failed = 0
        return self._scheduler.finish_step(flights.popleft().plan, result, seconds)

    def _fail(self, plans: list[StepPlan], error: Exception) -> StepOutputs:
        """plans: all that are in flight; the first one failed and the others were not begun."""
        logger.error("step %d of %d rows failed", plans[0].step, plans[0].num_rows, exc_info=error)
        self._num_failed += 1
        message = f"the engine failed in a step of this request: {_cause(error)}"
        outputs = [output for plan in plans for output in self._scheduler.fail_step(plan, message)]
        if self._num_failed >= MAX_FAILED_STEPS:
            raise RunnerUnusable(f"{self._num_failed} steps in a row failed, the last with: {_cause(error)}") from error
        return StepOutputs(outputs)


def _cause(error: Exception) -> str:
    """For users: the kind of failure, without addresses or paths; the log has the rest."""
    is_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return "out of memory" if is_memory or "allocate memory" in str(error).lower() else type(error).__name__
