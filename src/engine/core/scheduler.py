"""Scheduler: decides what each step computes, and what its tokens mean for the requests.

One rule: every sequence has known tokens and computed tokens, and each step lets the computed ones catch up with the
known ones, within a budget of tokens. A row that catches up has one more token drawn. A decode is a row one token
behind, a prefill a row further behind; nothing else tells them apart.

Order within a step: rows one token behind, then prefills that run, then requests that wait, in the policy's order. Only
long prompts are ever overtaken: while as many of them as may be are computed in part, the next one waits and shorter
ones pass it (max_long_partial_prefills). Prefills share the budget so that a long one cannot hold up a short one: a
prefill that wants more than half of the step's prefill budget gets at most half of what is left while others come after
it, and what the others leave over comes back to it.

Steps may overlap. `schedule` may be called again before `finish_step` of the step before: computed tokens are counted
when they are scheduled, and a row whose input token is still being drawn is planned like any other decode row (the
runner has the token). When the token then ends its sequence, what the queued step draws for it is dropped. Blocks of a
sequence that has a row in a step that is not finished go back to the pool when that step is finished.

Memory: a sequence is admitted when the pool can hold all its known tokens, which are then reserved, so a prefill never
waits for memory half way. Decode rows take a block when they fill one; if there is none, the worst-ranked sequence is
preempted: it gives up its blocks and waits to be computed again, mostly from the prefix cache.

State of running sequences stands in columns by slot, and a step of decode rows is planned and finished with array
operations: Python looks at single rows only where a block is full or there is more to tell than a token. The last
tokens of a sequence are in a column too, and join its list block by block.

Blocks are published to the prefix cache when their tokens are scheduled, so requests that arrive together share a
prefix in the same step. That is right because the runner writes the keys and values of all tokens of a step, layer by
layer, before any row attends to them, and runs steps in the order of their plans.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from ..api import EngineOutput, EngineRequest, EngineStats, FinishReason, InvalidRequest, QueueFull
from .block_names import BlockNames
from .block_pool import BlockPool
from .policy import RANKS, WaitingQueue
from .prefix_cache import PrefixCache
from .request import NO_SLOT, Request
from .settings import SchedulerSettings, check_request
from .step_outputs import Int64, StepOutputs
from .step_plan import Admission, StepPlan, StepResult
from .stop import WatchedIds

MAX_PAUSE = 8  # steps a whole prompt waits for decode rows to leave room, before they pause one step for it
MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0


@dataclass(slots=True)
class _PrefillRow:
    request: Request
    start: int  # computed before the step
    end: int  # and after it
    is_new: bool  # admitted in this step: its blocks travel in the admission


@dataclass(slots=True)
class _Draft:
    """A step while it is being decided."""

    decodes: list[Request] = field(default_factory=list)
    decode_slots: Int64 = field(default_factory=lambda: _EMPTY)
    prefills: list[_PrefillRow] = field(default_factory=list)
    block_slots: list[int] = field(default_factory=list)  # blocks added to sequences that ran before this step
    block_ids: list[int] = field(default_factory=list)
    has_preempted: bool = False
    num_partial: int = 0  # prompts that are computed in part when the step is done
    num_long_partial: int = 0

    def count_partial(self, *, is_long: bool) -> None:
        self.num_partial += 1
        self.num_long_partial += is_long


@dataclass(slots=True)
class _StepInFlight:
    plan: StepPlan
    requests: list[Request]  # by row; a slot may have another owner by the time the step is finished
    serials: Int64  # by row: of the sequence that had the slot


_EMPTY: Int64 = np.empty(0, np.int64)  # slots as indices: numpy takes these three times as fast as int32


class Scheduler:
    """State of all requests between steps. The caller loops: schedule, execute, finish_step, in the order of plans."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self._names = BlockNames(settings.prefix_caching_hash_algo)
        self._cache = PrefixCache()
        self._pool = BlockPool(settings.num_blocks, self._cache)
        self._rank = RANKS[settings.scheduling_policy]
        self._random = Random(settings.seed)
        self._requests: dict[str, Request] = {}
        self._waiting = WaitingQueue(self._rank)
        self._watched = WatchedIds(settings.eos_token_ids)
        self._num_reserved = 0  # free blocks that admitted sequences will take
        self._num_passed_over = 0  # requests that the last step left waiting, free slots or not

        # One entry per slot. numpy: a step of 256 decode rows is planned with a handful of array operations.
        seqs = settings.max_num_seqs
        self._free_slots = list(range(seqs - 1, -1, -1))
        self._released_slots: list[int] = []  # to be told to the runner with the next plan
        self._computed = np.zeros(seqs, np.int32)  # tokens whose keys and values are in the cache after planned steps
        self._target = np.zeros(seqs, np.int32)  # known tokens and those being drawn
        self._max_length = np.zeros(seqs, np.int32)
        self._capacity = np.zeros(seqs, np.int32)  # tokens that the blocks held have places for
        self._last_step = np.zeros(seqs, np.int64)  # that has a row for this slot
        self._serial = np.full(seqs, -1, np.int64)  # arrival of the sequence that has the slot; -1 for none
        self._route = np.zeros(seqs, np.int64)
        self._known = np.zeros(seqs, np.int32)  # tokens read back, prompt included
        self._tail = np.zeros((seqs, settings.block_size), np.int32)  # the last of these; a place is position % size
        self._news_at = np.zeros(seqs, np.int32)  # from this length on a token comes with more than itself
        # The running sequences, in the order of admission. Replaced, never changed in place: steps in flight keep them.
        self._running: list[Request] = []
        self._running_slots = _EMPTY
        self._has_left = False  # some of them have lost their slots since
        self._ones = np.ones(seqs, np.int32)
        self._trues = np.ones(seqs, np.bool_)

        self._in_flight: deque[_StepInFlight] = deque()
        self._retired_step = -1  # the last finished one
        self._leaving: dict[int, list[list[int]]] = {}  # step -> block tables that are given back when it is finished
        self._num_pauses = 0  # steps the first waiting prompt did not fit beside the decode rows

        self._num_steps = 0
        self._num_arrivals = 0
        self._num_finished = 0
        self._num_preemptions = 0
        self._num_queried_tokens = 0
        self._num_hit_tokens = 0
        self._step_time_s = 0.0

    # ---- requests come and go

    def add(self, request: EngineRequest) -> None:
        """Queue a request.

        Raises InvalidRequest if it can never be served, and QueueFull if it could later; either way nothing changed.
        """
        settings = self.settings
        if request.request_id in self._requests:
            raise InvalidRequest(f"request id {request.request_id!r} is in use", param="request_id")
        check_request(request, settings)
        self._check_queue(len(request.prompt_token_ids))
        self._requests[request.request_id] = added = Request.of(
            request,
            arrival=self._num_arrivals,
            seed=self._random.getrandbits(63),
            eos_token_ids=settings.eos_token_ids,
            max_length=settings.max_sequence_len,
            reads_cache=settings.enable_prefix_caching,
            names=self._names,
        )
        self._num_arrivals += 1
        if added.stop.named_token_ids:
            self._watched.watch(added.stop.named_token_ids)
        self._waiting.push(added)

    def abort(self, request_id: str) -> EngineOutput | None:
        """End a request wherever it is. Returns its last output, or None if it has ended before or never was."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        self._end(request, FinishReason.ABORT)
        return self._last_output(request)

    @property
    def has_work(self) -> bool:
        """There is something to schedule, or a step to finish."""
        return bool(self._requests or self._in_flight)

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self._requests) - len(self._waiting),
            num_waiting=len(self._waiting),
            num_free_blocks=self._pool.num_free,
            num_blocks=self._pool.num_blocks,
            prefix_queries=self._num_queried_tokens,
            prefix_hits=self._num_hit_tokens,
            num_preemptions=self._num_preemptions,
            num_steps=self._num_steps,
            step_time_s=self._step_time_s,
        )

    # ---- one step

    def schedule(self) -> StepPlan | None:
        """Plan the next step; None if nothing can be computed now.

        None while steps are in flight may mean that all rows wait for them; with none in flight it means no work.
        A plan that was returned must be executed and finished: its blocks are already published.
        """
        if self._has_left:
            self._set_running([request for request in self._running if request.slot != NO_SLOT])
        draft = _Draft()
        is_paused = self._num_pauses > MAX_PAUSE  # the step belongs to the first waiting prompt
        prefills = [] if is_paused else self._plan_decodes(draft)
        left = self.settings.prefill_budget(len(draft.decodes))
        half = left // 2
        left = self._plan_running_prefills(draft, prefills, left, half)
        if left and not draft.has_preempted:
            left = self._plan_admissions(draft, left, half)
        if left:
            self._return_leftover(draft, left)
        self._num_passed_over = len(self._waiting)
        if is_paused:
            self._num_pauses = 0
            if not draft.prefills:
                self._plan_decodes(draft)
        if not draft.decodes and not draft.prefills:
            return None
        return self._commit(draft)

    def finish_step(self, plan: StepPlan, result: StepResult, step_time_s: float = 0.0) -> StepOutputs:
        """Take in the tokens of the oldest plan in flight; returns one output per request that got a token.

        Args:
            step_time_s: how long the step took, for `stats` and for the retry estimate of QueueFull.

        Raises RuntimeError if the plan is not the oldest one or the result does not belong to it.
        """
        if len(result.token_ids) != plan.num_rows or ((result.token_ids >= 0) != plan.is_sampled).any():
            raise RuntimeError(f"the tokens of step {plan.step} do not match its sampled rows")
        flight = self._retire(plan)
        self._step_time_s += step_time_s
        self._publish_computed(flight)
        if result.prompt_logprobs:
            self._keep_prompt_logprobs(flight, result)
        return self._append_tokens(flight, result)

    def fail_step(self, plan: StepPlan, error: str) -> list[EngineOutput]:
        """The oldest plan in flight was not carried out, or only in part: end its requests with `error`.

        What the cache holds for its tokens is unknown, and requests of later plans may already build on it: they end
        too, and all cached blocks lose their names. All others go on. Raises RuntimeError as `finish_step` does.
        """
        flights = [self._retire(plan), *self._in_flight]
        self._pool.forget_all()
        outputs = []
        for request in dict.fromkeys(request for flight in flights for request in flight.requests):
            if request.finish_reason is None:
                self._end(request, FinishReason.ERROR)
                outputs.append(self._last_output(request, error))
        # The runner may not have got as far as forgetting these. Those with a new owner have been told of it since.
        free = set(self._free_slots).difference(self._released_slots)
        self._released_slots += [slot for slot in plan.released_slots if slot in free]
        return outputs

    # ---- admission control

    def _check_queue(self, num_tokens: int) -> None:
        settings, waiting = self.settings, self._waiting
        if self._num_ahead >= settings.max_queued_requests:
            raise QueueFull(f"{len(waiting)} requests are waiting", retry_after_s=self._retry_after(1))
        over = waiting.num_tokens + num_tokens - settings.max_queued_tokens
        if len(waiting) and over > 0:
            mean = waiting.num_tokens / len(waiting)
            raise QueueFull(
                f"requests with {waiting.num_tokens} prompt tokens are waiting",
                retry_after_s=self._retry_after(over / mean),
            )

    @property
    def _num_ahead(self) -> int:
        """Requests that a new one would wait behind. Free slots are for those that have come since the last step; when
        that step left some waiting nevertheless, it is memory or budget that they lack."""
        has_stalled = bool(self._num_passed_over and self._waiting)
        return len(self._waiting) - (0 if has_stalled else len(self._free_slots))

    def _retry_after(self, num_requests: float) -> float:
        """Seconds until so many requests have left the queue, at the pace of those finished so far."""
        pace = self._step_time_s / self._num_finished if self._num_finished else 0.0
        return min(max(num_requests * pace, MIN_RETRY_S), MAX_RETRY_S)

    # ---- planning

    @property
    def _num_available(self) -> int:
        """Free blocks that are not reserved."""
        return self._pool.num_free - self._num_reserved

    def _plan_decodes(self, draft: _Draft) -> list[Request]:
        """Plan all rows that are one token behind; returns the running prefills."""
        slots = self._running_slots
        if not len(slots):
            return []
        target = self._target[slots]
        behind = target - self._computed[slots]
        # At its greatest length a sequence only waits for the last token to be read back.
        is_decode = (behind == 1) & (target < self._max_length[slots])
        if is_decode.all():
            requests, prefills = self._running, []
        else:
            running = self._running
            requests = [running[row] for row in np.flatnonzero(is_decode).tolist()]
            prefills = [running[row] for row in np.flatnonzero(behind > 1).tolist()]
            slots = slots[is_decode]
        crossing = (self._computed[slots] == self._capacity[slots]).nonzero()[0].tolist()
        if len(crossing) > self._num_available:
            requests = self._make_room(draft, requests)
            slots = np.array([request.slot for request in requests], np.int64)
            prefills = [request for request in prefills if request.slot != NO_SLOT]
        elif crossing:
            self._take_next_blocks(draft, [requests[row] for row in crossing])
        draft.decodes, draft.decode_slots = requests, slots
        return prefills

    def _make_room(self, draft: _Draft, requests: list[Request]) -> list[Request]:
        """Give decode rows their next block, best rank first, preempting from the worst; returns the rows to compute.

        Where blocks are about to come back from steps in flight, a row sits this step out instead.
        """
        rows = sorted(requests, key=self._rank)
        candidates = sorted(self._running, key=self._rank)  # the worst last
        awaits_last_token = self._target >= self._max_length
        candidates = [request for request in candidates if not awaits_last_token[request.slot]]
        blocks_are_coming = bool(self._leaving) or len(candidates) < len(self._running)
        kept = []
        for request in rows:
            if request.slot == NO_SLOT:
                continue  # preempted for a better one
            if self._computed[request.slot] == self._capacity[request.slot]:
                while self._num_available + request.num_reserved < 1 and not blocks_are_coming:
                    victim = candidates.pop()
                    self._preempt(victim)
                    draft.has_preempted = True
                    blocks_are_coming = bool(self._leaving)
                    if victim is request:
                        break
                if request.slot == NO_SLOT or self._num_available + request.num_reserved < 1:
                    continue
                self._take_blocks(draft, request, 1)
            kept.append(request)
        return kept

    def _plan_running_prefills(self, draft: _Draft, requests: list[Request], left: int, half: int) -> int:
        """Returns what is left of the token budget."""
        requests.sort(key=self._rank)
        for index, request in enumerate(requests):
            if not left:
                draft.count_partial(is_long=self._is_long(request))
                continue
            self._extend_by_hits(draft, request)
            others = index + 1 < len(requests) or bool(self._waiting and self._free_slots)
            start = int(self._computed[request.slot])
            end = self._chunk_end(start, len(request.token_ids), left, half, others)
            self._compute_to(draft, _PrefillRow(request, start, end, is_new=False))
            left -= end - start
            if end < len(request.token_ids):
                draft.count_partial(is_long=self._is_long(request))
        return left

    def _is_long(self, request: Request) -> bool:
        return len(request.token_ids) > self.settings.long_prefill_token_threshold

    def _plan_admissions(self, draft: _Draft, left: int, half: int) -> int:
        """Give slots to waiting requests, the first one first, until one does not fit. Returns the budget left."""
        settings, waiting = self.settings, self._waiting
        admitted: list[Request] = []
        num_held_back = 0  # long prompts that shorter ones pass
        while left and len(waiting) > num_held_back and self._free_slots:
            request = waiting.peek(num_held_back)
            if request.busy_until > self._retired_step:
                break  # preempted, and a step in flight still writes its blocks or draws its next token
            is_long = self._is_long(request)
            if is_long and num_held_back:
                num_held_back += 1
                continue
            hits = self._find_hits(request, 0)
            start, known = len(hits) * settings.block_size, len(request.token_ids)
            others = len(waiting) > num_held_back + 1 and len(self._free_slots) > 1
            end = self._chunk_end(start, known, left, half, others)
            if start < end < known and not self._has_place(draft, is_long=is_long):
                if known - start <= left:
                    end = known  # at the cost of those behind it, but it need not wait
                elif draft.num_partial < settings.max_num_partial_prefills:
                    num_held_back += 1
                    continue
                else:
                    break
            num_new = -(-known // settings.block_size) - len(hits)
            # One free block more per running sequence, or the next full block of one of them would preempt this one.
            num_running = len(self._running) + len(admitted)
            if num_new + num_running > self._num_available - self._pool.num_free_among(hits):
                break
            if end == start:
                self._num_pauses += bool(draft.decodes)
                break
            if end < known:
                draft.count_partial(is_long=is_long)
            self._num_pauses = 0
            waiting.pop(num_held_back)
            self._take_slot(request, hits, num_new)
            if request.reads_cache and not request.num_preemptions:
                self._num_queried_tokens += known
            admitted.append(request)
            self._compute_to(draft, _PrefillRow(request, start, end, is_new=True))
            left -= end - start
        if admitted:
            self._set_running(self._running + admitted)
        return left

    def _has_place(self, draft: _Draft, *, is_long: bool) -> bool:
        """Whether one more prompt may be left computed in part."""
        settings = self.settings
        return draft.num_partial < settings.max_num_partial_prefills and not (
            is_long and draft.num_long_partial >= settings.max_long_partial_prefills
        )

    def _return_leftover(self, draft: _Draft, left: int) -> None:
        """Let prefills that were cut short for others have what the others did not use."""
        for row in draft.prefills:
            end = min(row.end + left, len(row.request.token_ids))
            if end < len(row.request.token_ids):
                end -= end % self.settings.block_size
            if end > row.end:
                left -= end - row.end
                row.end = end
                self._extend_row(draft, row)

    def _chunk_end(self, start: int, known: int, left: int, half: int, others: bool) -> int:
        """Where a prefill's chunk ends; `start` if it gets nothing. `left` > 0 tokens, `half` of the prefill budget."""
        wanted = known - start
        if not self.settings.enable_chunked_prefill:
            return known if wanted <= left else start
        if wanted > half and others:
            left = max(left // 2, 1)
        if wanted <= left:
            return known
        # A chunk that ends with a block lets the sequence go on from blocks that others have published meanwhile.
        end = (start + left) // self.settings.block_size * self.settings.block_size
        return end if end > start else start + left

    def _find_hits(self, request: Request, num_held: int) -> list[int]:
        """Cached blocks that continue the request's first `num_held`.

        Its last known token is always computed, because the next one is drawn from it.
        """
        if not request.reads_cache:
            return []
        num_blocks = (len(request.token_ids) - 1) // self.settings.block_size
        request.name_blocks(self._names, self.settings.block_size, num_blocks)
        return self._cache.find(request.block_hashes, num_held, num_blocks)

    def _extend_by_hits(self, draft: _Draft, request: Request) -> None:
        """Go on from blocks that others computed since this prefill was last scheduled, such as a prefix in common."""
        slot, block_size = request.slot, self.settings.block_size
        if self._computed[slot] % block_size:
            return
        hits = self._find_hits(request, len(request.block_ids))
        if hits:
            self._take_hits(request, hits)
            draft.block_slots += [slot] * len(hits)
            draft.block_ids += hits

    def _take_slot(self, request: Request, hits: list[int], num_new: int) -> None:
        slot = self._free_slots.pop()
        request.slot = slot
        request.num_reserved = len(hits) + num_new
        self._num_reserved += request.num_reserved
        self._computed[slot] = 0
        self._capacity[slot] = 0
        self._target[slot] = len(request.token_ids)
        self._max_length[slot] = request.stop.max_length
        self._serial[slot] = request.arrival
        self._route[slot] = request.route
        self._news_at[slot] = 0  # its next token tells what it had from the cache
        self._fill_tail(request)
        self._take_hits(request, hits)

    def _take_hits(self, request: Request, hits: list[int]) -> None:
        """Append cached blocks in place of reserved ones; their tokens count as computed."""
        num_tokens = len(hits) * self.settings.block_size
        self._pool.hold(hits)
        request.block_ids += hits
        request.num_published += len(hits)
        request.num_reserved -= len(hits)
        self._num_reserved -= len(hits)
        self._computed[request.slot] += num_tokens
        self._capacity[request.slot] += num_tokens
        if not request.num_preemptions:
            request.num_cached_tokens += num_tokens
            self._num_hit_tokens += num_tokens

    def _take_blocks(self, draft: _Draft | None, request: Request, count: int) -> None:
        """Append blocks from the pool, reserved ones first. No `draft`: they travel in an admission."""
        block_ids = self._pool.allocate(count)
        request.block_ids += block_ids
        reserved = min(count, request.num_reserved)
        request.num_reserved -= reserved
        self._num_reserved -= reserved
        self._capacity[request.slot] += count * self.settings.block_size
        if draft is not None:
            draft.block_slots += [request.slot] * count
            draft.block_ids += block_ids

    def _take_next_blocks(self, draft: _Draft, requests: list[Request]) -> None:
        """One block more for each of these, as `_take_blocks` takes them."""
        slots, block_ids = [request.slot for request in requests], self._pool.allocate(len(requests))
        for request, block_id in zip(requests, block_ids, strict=True):
            request.block_ids.append(block_id)
            if request.num_reserved:
                request.num_reserved -= 1
                self._num_reserved -= 1
        self._capacity[slots] += self.settings.block_size
        draft.block_slots += slots
        draft.block_ids += block_ids

    def _compute_to(self, draft: _Draft, row: _PrefillRow) -> None:
        draft.prefills.append(row)
        self._extend_row(draft, row)

    def _extend_row(self, draft: _Draft, row: _PrefillRow) -> None:
        """Take the blocks up to the row's end and publish the full ones."""
        request = row.request
        count = -(-row.end // self.settings.block_size) - len(request.block_ids)
        if count:
            self._take_blocks(None if row.is_new else draft, request, count)
        self._publish(request, row.end)

    def _commit(self, draft: _Draft) -> StepPlan:
        """Write the draft down as a plan and count its tokens as computed."""
        slots, requests = draft.decode_slots, draft.decodes
        num_decodes = len(slots)
        num_computed = self._computed[slots]
        num_tokens, is_sampled = self._ones[:num_decodes], self._trues[:num_decodes]
        if draft.prefills:
            rows = draft.prefills
            ends = np.array([row.end for row in rows], np.int32)
            starts = np.array([row.start for row in rows], np.int32)
            prefill_slots = np.array([row.request.slot for row in rows], np.int64)
            slots = np.concatenate((slots, prefill_slots))
            num_computed = np.concatenate((num_computed, starts))
            num_tokens = np.concatenate((num_tokens, ends - starts))
            is_sampled = np.concatenate((is_sampled, ends == self._target[prefill_slots]))
            requests = requests + [row.request for row in rows]
        plan = StepPlan(
            step=self._num_steps,
            released_slots=self._released_slots,
            admissions=[self._admission(row.request) for row in draft.prefills if row.is_new],
            block_slots=np.array(draft.block_slots, np.int32),
            block_ids=np.array(draft.block_ids, np.int32),
            slots=slots.astype(np.int32),
            num_computed=num_computed,
            num_tokens=num_tokens,
            is_sampled=is_sampled,
        )
        self._computed[slots] = num_computed + num_tokens
        self._target[slots] += is_sampled
        self._last_step[slots] = plan.step
        self._released_slots = []
        self._num_steps += 1
        self._in_flight.append(_StepInFlight(plan, requests, self._serial[slots]))
        return plan

    def _admission(self, request: Request) -> Admission:
        sampling = request.sampling
        if sampling.prompt_logprobs is not None and request.prompt_logprobs is None:
            sampling = replace(sampling, prompt_logprobs=None)  # they were sent before it was preempted
        return Admission(
            slot=request.slot,
            token_ids=list(request.token_ids),
            num_prompt_tokens=request.num_prompt_tokens,
            block_ids=list(request.block_ids),
            sampling=sampling,
            seed=request.seed,
        )

    # ---- results

    def _publish(self, request: Request, num_tokens: int) -> None:
        """Name the full blocks among the first `num_tokens` tokens, which are known and scheduled."""
        num_full = num_tokens // self.settings.block_size
        if not self.settings.enable_prefix_caching or num_full <= request.num_published:
            return
        request.name_blocks(self._names, self.settings.block_size, num_full)
        for index in range(request.num_published, num_full):
            self._cache.publish(request.block_hashes[index], request.block_ids[index])
        request.num_published = num_full

    def _retire(self, plan: StepPlan) -> _StepInFlight:
        """The plan's step will write no more: give back the blocks that waited for it."""
        if not self._in_flight or self._in_flight[0].plan is not plan:
            raise RuntimeError(f"step {plan.step} is not the oldest one in flight")
        self._retired_step = plan.step
        for block_ids in self._leaving.pop(plan.step, ()):
            self._pool.release(block_ids)
        return self._in_flight.popleft()

    def _publish_computed(self, flight: _StepInFlight) -> None:
        """Read and publish blocks that decode rows have filled: only now are all their tokens known."""
        size, plan = self.settings.block_size, flight.plan
        ends = plan.num_computed + plan.num_tokens
        rows = (ends % size == 0).nonzero()[0]  # flatnonzero takes four times as long
        if not len(rows):
            return
        tails = self._tail[plan.slots[rows]]
        data, width = tails.tobytes(), size * tails.itemsize
        keeps_names = self.settings.enable_prefix_caching
        for index, (row, end, tail) in enumerate(zip(rows.tolist(), ends[rows].tolist(), tails.tolist(), strict=True)):
            request = flight.requests[row]
            if request.slot == NO_SLOT:
                continue
            num_read, num_full = len(request.token_ids), end // size
            is_drawn = num_read < end  # else the block is of the prompt, and its tail may never have been filled
            if is_drawn:
                request.token_ids += tail[num_read % size :]
            if is_drawn and keeps_names and request.num_published == len(request.block_hashes) == num_full - 1:
                self._names.append(request.block_hashes, request.cache_root, data[index * width : (index + 1) * width])
                self._cache.publish(request.block_hashes[-1], request.block_ids[num_full - 1])
                request.num_published = num_full
            else:
                self._publish(request, end)

    def _fill_tail(self, request: Request) -> None:
        """The tokens of its last block, which those to come will join."""
        slot, known = request.slot, len(request.token_ids)
        last = known % self.settings.block_size
        self._known[slot] = known
        self._tail[slot, :last] = request.token_ids[known - last :]

    def _read_tail(self, request: Request) -> None:
        """Move what has been drawn to the list of its tokens."""
        have = len(request.token_ids)
        missing = int(self._known[request.slot]) - have
        if missing:
            first = have % self.settings.block_size
            request.token_ids += self._tail[request.slot, first : first + missing].tolist()

    def _keep_prompt_logprobs(self, flight: _StepInFlight, result: StepResult) -> None:
        for row, entries in result.prompt_logprobs.items():
            kept = flight.requests[row].prompt_logprobs
            if kept is not None:
                first = int(flight.plan.num_computed[row]) + 1
                entries = entries[: len(kept) - first]
                kept[first : first + len(entries)] = entries

    def _append_tokens(self, flight: _StepInFlight, result: StepResult) -> StepOutputs:
        plan, records = flight.plan, []
        for row, error in result.errors.items():
            if flight.requests[row].finish_reason is None:
                self._end(flight.requests[row], FinishReason.ERROR)
                records.append(self._last_output(flight.requests[row], error))
        slots = plan.slots.astype(np.int64)
        has_slot = self._serial[slots] == flight.serials
        is_drawn = plan.is_sampled & has_slot
        if is_drawn.all():
            rows, token_ids = np.arange(plan.num_rows), result.token_ids
        else:
            for row in np.flatnonzero(plan.is_sampled & ~has_slot).tolist():
                request = flight.requests[row]
                if request.finish_reason is None:  # preempted meanwhile; else drawn for a sequence that has ended
                    request.token_ids.append(int(result.token_ids[row]))
                    records.append(self._output(request, len(request.token_ids), row, result))
            rows = np.flatnonzero(is_drawn)
            slots, token_ids = slots[rows], result.token_ids[rows]
        lengths = self._known[slots]
        size = self.settings.block_size
        self._tail.reshape(-1)[slots * size + lengths % size] = token_ids  # one index is five times as fast as two
        lengths += 1
        self._known[slots] = lengths
        has_more = (lengths >= self._news_at[slots]) | self._watched.seen_in(token_ids)
        if result.logprobs:
            has_more |= np.isin(rows, list(result.logprobs))
        if has_more.any():
            self._news_at[slots] = self._max_length[slots]
            for row, length in zip(rows[has_more].tolist(), lengths[has_more].tolist(), strict=True):
                records.append(self._output(flight.requests[row], length, row, result))
            if has_more.all():
                return StepOutputs(records)
            is_plain = ~has_more
            rows, slots, token_ids = rows[is_plain], slots[is_plain], token_ids[is_plain]
        return StepOutputs(records, token_ids, self._route[slots], flight.requests, rows)

    def _output(self, request: Request, length: int, row: int, result: StepResult) -> EngineOutput:
        """The token that makes the request's sequence `length` long, with all there is to tell; ends what it ends."""
        token_id = int(result.token_ids[row])
        output = EngineOutput(
            request_id=request.request_id, token_ids=[token_id], num_cached_tokens=request.num_cached_tokens
        )
        if row in result.logprobs:
            output.logprobs = [result.logprobs[row]]
        if request.prompt_logprobs is not None:
            output.prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, None
        output.finish_reason, output.stop_reason = request.stop.check(token_id, length)
        if output.finish_reason is not None:
            self._end(request, output.finish_reason)
        return output

    # ---- leaving

    def _end(self, request: Request, reason: FinishReason) -> None:
        request.finish_reason = reason
        del self._requests[request.request_id]
        self._num_finished += 1
        if request.stop.named_token_ids:
            self._watched.forget(request.stop.named_token_ids)
        if request.slot == NO_SLOT:
            if self._waiting.peek() is request:
                self._num_pauses = 0
            self._waiting.remove(request)
        else:
            self._leave_slot(request)

    @staticmethod
    def _last_output(request: Request, error: str | None = None) -> EngineOutput:
        return EngineOutput(
            request_id=request.request_id,
            token_ids=[],
            finish_reason=request.finish_reason,
            num_cached_tokens=request.num_cached_tokens,
            error=error,
        )

    def _preempt(self, request: Request) -> None:
        """Take slot and blocks back. What it has generated stays, and is computed again as if it were its prompt."""
        self._num_preemptions += 1
        request.num_preemptions += 1
        request.busy_until = int(self._last_step[request.slot])
        self._read_tail(request)
        self._leave_slot(request)
        self._waiting.push(request)

    def _leave_slot(self, request: Request) -> None:
        slot, block_ids = request.slot, request.block_ids
        last_step = int(self._last_step[slot])
        if last_step > self._retired_step:
            self._leaving.setdefault(last_step, []).append(block_ids)
        else:
            self._pool.release(block_ids)
        self._num_reserved -= request.num_reserved
        request.slot, request.block_ids, request.num_reserved, request.num_published = NO_SLOT, [], 0, 0
        self._serial[slot] = -1
        self._free_slots.append(slot)
        self._released_slots.append(slot)
        self._has_left = True

    def _set_running(self, running: list[Request]) -> None:
        self._running = running
        self._has_left = False
        self._running_slots = np.array([request.slot for request in running], np.int64)
