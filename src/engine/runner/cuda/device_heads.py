"""Heads of steps on a device, whose graph has sampled already: what the host adds to that, and what it waits for.

A step is sent as a few values for each row, is one replay of a graph, and returns one token for each row. Rows with
grammars are sampled once more after the graph, among the tokens that their masks allow: the host has computed those
from the tokens of the step before while the device computed the step, so other rows do not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from ....config import Resolved
from ...sampling.sampler import NO_VALID_LOGITS
from ...step.plan import Int32, StepPlan
from ...step.result import StepResult
from ...structured.guided_rows import GuidedRows
from ..heads import Finish, no_result
from ..step_shape import StepFlag, StepShape
from .buckets import Buckets
from .device_inputs import DeviceInputs
from .device_step import DeviceStep, Int64
from .logprobs import LaunchedLogprobs, launch_logprobs
from .staging import Download


class Choice(NamedTuple):
    """How a step is computed."""

    shape: StepShape | None  # None: on the host
    again: Int64  # rows that are sampled a second time


class DeviceHead(Protocol):
    def choose(self, plan: StepPlan) -> Choice:
        """Decide how the step of an applied plan is computed."""
        ...

    def begin(self, plan: StepPlan, choice: Choice, logits: torch.Tensor) -> Finish:
        """Queue what follows the graph, whose logits are valid until the next step. Returns what ends the step."""
        ...

    def computed_on_host(self, plan: StepPlan) -> None:
        """The step was computed on the host."""
        ...

    def before_capture(self) -> None:
        """Called before a shape is captured."""
        ...


class OtherRanks(Protocol):
    """The other ranks, seen from rank 0. Each executes the same plans in the same order."""

    def launch(self, plan: StepPlan, shape: StepShape | None, again: Int64) -> None:
        """Has them apply a plan, and compute its step in this shape; None: on the host. again: rows that are sampled a
        second time."""
        ...

    def capture_next(self) -> None: ...

    def check(self) -> None:
        """Raises if one has ended."""
        ...


class _GuidedStep(NamedTuple):
    rows: GuidedRows
    tokens: Callable[[], Int32]  # of all rows of the step; waits for it


class DeviceSampleHead:
    """The head of a process that samples, and decides how a step is computed.

    What only the host can compute - logits processors, log-probabilities of prompts, processed log-probabilities, heads
    that do not sample - is computed by steps of the host, one at a time: each waits for all steps before it.
    """

    def __init__(
        self,
        resolved: Resolved,
        inputs: DeviceInputs,
        step: DeviceStep,
        buckets: Buckets,
        others: OtherRanks | None = None,
        *,
        has_processors: bool = False,
    ) -> None:
        """
        others: the ranks on other GPUs; None if there are none.
        has_processors: logits processors are installed for all requests.
        """
        slots, logprobs_mode = resolved.scheduler.max_num_seqs, resolved.model.logprobs_mode
        self._inputs, self._step, self._buckets, self._others = inputs, step, buckets, others
        self._table = inputs.slots.sampling
        self._normalises = logprobs_mode.endswith("logprobs")
        self._shows_processed = logprobs_mode.startswith("processed")
        self._has_processors = has_processors
        self._guided: _GuidedStep | None = None  # the newest one, until the guides have its tokens
        self._download = Download(step.sampled, None if others is None else others.check)
        self._is_fast_path = np.ones(slots, bool)  # by slot: it is greedy or has only a temperature
        self._needs_host = np.zeros(slots, bool)  # by slot: until its prompt's log-probabilities are known, or always

    def choose(self, plan: StepPlan) -> Choice:
        for admission in plan.admissions:
            self._admit(admission.slot)
        with_guides = self._table.rows_with_guides(plan.slots)
        with_guides = with_guides[plan.num_outputs[with_guides] > 0]
        shape: StepShape | None = None
        if self._needs_host[plan.slots].any():
            self._take_guided()
        else:
            flags = 0 if self._is_fast_path[plan.slots].all() else StepFlag.FULL_SAMPLER
            shape = self._buckets.shape(
                plan.num_batched_tokens,
                plan.num_rows,
                most=int(plan.num_tokens.max()),
                flags=flags | self._inputs.flags(plan),
            )
        if self._others is not None:
            self._others.launch(plan, shape, with_guides)
        return Choice(shape, with_guides)

    def begin(self, plan: StepPlan, choice: Choice, logits: torch.Tensor) -> Finish:
        guided = self._sample_guided(plan, choice, logits) if len(choice.again) else None
        asking = (plan.num_outputs > 0) & (self._table.num_logprobs[plan.slots] >= 0)
        logprobs = self._launch_logprobs(plan, logits, asking) if asking.any() else None
        ticket = self._download.start(plan.num_rows)
        if guided is not None:
            self._guided = _GuidedStep(guided, partial(self._tokens, plan, ticket))
        return partial(self._finish, plan, ticket, logprobs, guided)

    def computed_on_host(self, plan: StepPlan) -> None:
        for slot in plan.slots[plan.output_rows].tolist():  # the prompt is computed
            self._needs_host[slot] = self._always_needs_host(slot)

    def before_capture(self) -> None:
        if self._others is not None:
            self._others.capture_next()

    def _admit(self, slot: int) -> None:
        table = self._table
        is_plain = table.is_greedy[slot] or (
            table.top_k[slot] == 0 and table.top_p[slot] >= 1 and table.min_p[slot] == 0
        )
        self._is_fast_path[slot] = is_plain and not self._changes_logits(slot)
        self._needs_host[slot] = self._always_needs_host(slot) or table.num_prompt_logprobs[slot] >= 0

    def _changes_logits(self, slot: int) -> bool:
        table = self._table
        return bool(table.has_bias[slot] or table.has_penalties[slot] or slot in table.ending_ids)

    def _always_needs_host(self, slot: int) -> bool:
        """Whether each step of the slot's sequence needs the host, not only the log-probabilities of its prompt."""
        table = self._table
        has_processors = self._has_processors or table.has_processors[slot] or table.has_bad_words[slot]
        is_pooled = slot in self._inputs.slots.pooled
        return bool(
            has_processors or is_pooled or (table.num_logprobs[slot] >= 0 and self._shows_processed_logits(slot))
        )

    def _shows_processed_logits(self, slot: int) -> bool:
        """Whether log-probabilities of the slot's sequence differ from those that the device computes.

        Processed ones of a greedy sequence whose logits nothing changes are the raw ones.
        """
        table = self._table
        if not table.has_processed_logprobs[slot]:
            return self._shows_processed
        return not (self._normalises and table.is_greedy[slot]) or self._changes_logits(slot)

    def _launch_logprobs(self, plan: StepPlan, logits: torch.Tensor, asking: npt.NDArray[np.bool_]) -> LaunchedLogprobs:
        rows = np.flatnonzero(asking)
        counts = self._table.num_logprobs[plan.slots[rows]]
        return launch_logprobs(logits, self._step.sampled, rows, counts, normalise=self._normalises)

    def _sample_guided(self, plan: StepPlan, choice: Choice, logits: torch.Tensor) -> GuidedRows:
        """Queues the second sampling of the rows with guides, once their masks are known."""
        guides, (shape, rows) = self._table.guides, choice
        assert guides is not None
        assert shape is not None
        self._take_guided()
        guided = GuidedRows(guides, plan.slots, rows)
        self._step.sample_again(logits, {row: guided.masks.get(row) for row in rows.tolist()}, shape)
        self._inputs.sampled_again(plan, rows)
        return guided

    def _take_guided(self) -> None:
        """Gives the guides the tokens of the newest step that had some, if they do not have them. Waits for it."""
        if (guided := self._guided) is not None:
            self._guided = None
            guided.rows.take(np.maximum(guided.tokens(), 0))

    def _tokens(self, plan: StepPlan, ticket: int) -> Int32:
        """[rows] The token of each row that has an output; below 0 where none could be sampled. Waits for the step."""
        return self._download.wait(ticket, plan.num_rows)

    def _finish(
        self, plan: StepPlan, ticket: int, logprobs: LaunchedLogprobs | None, guided: GuidedRows | None
    ) -> StepResult:
        rows = plan.output_rows
        token_ids = self._tokens(plan, ticket)[rows]
        is_failed = token_ids < 0
        token_ids[is_failed] = 0  # any valid id: it is not used
        result = StepResult(token_ids)
        if logprobs is not None:
            found = logprobs.read()
            result.logprobs = dict(zip(np.searchsorted(rows, list(found)).tolist(), found.values(), strict=True))
        result.errors.update(dict.fromkeys(rows[is_failed].tolist(), NO_VALID_LOGITS))
        if guided is not None:
            if self._guided is not None and self._guided.rows is guided:
                self._take_guided()
            result.errors.update(guided.errors)
            result.complete, result.forced = guided.complete, guided.forced
        return result


class LeaderChoice:
    """What rank 0 has decided about the next step."""

    next: Choice


class DeviceFollowHead:
    """The head of another rank than 0, which gets the tokens within the step, and never waits."""

    def __init__(self, leader: LeaderChoice, inputs: DeviceInputs, step: DeviceStep) -> None:
        self._leader, self._inputs, self._step = leader, inputs, step

    def choose(self, plan: StepPlan) -> Choice:
        return self._leader.next

    def begin(self, plan: StepPlan, choice: Choice, logits: torch.Tensor) -> Finish:
        if len(choice.again):
            self._step.receive_again(choice.again)
            self._inputs.sampled_again(plan, choice.again)
        return no_result

    def computed_on_host(self, plan: StepPlan) -> None:
        """Does nothing: rank 0 decides about the next step."""

    def before_capture(self) -> None:
        """Waits for the steps that are queued."""
        if self._step.sampled.is_cuda:
            torch.cuda.synchronize()
