"""Scheduler: decides what each step computes, and what its tokens mean for the requests.

This class connects the parts; each decision is in one of them:

- admission_control.py: refuses requests when too many wait.
- sequences.py: who waits, who runs; their slots (slot_columns.py), blocks (sequence_blocks.py) and, of models with
  recurrent layers, the states that are kept of them (sequence_states.py).
- step_planner.py: the next step (step_draft.py, prefill_budget.py).
- steps_in_flight.py: steps that are planned and not finished, and blocks that wait for them.
- step_results.py: the tokens of a finished step.
- drafting.py: tokens that a step verifies beside those that it computes anyway.

Steps may overlap. `schedule` may be called again before `finish_step` of the previous plan: computed tokens are counted
when they are planned, and a row whose input token is still being sampled is planned like any other decode row (the
runner has the token). If that token ends its sequence, the token of the next step is dropped. Blocks of a sequence with
a row in an unfinished step go back to the pool when that step is finished.
"""

from __future__ import annotations

from ..api import ADAPTER_FAILED, EngineOutput, EngineRequest, EngineStats, FinishReason, InvalidRequest
from ..step.plan import StepPlan
from ..step.result import StepOutputs, StepResult
from .admission_control import AdmissionControl
from .sequences import Sequences
from .settings import SchedulerSettings, check_request
from .step_planner import StepPlanner
from .step_results import StepResults, first_ends


