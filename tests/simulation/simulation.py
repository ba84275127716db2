"""Simulation: scheduler, fake runner and clients, changed by actions, and checked after each one.

A list of actions determines everything, so a story that failed can be repeated and shortened (shrink.py). An action
that does not apply, such as finishing a step when none is in flight, is ignored.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, replace

import numpy as np

from stoker.engine.api import (
    AdapterRef,
    CacheScope,
    EngineOutput,
    EngineRequest,
    FinishReason,
    InvalidRequest,
    PoolingParams,
    QueueFull,
    RequestInputs,
    SamplingParams,
    StoredBlocks,
    Task,
)
from stoker.engine.core import Scheduler, SchedulerSettings
from stoker.engine.core.settings import DraftSettings
from stoker.engine.loop.held_outputs import HeldOutputs
from stoker.engine.step import StepOutputs, StepPlan, StepResult

from .drafts import TrueDrafter
from .invariants import Invariants
from .runner import FakeRunner
from .stores import FileFault, Stores
from .truth import NUM_SALTS, Client

STEP_S = 0.25


@dataclass(frozen=True, slots=True)
class Add:
    request_id: str
    prompt: list[int]
    sampling: SamplingParams
    priority: int = 0
    is_for_others: bool = False
    source: StoredBlocks | None = None
    adapter: str = ""  # its name
    tasks: tuple[str, ...] = ()  # of a request that is pooled, whose sampling is its seed only


@dataclass(frozen=True, slots=True)
class Abort:
    request_id: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Schedule a step, if one more may be in flight."""


@dataclass(frozen=True, slots=True)
class Execute:
    """The runner executes one more of the steps in flight."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Finish the oldest step."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The oldest step fails, or all are interrupted. `num_whole` more are executed first, and their results dropped;
    the next one may be executed in part (`is_begun`); those after it are not started."""

    num_whole: int = 0
    is_begun: bool = True


@dataclass(frozen=True, slots=True)
class FailStore:
    """Something happens to what is stored. number: chooses the file."""

    fault: FileFault
    number: int


@dataclass(frozen=True, slots=True)
class Drain:
    """No more faults or arrivals: every request must end, and all blocks must be released."""


Action = Add | Abort | Plan | Execute | Finish | Fail | FailStore | Drain


def _inputs(action: Add) -> RequestInputs:
    assert action.sampling.seed is not None
    salt, name = str(action.sampling.seed % NUM_SALTS), action.adapter
    ref = AdapterRef(name, f"digest of {name}", name) if name else None
    task: Task = PoolingParams(action.tasks) if action.tasks else action.sampling
    return RequestInputs(action.prompt, task, CacheScope(salt, adapter=ref.digest if ref else ""), ref)


