"""EngineCore: the scheduler and a runner, step by step. The same class in the engine process and in `LLM`.

Does not know sockets, clients or torch. All methods are called from one thread.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ..api import (
    AdapterRef,
    CallError,
    EngineInfo,
    EngineOutput,
    EngineRequest,
    EngineStats,
    InvalidRequest,
    SamplingParams,
)
from ..core import SchedulerInterface
from ..core.block_events import BlockEvent, BlockEvents
from ..core.block_store import BlockStore
from ..sampling.named_processors import check_named
from ..step import StepOutputs, StepPlan
from ..step.plan import plan_without_rows
from ..structured.grammars import Grammars
from .adapter_reader import AdapterReader
from .executor import Executor
from .held_outputs import HeldOutputs
from .queue_times import QueueTimes
from .step_queue import PendingStep, RunnerUnusable, cause_of

INTERRUPTED = "the step was interrupted"
_COMPILE_WAIT_S = 0.01  # for a grammar, before messages are read again
MAX_FAILED_STEPS = 3  # in a row; then the device or the runner's state is broken, not the requests
logger = logging.getLogger(__name__)


class Recorder(Protocol):
    """Records traces of steps: runner/profiler.py. Its methods are called between steps."""

    def start(self) -> None:
        """Raises ProfileError."""

    def stop(self) -> Path:
        """Returns the trace. Raises ProfileError."""
        ...

    def step_finished(self) -> None: ...


class EventSink(Protocol):
    """Sends events about the KV cache: kv_events/publisher.py."""

    def put(self, events: Sequence[BlockEvent]) -> None:
        """Send events. This never waits."""

    def close(self) -> None: ...


@dataclass(slots=True)
class _StepInFlight:
    plan: StepPlan
    pending: PendingStep


class EngineCore:
    """
    Args:
        executor: computes the steps.
        info: what `executor` can do, as measured during the start.
        processor_pattern: import paths of logits processors that requests may name; None for none.
        grammars: compiles the constraints of requests; None if they have none.
        logs_steps: log a line for each step.
        profiler: records traces of the steps when it is asked to; None without traces.
        store: keeps blocks outside the KV cache; None if nothing does.
        adapters: the one that `scheduler` asks; None if requests have no adapters.
    """

    def __init__(
        self,
        scheduler: SchedulerInterface,
        executor: Executor,
        info: EngineInfo,
        *,
        processor_pattern: str | None = None,
        grammars: Grammars | None = None,
        logs_steps: bool = False,
        profiler: Recorder | None = None,
        store: BlockStore | None = None,
        adapters: AdapterReader | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        # Outputs of requests that ended while they waited: a scheduler that is named need not have any.
        self._take_failed: Callable[[], list[EngineOutput]] = getattr(scheduler, "take_failed", list)
        self._adapters = adapters or AdapterReader()
        self._has_postponed_work = True
        self._in_flight: deque[_StepInFlight] = deque()
        self._processor_pattern = processor_pattern
        self._grammars = grammars
        self._logs_steps = logs_steps
        self.profiler = profiler
        self._is_asleep = False
        self._store = store
        self._held = HeldOutputs(store) if store is not None else None
        self._queue_times = QueueTimes(clock)
        self._sink: EventSink | None = None
        self._num_failed = 0  # steps, since the last one that succeeded
        self.info = info
        self.num_steps = 0  # executed or failed. This and is_stepping are read by the thread that sends heartbeats.
        self.is_stepping = False

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._held)

    @property
    def is_reading(self) -> bool:
        """Whether an adapter is being read. The thread that sends heartbeats asks."""
        return self._adapters.is_reading

    @property
    def stats(self) -> EngineStats:
        stats, balance, launches = self._scheduler.stats(), self._executor.expert_balance, self._executor.launches()
        if balance is None and launches is None:
            return stats
        return replace(stats, expert_balance=balance, launches=launches)

    def add(self, request: EngineRequest) -> None:
        """Queue one sequence. Raises InvalidRequest, QueueFull, or MemoryError if the engine sleeps and does not
        get its memory; then nothing of it is kept."""
        self._check_ids(request.inputs.prompt_token_ids, "prompt")
        if isinstance(request.inputs.task, SamplingParams):
            self._check_sampling(request.inputs.task)
            if self._grammars is not None:
                request.is_ready = self._grammars.prepare(request.inputs.task)
        self.take_memory()
        self._scheduler.add(request)
        self._queue_times.arrived(request.request_id)

    def _check_sampling(self, sampling: SamplingParams) -> None:
        self._check_ids(sampling.logit_bias, "logit_bias")
        self._check_ids(sampling.stop_token_ids, "stop_token_ids")
        self._check_ids(sampling.allowed_token_ids, "allowed_token_ids")
        for token_ids in sampling.bad_word_ids:
            self._check_ids(token_ids, "bad_words")
        if sampling.logits_processors:
            check_named(sampling.logits_processors, self._processor_pattern)

    def _check_ids(self, token_ids: Collection[int], param: str) -> None:
        vocab_size = self.info.vocab_size
        for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
            if not 0 <= token_id < vocab_size:
                message = f"token id {token_id} is outside the vocabulary of {vocab_size} tokens"
                raise InvalidRequest(message, param=param, code="invalid_token_id")

    def abort(self, request_id: str) -> None:
        """Drop a request. An unknown or finished one is ignored: the abort crossed its last output."""
        self._scheduler.abort(request_id)
        if self._held is not None:
            self._held.forget(request_id)
        self._queue_times.forget(request_id)

    def step(self) -> StepOutputs:
        """The outputs of the oldest step in flight, after as many steps as allowed were submitted.

        Empty when nothing could be scheduled. A step that fails ends the requests in it with FinishReason.ERROR and
        leaves the others running. Raises RunnerUnusable when steps keep failing.
        """
        self.is_stepping = True  # submitting may take long: the first launch of a kernel compiles it
        try:
            self._submit()
            failed = self._take_failed()
            if self._in_flight:
                outputs = self._oldest_outputs()
            else:
                self.assist()
                outputs = StepOutputs()
            if failed:
                self._queue_times.fill(failed)
                outputs = replace(outputs, records=[*outputs.records, *failed])
            return outputs if self._held is None else self._held.exchange(outputs)
        finally:
            self.is_stepping = bool(self._in_flight)
            if self._sink is not None and self.block_events is not None:
                self._sink.put(self.block_events.take())

    def assist(self) -> bool:
        """Take part in the step that other replicas have begun, if there is one. Only if no step is in flight.

        Returns whether there was one. Raises RunnerUnusable if it fails.
        """
        if not self._executor.is_waited_for:
            return False
        self.is_stepping = True
        try:
            self._executor.submit(plan_without_rows()).result()
        finally:
            self.is_stepping = False
            self.num_steps += 1
        return True

    @property
    def block_events(self) -> BlockEvents | None:
        """What changed in the KV cache; None if the scheduler does not record it."""
        return getattr(self._scheduler, "block_events", None)  # a scheduler that is named need not have it

    def publish_events(self, sink: EventSink) -> None:
        """Send to `sink` after each step what has changed in the KV cache."""
        self._sink = sink

    def close(self) -> None:
        """Release what the steps do not need. No step can follow."""
        self._executor.close()  # a read that waits for another process ends then
        self._adapters.close()
        if self._sink is not None:
            self._sink.close()
            self._sink = None
        if self._store is not None:
            self._store.close()

    def check(self) -> None:
        """Raises RunnerUnusable if no step can follow, because a process of the model has ended."""
        self._executor.check()

    def load_adapter(self, ref: AdapterRef) -> Future[None]:
        """Begin to read an adapter; steps go on meanwhile. The future raises AdapterError."""
        return self._adapters.load(ref)

    def unload_adapter(self, digest: str) -> None:
        """Forget an adapter as soon as no request uses it."""
        self._adapters.forget(digest)

    def call_workers(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """What the method of the worker of each process returns, by rank. Only without work.

        Nothing that was cached before is reused: methods may replace weights. Raises CallError, or RunnerUnusable.
        """
        if self.has_work:
            raise CallError("workers are called while no request runs")
        try:
            return self._executor.call(method, args, kwargs)
        finally:
            self._scheduler.forget_cached()

    def free_memory(self) -> None:
        """Forget what is cached, and give memory back to the system. Only without work.

        Raises MemoryError if it cannot, and has its memory still.
        """
        if not self._executor.can_sleep or self._is_asleep:
            return
        self._executor.free_memory()
        self._scheduler.forget_cached()
        self._is_asleep = True
        if self._sink is not None and self.block_events is not None:
            self._sink.put(self.block_events.take())

    def take_memory(self) -> None:
        """Take the memory again, before the next request. Raises MemoryError if the system does not give it; the engine
        is asleep then."""
        if self._is_asleep:
            self._executor.take_memory()
            self._is_asleep = False

    def idle(self) -> bool:
        """Called when there is no work: does one part of the postponed work. False when none is left.

        Work that fails is dropped, and logged: the engine runs without it.
        """
        if self._is_asleep or not self._has_postponed_work:
            return False
        try:
            self._has_postponed_work = self._executor.idle()
        except Exception as error:
            logger.error("work that was postponed until the engine is idle failed", exc_info=error)
            self._has_postponed_work = False
        return self._has_postponed_work

    def _submit(self) -> None:
        while len(self._in_flight) < self._executor.depth:
            plan = self._scheduler.schedule()
            if plan is None and not self._in_flight and self._compiles():
                plan = self._scheduler.schedule()
            if plan is None:
                return
            self._queue_times.planned(plan)
            self._in_flight.append(_StepInFlight(plan, self._executor.submit(plan)))

    def _compiles(self) -> bool:
        """Waits a little for grammars that are being compiled, because nothing else is to be done. Not in an engine
        that takes part in steps of other replicas: they would wait too."""
        if self._grammars is None or self._executor.is_shared:
            return False
        return self._grammars.wait_any(_COMPILE_WAIT_S)

    def _oldest_outputs(self) -> StepOutputs:
        try:
            result, seconds = self._in_flight[0].pending.result()
        except BaseException as error:
            plans = self._recover()
            if isinstance(error, Exception):
                return self._fail(plans, error)
            for plan in plans:  # an interrupt: what the steps have written is unknown
                self._scheduler.fail_step(plan, INTERRUPTED)
            raise
        finally:
            self.num_steps += 1
        self._num_failed = 0
        plan = self._in_flight.popleft().plan
        outputs = self._scheduler.finish_step(plan, result, seconds)
        if self._logs_steps:
            self._log(plan, seconds)
        if self.profiler is not None:
            self.profiler.step_finished()
        self._queue_times.fill(outputs.records)
        return outputs

    def _log(self, plan: StepPlan, seconds: float) -> None:
        stats = self._scheduler.stats()
        logger.info(
            "step %d: %d rows, %d tokens computed, %d sampled, %.1f ms; %d sequences running, %d waiting",
            plan.step,
            plan.num_rows,
            plan.num_batched_tokens,
            int(plan.num_outputs.sum()),
            seconds * 1000,
            stats.num_running,
            stats.num_waiting,
        )

    def _recover(self) -> list[StepPlan]:
        """Wait until no step runs. Returns the plans of the steps that were in flight."""
        steps = list(self._in_flight)
        self._executor.recover([step.pending for step in steps])
        self._in_flight.clear()
        return [step.plan for step in steps]

    def _fail(self, plans: list[StepPlan], error: Exception) -> StepOutputs:
        """plans: all that were in flight; the first one failed and the others were not started."""
        logger.error("step %d of %d rows failed", plans[0].step, plans[0].num_rows, exc_info=error)
        if isinstance(error, RunnerUnusable):
            raise error
        self._num_failed += 1
        message = f"the engine failed in a step of this request: {cause_of(error)}"
        outputs = [output for plan in plans for output in self._scheduler.fail_step(plan, message)]
        self._queue_times.fill(outputs)
        if self._num_failed >= MAX_FAILED_STEPS:
            raise RunnerUnusable(
                f"{self._num_failed} steps in a row failed, the last with: {cause_of(error)}"
            ) from error
        return StepOutputs(outputs)
