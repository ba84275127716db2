"""Sequences: every live sequence, waiting or running, and each change between the two.

A waiting one is in the queue; a running one has a slot (slot_columns.py) and blocks (sequence_blocks.py). `admit`,
`preempt` and `end` are the only places where a sequence gets or loses them.
"""

from __future__ import annotations

from random import Random

import numpy as np

from ..api import EngineRequest, FinishReason
from ..step.plan import Int64, StepPlan
from .adapter_slots import AdapterSlots
from .drafting import Drafting
from .histogram import Histogram
from .policy import RANKS, WaitingQueue
from .request import NO_SLOT, Request
from .sequence_blocks import CachedPrefix, SequenceBlocks
from .settings import SchedulerSettings
from .slot_columns import SlotColumns
from .steps_in_flight import StepInFlight, StepsInFlight
from .stop import WatchedIds

_PREEMPTION_LIMITS = (1, 2, 3, 4, 5, 10, 20)  # vLLM's


class Sequences:
    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self.columns = SlotColumns(settings.max_num_seqs, settings.block_size)
        self.blocks = SequenceBlocks(settings, self.columns)
        self.drafting = Drafting(settings, self.columns, self.blocks)
        self.adapters = AdapterSlots(settings.adapters)
        self.steps = StepsInFlight(self.blocks.pool, settings.step_token_limits, settings.costs)
        self.rank = RANKS[settings.scheduling_policy]
        self.waiting = WaitingQueue(self.rank)
        self.watched = WatchedIds(settings.eos_token_ids)
        self._random = Random(settings.seed)
        self._by_id: dict[str, Request] = {}
        # In the order of admission. Replaced, never changed in place: steps in flight keep the list.
        self.running: list[Request] = []
        self.running_slots: Int64 = np.empty(0, np.int64)
        self.has_departed = False  # some of `running` have lost their slots
        # Slots in a pipeline that a step in flight samples for: the runner releases a slot when a plan arrives, and
        # samples for the plans before it later.
        self._leaving: list[int] = []
        self.num_arrivals = 0
        self.num_finished = 0
        self.num_preemptions = 0
        self.preemptions = Histogram(_PREEMPTION_LIMITS)  # of each sequence that has ended and was not aborted
        self.num_prepared = 0  # sequences for which something is prepared, such as a grammar

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def get(self, request_id: str) -> Request | None:
        return self._by_id.get(request_id)

    @property
    def live(self) -> list[Request]:
        return list(self._by_id.values())

    def add(self, request: EngineRequest) -> None:
        """A new sequence, which waits."""
        settings = self._settings
        self._by_id[request.request_id] = added = Request.of(
            request,
            arrival=self.num_arrivals,
            seed=self._random.getrandbits(63),
            eos_token_ids=settings.eos_token_ids,
            max_length=settings.max_sequence_len,
            reads_cache=settings.enable_prefix_caching,
            needs_whole=settings.pooling.needs_whole(request.inputs.task),
        )
        self.num_arrivals += 1
        if self.blocks.events is not None:
            self.blocks.events.reached_epoch(request.inputs.scope.epoch)
        self.num_prepared += added.is_ready is not None
        if added.stop.named_token_ids:
            self.watched.watch(added.stop.named_token_ids)
        self.adapters.arrived(added)
        self._queue(added)

    def admit(self, index: int, cached: CachedPrefix, num_reserved: int) -> None:
        """Give a slot to the waiting request at `index`. The caller adds it to `running` (extend_running)."""
        request = self.waiting.pop(index)
        self.adapters.left_queue(request)
        self.adapters.take(request)
        request.fetched = None
        self.columns.take(request)
        self.blocks.admit(request, cached, num_reserved)
        self.drafting.admit(request, len(self.waiting))

    def preempt(self, request: Request) -> None:
        """Take slot and blocks back. It waits to be computed again, like a prompt of all its tokens."""
        self.num_preemptions += 1
        request.num_preemptions += 1
        request.asked_after = None
        request.busy_until = int(self.columns.last_step[request.slot])
        self.columns.read_tail(request)
        self._leave_slot(request)
        self._queue(request)

    def _queue(self, request: Request) -> None:
        self.adapters.queued(request)
        self.waiting.push(request)

    def end(self, request: Request, reason: FinishReason) -> None:
        request.finish_reason = reason
        del self._by_id[request.request_id]
        self.num_finished += 1
        self.num_prepared -= request.is_ready is not None
        if reason is not FinishReason.ABORT:
            self.preemptions.add(request.num_preemptions)
        if request.stop.named_token_ids:
            self.watched.forget(request.stop.named_token_ids)
        if request.slot != NO_SLOT:
            self.drafting.end(request)
            self._leave_slot(request)
        else:
            self.adapters.left_queue(request)
            self.waiting.remove(request)
        self.adapters.ended(request)

    def _leave_slot(self, request: Request) -> None:
        self.adapters.release(request)
        last_step = int(self.columns.last_step[request.slot])
        self.steps.release(self.blocks.detach(request), last_step)
        slot = self.columns.give_back(request)
        if self._settings.num_stages > 1 and last_step > self.steps.last_finished:
            self._leaving.append(slot)
        else:
            self.columns.free(slot)
        self.has_departed = True

    def retire(self, plan: StepPlan) -> StepInFlight:
        """The plan is executed: what was kept for it is free. Raises RuntimeError if it is not the oldest one."""
        step = self.steps.retire(plan)
        if self._leaving:
            leaving, self._leaving = self._leaving, []
            for slot in leaving:
                if self.columns.last_step[slot] > plan.step:
                    self._leaving.append(slot)
                else:
                    self.columns.free(slot)
        return step

    # ---- the running ones

    def extend_running(self, admitted: list[Request]) -> None:
        self._set_running(self.running + admitted)

    def drop_departed(self) -> None:
        """Take sequences that have lost their slots out of `running`."""
        if self.has_departed:
            self._set_running([request for request in self.running if request.slot != NO_SLOT])
            self.has_departed = False

    def _set_running(self, running: list[Request]) -> None:
        self.running = running
        self.running_slots = np.array([request.slot for request in running], np.int64)