class Simulation:
    def __init__(
        self, settings: SchedulerSettings, depth: int, stores: Stores | None = None, *, has_drafts: bool = False
    ) -> None:
        """depth: steps that may be in flight."""
        self.stores = stores
        self.settings = settings = settings if stores is None else stores.applied_to(settings)
        self.depth = depth
        drafter = TrueDrafter() if has_drafts else None
        if drafter is not None:
            drafting = DraftSettings(drafter=drafter, max_model_len=settings.max_model_len - 3)
            self.settings = settings = replace(settings, drafting=drafting)
        self.runner = FakeRunner(settings, stores)
        if drafter is not None:
            drafter.slots = self.runner.slots
        self.scheduler = Scheduler(settings)
        self.script: list[Action] = []
        self.clients: dict[str, Client] = {}
        self.live: dict[str, Client] = {}  # without those whose last output is held
        self.held: dict[str, Client] = {}
        self.sources: list[StoredBlocks] = []  # that were answered
        self.plans: deque[StepPlan] = deque()  # in flight
        self.events: Counter[str] = Counter()
        self._results: deque[StepResult] = deque()  # of the first of these
        self._held_outputs = None if settings.store is None else HeldOutputs(settings.store)
        self._invariants = Invariants(self.scheduler, self.runner, self.live)

    @property
    def num_steps(self) -> int:
        return self.events["steps"]

    def apply(self, action: Action) -> None:
        """Raises AssertionError if a check fails, or what the scheduler raised."""
        self.script.append(action)
        if self.stores is not None:
            self.stores.tick()
        match action:
            case Add():
                self._add(action)
                return
            case Abort(request_id):
                self._abort(request_id)
            case Plan() if len(self.plans) < self.depth:
                self._plan()
            case Execute() if len(self._results) < len(self.plans):
                self._execute()
            case Finish() if self.plans:
                self._finish()
            case Finish():
                self._deliver_all(StepOutputs())
            case Fail(num_whole, is_begun) if self.plans:
                self._fail(num_whole, is_begun)
            case FailStore(fault, number) if self.stores is not None:
                self.stores.fail(fault, number)
            case Drain():
                self._drain()
        if self.stores is not None:
            self.stores.check()
        if not isinstance(action, Execute):
            self._invariants.check_state()
        if len(self._results) == len(self.plans) and not self._has_loads:
            self._invariants.check_contents()

    def close(self) -> None:
        if self.stores is not None:
            self.stores.close()

    @property
    def _has_loads(self) -> bool:
        """Whether cached blocks get their contents with the next plan."""
        stored = self.scheduler._planner.stored
        return stored is not None and bool(stored._loads)

    def _add(self, action: Add) -> None:
        assert action.sampling.seed is not None
        request = EngineRequest(
            request_id=action.request_id,
            inputs=_inputs(action),
            priority=action.priority,
            route=hash(action.request_id) >> 1,
            is_for_others=action.is_for_others,
            source=action.source,
        )
        refusal = self._expected_refusal(request)
        try:
            self.scheduler.add(request)
        except (QueueFull, InvalidRequest) as error:
            if type(error) is not refusal:
                raise
            self.events["refused" if refusal is QueueFull else "invalid"] += 1
            assert len(self.scheduler.sequences) == len(self.live), "state of a refused request is kept"
            return
        assert refusal is None, f"{action.request_id} was taken; {refusal}"
        self.clients[action.request_id] = self.live[action.request_id] = Client(request)
        self.events["requests"] += 1

    def _expected_refusal(self, request: EngineRequest) -> type[Exception] | None:
        scheduler, settings, prompt = self.scheduler, self.settings, request.inputs.prompt_token_ids
        is_valid = (
            request.request_id not in self.live
            and request.inputs.sampling.n == 1
            and request.inputs.sampling.max_tokens != -1
        )
        longest, task = settings.max_sequence_len - 1, request.inputs.task
        if isinstance(task, PoolingParams):
            longest = min(settings.max_model_len, settings.max_cached_len)
            is_valid &= set(task.tasks) <= settings.pooling.whole.keys()
            if is_valid and settings.pooling.needs_whole(task):
                longest = min(longest, settings.max_num_batched_tokens)
        else:
            is_valid &= settings.pooling.generates
        if not (is_valid and prompt and min(prompt) >= 0 and len(prompt) <= longest):
            return InvalidRequest
        sequences, control = scheduler.sequences, scheduler._admission_control
        waiting, free = len(sequences.waiting), len(sequences.columns.free_slots)
        num_tokens = sequences.waiting.num_tokens + len(prompt)
        ahead = waiting - (0 if waiting and control._num_left_waiting else free)
        is_full = ahead >= settings.max_queued_requests or (waiting and num_tokens > settings.max_queued_tokens)
        return QueueFull if is_full else None

    def _abort(self, request_id: str) -> None:
        if self.held.pop(request_id, None) is not None:
            assert self._held_outputs is not None
            self._held_outputs.forget(request_id)
            self.events["aborts of held outputs"] += 1
        output = self.scheduler.abort(request_id)
        assert (output is not None) == (request_id in self.live)
        if output is not None:
            assert output.finish_reason is FinishReason.ABORT
            self._deliver(output)
            self.events["aborts"] += 1

    def _plan(self) -> None:
        plan = self.scheduler.schedule()
        if plan is None:
            is_reading = any(request.fetched is not None for request in self.scheduler.sequences.live)
            assert self.plans or not self.scheduler.has_work or is_reading, "there is work, and nothing was scheduled"
        else:
            self._invariants.check_plan(plan)
            self.plans.append(plan)

    def _execute(self) -> None:
        self._results.append(self.runner.execute(self.plans[len(self._results)]))

    def _finish(self) -> None:
        if not self._results:
            self._execute()
        plan, result = self.plans.popleft(), self._results.popleft()
        self.events["steps"] += 1
        self.events["tokens"] += plan.num_batched_tokens
        self.events["forced tokens"] += sum(len(token_ids) for _, token_ids in plan.forced)
        for client in self.live.values():
            client.age += 1
        self._deliver_all(self.scheduler.finish_step(plan, result, STEP_S))
        self._invariants.retired(STEP_S)

    def _deliver_all(self, outputs: StepOutputs) -> None:
        """The outputs of a step, and those that were held until now."""
        if self._held_outputs is not None:
            ended = {output.request_id for output in outputs.records if output.stored is not None}
            outputs = self._held_outputs.exchange(outputs)
            for request_id in ended - {output.request_id for output in outputs.records}:
                self.held[request_id] = self.live.pop(request_id)
                self.events["held outputs"] += 1
        routes = outputs.routes.tolist()
        received = Counter(output.request_id for output in outputs)
        assert max(received.values(), default=0) <= 1, "a request got two outputs of one step"
        for index, output in enumerate(outputs):
            assert index >= len(routes) or routes[index] == self.clients[output.request_id].request.route
            self.events["request errors"] += output.finish_reason is FinishReason.ERROR
            self._deliver(output)
        assert len(self._held_outputs or ()) == len(self.held)

    def _fail(self, num_whole: int, is_begun: bool) -> None:
        self.events["failed steps"] += 1
        for _ in range(min(num_whole, len(self.plans) - len(self._results))):
            self._execute()
        for plan in list(self.plans)[: len(self._results)]:
            self.runner.doubt(plan)
        for plan in list(self.plans)[len(self._results) :]:
            self.runner.fail(plan, is_begun=is_begun)
            is_begun = False
        self._results.clear()
        while self.plans:
            for output in self.scheduler.fail_step(self.plans.popleft(), "broken"):
                assert output.finish_reason is FinishReason.ERROR
                assert output.error == "broken"
                self._deliver(output)
            self._invariants.retired(0.0)
            self._invariants.check_state()

    def _deliver(self, output: EngineOutput) -> None:
        client = self.clients[output.request_id]
        client.receive(output, self.settings)
        self.events["pooled"] += output.vectors is not None
        if client.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._check_stored(client, output.stored)
        if client.finish_reason is not None:
            del (self.held if output.request_id in self.held else self.live)[output.request_id]
            self.events[f"ended by {client.finish_reason.value}"] += 1

    def _check_stored(self, client: Client, stored: StoredBlocks | None) -> None:
        """Blocks that others can read are the first of the prompt, with its keys and values."""
        assert (stored is not None) == client.request.is_for_others
        if stored is None:
            return
        size = self.settings.block_size
        assert self.stores is not None
        marks = list(client.prompt_marks)
        assert len(stored.hashes) <= len(marks) // size
        for index, content in enumerate(self.stores.shared(stored.hashes)):
            cells = np.frombuffer(content, np.int64).reshape(self.settings.num_groups, size)
            expected = [
                [mark ^ of_group for mark in marks[index * size :][:size]] for of_group in self.runner.group_marks
            ]
            assert cells.tolist() == expected, f"{client.request.request_id}: block {index} for others is wrong"
        self.events["blocks for others"] += len(stored.hashes)
        self.sources += self.stores.sources(stored)

    def _drain(self) -> None:
        lengths = [
            2 * self.settings.max_model_len + len(each.request.inputs.prompt_token_ids) for each in self.live.values()
        ]
        bound = self.num_steps + 64 + sum(lengths)
        while self.scheduler.has_work or self.held:
            if self.stores is not None:
                self.stores.tick()
            assert self.num_steps < bound, "requests do not end"
            while len(self.plans) < self.depth:
                num_plans = len(self.plans)
                self._plan()
                if len(self.plans) == num_plans:
                    self._invariants.check_state()  # it may have preempted
                    break
            if self.plans:
                self._finish()
            else:
                self._deliver_all(StepOutputs())
            self._invariants.check_state()
        if self.stores is not None:
            self.events += self.stores.faults
            self.events["tokens read from stores"] += self.scheduler.stats().store_hits
        stats = self.scheduler.stats()
        self.events["preemptions"] += stats.num_preemptions
        self.events["tokens from the cache"] += stats.prefix_hits
        assert not self.live
        assert not self.held
        assert stats.num_free_blocks == stats.num_blocks
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        assert len(self.scheduler.sequences.columns.free_slots) == self.settings.max_num_seqs
        assert self.scheduler.sequences.blocks.num_reserved == 0
