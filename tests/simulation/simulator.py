"""A world around the scheduler that knows the truth: what every token must be, and what every KV cache cell must hold.

FakeRunner carries out plans by what the plans alone say. A cell of its cache depends on all tokens up to its position,
as real keys and values do, so one wrong block anywhere shows at the next read; each token is drawn from the fingerprint
of the whole prefix. Simulation drives scheduler and runner, up to `depth` steps deep, and checks after every step what
must always hold.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random

import numpy as np

from stoker.engine.api import EngineOutput, EngineRequest, FinishReason, QueueFull, SamplingParams
from stoker.engine.core import Scheduler, SchedulerSettings, StepPlan, StepResult
from stoker.engine.core.request import Request

VOCAB = 64
EOS = 0
MAX_SKIPPED = 64  # plans without a row for a sequence that could have had one


def fingerprint(before: int, token_id: int) -> int:
    return hash((before, token_id))  # of integers: the same in every process


def root_fingerprint(salt: int) -> int:
    return hash((7, salt))


def drawn_from(mark: int) -> int:
    return mark // 3 % VOCAB


@dataclass(slots=True)
class _Slot:
    token_ids: list[int]
    marks: np.ndarray  # [max_model_len] int64: fingerprints by position, as far as tokens are known
    block_ids: list[int]

    def append(self, token_id: int) -> None:
        position = len(self.token_ids)
        self.token_ids.append(token_id)
        self.marks[position] = fingerprint(int(self.marks[position - 1]), token_id)


class FakeRunner:
    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._cells = np.zeros((settings.num_blocks, settings.block_size), np.int64)
        self._slots: dict[int, _Slot] = {}
        self._unsure: set[int] = set()  # slots that a failed step may or may not have touched

    def execute(self, plan: StepPlan) -> StepResult:
        self._apply(plan)
        rows = list(zip(plan.slots.tolist(), plan.num_computed.tolist(), plan.num_tokens.tolist(), strict=True))
        for slot, start, count in rows:
            self._write(self._slots[slot], start, start + count)
        token_ids = np.full(len(rows), -1, np.int32)
        for row, (slot, start, count) in enumerate(rows):
            state = self._slots[slot]
            self._read(plan, state, start + count)
            assert plan.is_sampled[row] == (start + count == len(state.token_ids)), f"step {plan.step} row {row}"
            if plan.is_sampled[row]:
                token_ids[row] = drawn_from(int(state.marks[start + count - 1]))
        for row in np.flatnonzero(plan.is_sampled).tolist():
            self._slots[rows[row][0]].append(int(token_ids[row]))
        return StepResult(token_ids=token_ids)

    def fail(self, plan: StepPlan, random: Random, got_somewhere: bool) -> None:
        """Break down in a step: before anything was done, or in the middle, and some cells hold nonsense."""
        if got_somewhere:
            self._apply(plan)
            for slot, start, count in zip(plan.slots, plan.num_computed, plan.num_tokens, strict=True):
                for position in range(start, start + count):
                    block, offset = divmod(position, self._settings.block_size)
                    self._cells[self._slots[slot].block_ids[block], offset] = random.getrandbits(62)
        self._unsure.update(plan.released_slots, (admission.slot for admission in plan.admissions))

    def _apply(self, plan: StepPlan) -> None:
        for slot in plan.released_slots:
            released = self._slots.pop(slot, None)
            assert released or slot in self._unsure, f"slot {slot} was released and had no sequence"
            self._unsure.discard(slot)
        for admission in plan.admissions:
            assert admission.slot not in self._slots, f"slot {admission.slot} was given to two sequences"
            token_ids = admission.token_ids
            marks = np.zeros(self._settings.max_model_len, np.int64)
            before = root_fingerprint(admission.seed)
            for position, token_id in enumerate(token_ids):
                marks[position] = before = fingerprint(before, token_id)
            self._slots[admission.slot] = _Slot(list(token_ids), marks, list(admission.block_ids))
        for slot, block_id in zip(plan.block_slots.tolist(), plan.block_ids.tolist(), strict=True):
            self._slots[slot].block_ids.append(block_id)

    def _write(self, state: _Slot, start: int, end: int) -> None:
        assert end <= len(state.token_ids), "a token was to be computed that nobody knows"
        positions = np.arange(start, end)
        blocks = np.array(state.block_ids)[positions // self._settings.block_size]
        self._cells[blocks, positions % self._settings.block_size] = state.marks[start:end]

    def _read(self, plan: StepPlan, state: _Slot, end: int) -> None:
        cells = self._cells[state.block_ids].ravel()[:end]
        wrong = np.flatnonzero(cells != state.marks[:end])
        assert len(cells) == end, f"step {plan.step}: {end} tokens in {len(state.block_ids)} blocks"
        assert not len(wrong), f"step {plan.step}: wrong keys and values at positions {wrong.tolist()} of {end}"


@dataclass(slots=True)
class Client:
    """One request as the world outside sees it."""

    request: EngineRequest
    mark: int  # fingerprint of all tokens so far
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def receive(self, output: EngineOutput, settings: SchedulerSettings) -> None:
        assert self.finish_reason is None, f"{output.request_id} got something after its end"
        request, sampling = self.request, self.request.sampling
        for token_id in output.token_ids:
            assert token_id == drawn_from(self.mark), f"{output.request_id}: token {len(self.token_ids)} is wrong"
            self.mark = fingerprint(self.mark, token_id)
            self.token_ids.append(token_id)
        num_prompt, num_drawn = len(request.prompt_token_ids), len(self.token_ids)
        assert output.num_cached_tokens < num_prompt
        assert output.num_cached_tokens % settings.block_size == 0
        assert settings.enable_prefix_caching or not output.num_cached_tokens
        self.finish_reason = output.finish_reason
        if output.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
            return
        limit = min(settings.max_model_len, settings.num_blocks * settings.block_size + 1) - num_prompt
        limit = min(limit, sampling.max_tokens or limit)
        is_stop = self.token_ids[-1] == EOS and not sampling.ignore_eos and num_drawn >= sampling.min_tokens
        expected = FinishReason.STOP if is_stop else FinishReason.LENGTH if num_drawn >= limit else None
        assert output.finish_reason == expected, f"{output.request_id} after {num_drawn} of {limit} tokens"


class Simulation:
    def __init__(self, settings: SchedulerSettings, depth: int, random: Random) -> None:
        self.settings = settings
        self.scheduler = Scheduler(settings)
        self.runner = FakeRunner(settings)
        self.clients: dict[str, Client] = {}
        self.live: dict[str, Client] = {}
        self.num_steps = 0
        self.num_refused = 0
        self._depth = depth
        self._random = random
        self._plans: deque[StepPlan] = deque()  # in flight
        self._results: deque[StepResult] = deque()  # of the first ones of these
        self._writers: deque[dict[int, Request]] = deque()  # block -> who writes it, per plan in flight
        self._skipped: Counter[Request] = Counter()
        self._partial: set[Request] = set()  # computed in part by the plans so far
        self._answering: set[Request] = set()  # drawn from by the plans so far, since they took their slots

    def add(self, prompt: list[int], salt: int = 0, priority: int = 0, sampling: SamplingParams | None = None) -> str:
        """Returns the request's id, also when the queue was full."""
        request_id = f"r{len(self.clients) + self.num_refused}"
        sampling = sampling or SamplingParams()
        request = EngineRequest(
            request_id=request_id, prompt_token_ids=prompt, sampling=sampling, priority=priority, cache_salt=str(salt)
        )
        assert sampling.seed == salt, "the runner tells salts apart by the seed"
        scheduler, settings = self.scheduler, self.settings
        waiting, free = len(scheduler._waiting), len(scheduler._free_slots)
        tokens = scheduler._waiting.num_tokens + len(prompt)
        ahead = waiting - (0 if waiting and scheduler._num_passed_over else free)
        is_full = ahead >= settings.max_queued_requests or (waiting and tokens > settings.max_queued_tokens)
        try:
            scheduler.add(request)
        except QueueFull:
            assert is_full
            self.num_refused += 1
            return request_id
        assert not is_full
        mark = root_fingerprint(salt)
        for token_id in prompt:
            mark = fingerprint(mark, token_id)
        self.clients[request_id] = self.live[request_id] = Client(request, mark)
        return request_id

    def abort(self, request_id: str) -> None:
        output = self.scheduler.abort(request_id)
        assert (output is not None) == (request_id in self.live)
        if output is not None:
            self._deliver(output)
        self.check()

    def step(self, fails: bool = False) -> None:
        """One turn of an engine's loop: fill the pipeline, then take in its oldest step."""
        while len(self._plans) < self._depth:
            plan = self.scheduler.schedule()
            self.check()
            if plan is None:
                assert self._plans or not self.scheduler.has_work, "there is work, and nothing was scheduled"
                break
            self._check_plan(plan)
            self._plans.append(plan)
            if self._random.random() < 0.5:  # else the runner is late
                self._execute_up_to(len(self._plans))
        if not self._plans:
            return
        if fails and not self._results:
            self._fail_all()
            return
        self._execute_up_to(1)
        plan, result = self._plans.popleft(), self._results.popleft()
        self._writers.popleft()
        self.num_steps += 1
        for output in self.scheduler.finish_step(plan, result, step_time_s=0.01):
            self._deliver(output)
        self.check()

    def drain(self) -> None:
        """No more faults or arrivals: everything must end, and all memory come back."""
        bound = (
            self.num_steps
            + 64
            + sum(
                2 * self.settings.max_model_len + len(client.request.prompt_token_ids) for client in self.live.values()
            )
        )
        while self.scheduler.has_work:
            assert self.num_steps < bound, "requests do not end"
            self.step()
        stats = self.scheduler.stats()
        assert not self.live
        assert stats.num_free_blocks == stats.num_blocks
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        assert len(self.scheduler._free_slots) == self.settings.max_num_seqs
        assert self.scheduler._num_reserved == 0

    def check(self) -> None:
        """What must hold between any two calls."""
        scheduler, pool, cache = self.scheduler, self.scheduler._pool, self.scheduler._cache
        holders: Counter[int] = Counter()
        running = [request for request in scheduler._requests.values() if request.slot >= 0]
        for request in running:
            holders.update(request.block_ids)
            assert len(set(request.block_ids)) == len(request.block_ids)
        for step, tables in scheduler._leaving.items():
            assert step > scheduler._retired_step, "blocks of a finished step were not given back"
            for block_ids in tables:
                holders.update(block_ids)
        assert holders == {block_id: count for block_id, count in enumerate(pool._ref_counts) if count}
        free = [*pool._blank, *pool._cached]
        assert len(set(free)) == len(free)
        assert len(free) + len(holders) == pool.num_blocks
        assert holders.keys().isdisjoint(free)
        assert pool._cached.keys() <= cache._hashes.keys()
        assert cache._hashes.keys().isdisjoint(pool._blank)
        assert cache._hashes == dict(zip(cache._blocks.values(), cache._blocks.keys(), strict=True))
        assert scheduler._num_reserved == sum(request.num_reserved for request in running)
        assert scheduler._num_reserved <= pool.num_free
        slots = [request.slot for request in running]
        assert sorted(slots + scheduler._free_slots) == list(range(self.settings.max_num_seqs))
        assert scheduler._requests.keys() == self.live.keys()
        assert len(scheduler._waiting) + len(running) == len(self.live)

    def _check_plan(self, plan: StepPlan) -> None:
        scheduler, settings = self.scheduler, self.settings
        assert 0 < plan.num_rows <= settings.max_num_seqs
        assert plan.num_tokens.min() > 0
        assert plan.num_batched_tokens <= settings.max_num_batched_tokens
        assert len(set(plan.slots.tolist())) == plan.num_rows
        rows = {request: row for row, request in enumerate(scheduler._in_flight[-1].requests)}
        self._check_share(plan, rows)
        writes: dict[int, Request] = {}
        prefills = {request for request, row in rows.items() if plan.num_tokens[row] > 1} | self._partial
        may_hold_back = sum(map(self._is_long, prefills)) >= settings.max_long_partial_prefills
        for request, row in rows.items():
            assert request.slot == plan.slots[row]
            start, end = int(plan.num_computed[row]), int(plan.num_computed[row] + plan.num_tokens[row])
            if not settings.enable_chunked_prefill:
                assert plan.is_sampled[row], "a prompt was cut"
            for index in range(start // settings.block_size, -(-end // settings.block_size)):
                block_id = request.block_ids[index]
                assert block_id not in writes, f"block {block_id} is written by two rows of one step"
                writes[block_id] = request
                for writers in self._writers:
                    assert writers.get(block_id, request) is request, f"block {block_id} is still being written"
            (self._partial.discard if plan.is_sampled[row] else self._partial.add)(request)
        self._writers.append(writes)
        self._partial = {request for request in self._partial if request.slot >= 0}
        assert len(self._partial) <= settings.max_num_partial_prefills
        assert sum(map(self._is_long, self._partial)) <= settings.max_long_partial_prefills
        if plan.admissions:
            admitted = {admission.slot for admission in plan.admissions}
            last = max(self._rank(request) for request in rows if request.slot in admitted)
            waiting = [request for request in scheduler._requests.values() if request.slot < 0]
            for request in waiting:
                is_held_back = may_hold_back and self._is_long(request)
                assert is_held_back or last < self._rank(request), "a request was overtaken"
        if settings.scheduling_policy == "fcfs":
            self._check_skips(rows)

    def _check_share(self, plan: StepPlan, rows: dict[Request, int]) -> None:
        """Prompts take no more than their share beside answers: beside sequences that were drawn from before."""
        self._answering = {request for request in self._answering if request.slot >= 0}
        answers = self._answering & rows.keys()
        if answers:
            # the last token of a prompt may be computed as any single token is
            pieces = [row for request, row in rows.items() if request not in answers]
            pieces = [row for row in pieces if plan.num_tokens[row] > 1 or not plan.is_sampled[row]]
            assert plan.num_tokens[pieces].sum() <= self.settings.max_prefill_tokens
        self._answering |= {request for request, row in rows.items() if plan.is_sampled[row]}

    def _rank(self, request: Request) -> tuple[int, int]:
        return (request.priority if self.settings.scheduling_policy == "priority" else 0), request.arrival

    def _is_long(self, request: Request) -> bool:
        return len(request.token_ids) > self.settings.long_prefill_token_threshold

    def _check_skips(self, rows: dict[Request, int]) -> None:
        scheduler = self.scheduler
        could_run = [
            request
            for request in scheduler._requests.values()
            if request.slot >= 0 and scheduler._target[request.slot] < request.stop.max_length
        ]
        if scheduler._waiting and scheduler._free_slots:
            first = scheduler._waiting.peek()
            needed = -(-len(first.token_ids) // self.settings.block_size) + len(scheduler._running)
            has_place = not self._partial or self.settings.max_num_partial_prefills > len(self._partial)
            has_place &= self.settings.max_long_partial_prefills > sum(map(self._is_long, self._partial))
            if has_place and needed <= scheduler._num_available and first.busy_until <= scheduler._retired_step:
                could_run.append(first)
        self._skipped = Counter({request: self._skipped[request] + 1 for request in could_run if request not in rows})
        assert max(self._skipped.values(), default=0) <= MAX_SKIPPED, "a request is passed over again and again"

    def _execute_up_to(self, count: int) -> None:
        while len(self._results) < count:
            self._results.append(self.runner.execute(self._plans[len(self._results)]))

    def _fail_all(self) -> None:
        """The oldest step breaks down, and those that were queued behind it are not begun."""
        got_somewhere = self._random.random() < 0.5
        while self._plans:
            plan = self._plans.popleft()
            self._writers.popleft()
            self.runner.fail(plan, self._random, got_somewhere)
            got_somewhere = False
            for output in self.scheduler.fail_step(plan, "broken"):
                assert output.finish_reason is FinishReason.ERROR
                assert output.error == "broken"
                self._deliver(output)
            self.check()

    def _deliver(self, output: EngineOutput) -> None:
        client = self.clients[output.request_id]
        client.receive(output, self.settings)
        if client.finish_reason is not None:
            del self.live[output.request_id]