class Scheduler:
    """State of all requests between steps. The caller loops: schedule, execute, finish_step, in the order of plans."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.sequences = Sequences(settings)
        self._admission_control = AdmissionControl(settings)
        self.block_events = self.sequences.blocks.events  # what changed in the prefix cache; None: not recorded
        self._planner = StepPlanner(settings, self.sequences)
        self._results = StepResults(settings, self.sequences)
        self._failed: list[EngineOutput] = []

    def add(self, request: EngineRequest) -> None:
        """Queue a request.

        Raises InvalidRequest if it can never be served, and QueueFull if it could later; either way nothing changed.
        """
        sequences = self.sequences
        if request.request_id in sequences:
            raise InvalidRequest(f"request id {request.request_id!r} is in use", param="request_id")
        check_request(request, self.settings)
        self._admission_control.check(
            len(request.inputs.prompt_token_ids),
            sequences.waiting,
            num_free_slots=len(sequences.columns.free_slots),
            num_finished=sequences.num_finished,
        )
        sequences.add(request)

    def abort(self, request_id: str) -> EngineOutput | None:
        """End a request in any state. Returns its last output; None if it has ended before or never existed."""
        request = self.sequences.get(request_id)
        return None if request is None else self._results.end(request, FinishReason.ABORT)

    @property
    def has_work(self) -> bool:
        """Whether there is something to schedule, or a step to finish."""
        return bool(len(self.sequences) or len(self.sequences.steps) or self._failed)

    @property
    def _num_deferred(self) -> int:
        sequences = self.sequences
        if not sequences.num_prepared and self._planner.stored is None:
            return 0  # without a look at each
        return sum(request.must_wait for request in sequences.waiting)

    def stats(self) -> EngineStats:
        sequences, blocks, residency = self.sequences, self.sequences.blocks, self.sequences.blocks.residency
        num_waiting, stored = len(sequences.waiting), self._planner.stored
        return EngineStats(
            num_running=len(sequences) - num_waiting,
            num_waiting=num_waiting,
            num_free_blocks=blocks.pool.num_free,
            num_blocks=blocks.pool.num_blocks,
            prefix_queries=blocks.num_queried_tokens,
            prefix_hits=blocks.num_hit_tokens,
            store_queries=0 if stored is None else stored.num_queried_tokens,
            store_hits=0 if stored is None else stored.num_read_tokens,
            store_failures=0 if stored is None else stored.num_failures,
            num_preemptions=sequences.num_preemptions,
            num_steps=sequences.steps.num_planned,
            num_step_tokens=int(sequences.steps.tokens.total),
            step_tokens=sequences.steps.tokens.buckets,
            iteration_tokens=sequences.steps.iteration_tokens.distribution,
            request_preemptions=sequences.preemptions.distribution,
            num_deferred=self._num_deferred,
            step_time_s=self._admission_control.step_time_s,
            drafts=sequences.drafting.counts,
            running_adapters=sequences.adapters.running_names,
            waiting_adapters=sequences.adapters.waiting_names,
            work=None if sequences.steps.work is None else sequences.steps.work.total,
            block_lifetimes=None if residency is None else residency.lifetimes.distribution,
            block_idle_times=None if residency is None else residency.idle_times.distribution,
            block_reuse_gaps=None if residency is None else residency.reuse_gaps.distribution,
        )

    def schedule(self) -> StepPlan | None:
        """Plan the next step; None if nothing can be computed now.

        None while steps are in flight may mean that all rows wait for them; with none in flight it means no work.
        A plan that was returned must be executed and finished: its blocks are already published.
        """
        plan = self._planner.plan()
        for request, why in self._planner.unreadable:
            self._failed.append(self._results.end(request, FinishReason.ERROR, ADAPTER_FAILED + why))
        self._planner.unreadable.clear()
        if plan is not None and self.block_events is not None:
            self.block_events.planned(plan.step)
        self._admission_control.step_planned(len(self.sequences.waiting))
        return plan

    def finish_step(self, plan: StepPlan, result: StepResult, step_time_s: float = 0.0) -> StepOutputs:
        """Take in the tokens of the oldest plan in flight; returns one output per request that got a token.

        Args:
            step_time_s: how long the step took, for `stats` and for the retry estimate of QueueFull.

        Raises RuntimeError if the plan is not the oldest one or the result does not belong to it.
        """
        rows = result.rows(plan)
        if len(result.token_ids) != len(rows):
            raise RuntimeError(f"the tokens of step {plan.step} do not match its outputs")
        sequences = self.sequences
        step = sequences.retire(plan)
        sequences.adapters.loaded(plan.adapter_loads)
        ends = first_ends(plan, result)
        sequences.blocks.publish_sampled(step, ends)
        sequences.blocks.states.publish_sampled(step, ends)
        if self._planner.stored is not None:
            for row in result.errors:
                self._planner.stored.distrust(step.requests[row])
        drafts = sequences.drafting.verified(plan, result, step_time_s)
        outputs = self._results.take(step, rows, result, drafts)
        sequences.blocks.states.give_back(step)
        if self.block_events is not None:
            self.block_events.finished(plan.step)
        self._admission_control.step_finished(step_time_s)
        return outputs

    def take_failed(self) -> list[EngineOutput]:
        """The last outputs of requests that ended while they waited, because their adapters cannot be read."""
        failed, self._failed = self._failed, []
        return failed

    def forget_cached(self) -> None:
        """Later requests reuse nothing that was computed before."""
        self.sequences.blocks.forget_cached()

    def fail_step(self, plan: StepPlan, error: str) -> list[EngineOutput]:
        """The oldest plan in flight was not executed, or only in part: end its requests with `error`.

        What the cache holds for its tokens is unknown, and requests of later plans may already build on it: they end
        too, and no block is cached any more. All others go on. Raises RuntimeError as `finish_step` does.
        """
        sequences = self.sequences
        steps = [sequences.retire(plan), *sequences.steps]
        sequences.blocks.forget_cached()
        sequences.adapters.not_loaded(plan.adapter_loads)
        requests = dict.fromkeys(request for step in steps for request in step.requests)
        if self._planner.stored is not None:
            for request in requests:
                self._planner.stored.distrust(request)
        outputs = [
            self._results.end(request, FinishReason.ERROR, error)
            for request in requests
            if request.finish_reason is None
        ]
        sequences.columns.release_again(plan.released_slots)
        return outputs
