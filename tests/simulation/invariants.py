"""What must hold of the scheduler between any two calls, and of every plan. White-box: it looks at all state."""

from __future__ import annotations

from collections import Counter, deque

from stoker.engine.core import Scheduler, StepPlan
from stoker.engine.core.request import Request

from .runner import FakeRunner
from .truth import Client

MAX_SKIPPED = 64  # plans without a row for a sequence that could have had one


class Invariants:
    def __init__(self, scheduler: Scheduler, runner: FakeRunner, live: dict[str, Client]) -> None:
        self._scheduler = scheduler
        self._settings = scheduler.settings
        self._runner = runner
        self._live = live
        self._writers: deque[dict[int, Request]] = deque()  # block -> who writes it, per plan in flight
        self._skipped: Counter[Request] = Counter()
        self._partial: set[Request] = set()  # computed in part by the plans so far
        self._answering: set[Request] = set()  # drawn from by the plans so far, since they took their slots
        self._ends: dict[Request, int] = {}  # tokens computed by the plans so far, of those that have a slot
        self._names: dict[bytes, int] = {}  # name of a block -> fingerprint of the prefix that ends with it
        self._prefixes: dict[int, bytes] = {}  # and back
        self._num_plans = self._num_preemptions = self._num_queried = self._num_hits = 0
        self._step_time_s = 0.0

    # ---- between calls

    def check_state(self) -> None:
        scheduler, running = self._scheduler, self._running()
        self._note_departures()
        self._check_blocks(running)
        slots = [request.slot for request in running]
        assert sorted(slots + scheduler._free_slots) == list(range(self._settings.max_num_seqs))
        assert scheduler._requests.keys() == self._live.keys()
        assert len(scheduler._waiting) + len(running) == len(self._live)
        assert scheduler._waiting.num_tokens == sum(
            request.num_prompt_tokens for request in scheduler._requests.values() if request.slot < 0
        )
        self._check_stats(len(running))

    def check_contents(self) -> None:
        """Once the runner has carried out all plans."""
        self._check_cache()
        self._check_slots()

    def _running(self) -> list[Request]:
        return [request for request in self._scheduler._requests.values() if request.slot >= 0]

    def _note_departures(self) -> None:
        """Also of a call that preempted and planned nothing."""
        for request in [request for request in self._ends if request.slot < 0]:
            del self._ends[request]
            self._num_preemptions += request.finish_reason is None
            self._answering.discard(request)
            self._partial.discard(request)

    def _check_blocks(self, running: list[Request]) -> None:
        """No block is lost, free and held, or held by more or fewer than it counts; names are of one block each."""
        scheduler, pool, cache = self._scheduler, self._scheduler._pool, self._scheduler._cache
        counts = [0] * pool.num_blocks
        for request in running:
            assert len(set(request.block_ids)) == len(request.block_ids), "a block is twice in one table"
            assert request.num_published <= min(len(request.block_ids), len(request.block_hashes))
            for block_id in request.block_ids:
                counts[block_id] += 1
        for step, tables in scheduler._leaving.items():
            assert step > scheduler._retired_step, "blocks of a finished step were not given back"
            for block_ids in tables:
                for block_id in block_ids:
                    counts[block_id] += 1
        assert counts == pool._ref_counts, "reference counts are not the numbers of owners"
        free = {*pool._blank, *pool._cached}
        assert len(free) == len(pool._blank) + len(pool._cached), "a block is free twice"
        assert free == {block_id for block_id, count in enumerate(counts) if not count}
        assert pool._cached.keys() <= cache._hashes.keys()
        assert cache._hashes.keys().isdisjoint(pool._blank)
        assert len(cache._hashes) == len(cache._blocks)
        assert all(cache._hashes.get(block_id) == name for name, block_id in cache._blocks.items())
        assert scheduler._num_reserved == sum(request.num_reserved for request in running)
        assert scheduler._num_reserved <= pool.num_free

    def _check_cache(self) -> None:
        """A name stands for one prefix and a prefix for one name, and the block named holds just that."""
        cells, names, prefixes = self._runner.cells, self._names, self._prefixes
        lasts = cells[:, -1].tolist()
        for block_id, name in self._scheduler._cache._hashes.items():
            mark = lasts[block_id]
            assert names.setdefault(name, mark) == mark, f"block {block_id} holds something else than its name says"
            assert prefixes.setdefault(mark, name) == name, f"block {block_id} has another name for the same prefix"

    def _check_slots(self) -> None:
        """The runner's tables are what the scheduler takes them for."""
        scheduler, size = self._scheduler, self._settings.block_size
        for request in self._running():
            slot, state = request.slot, self._runner.slots[request.slot]
            assert state.block_ids == request.block_ids, f"slot {slot}: another block table"
            assert len(state.token_ids) == scheduler._target[slot], f"slot {slot}: another length"
            known, read = int(scheduler._known[slot]), len(request.token_ids)
            assert state.token_ids[:read] == request.token_ids
            places = [position % size for position in range(read, known)]
            assert len(places) <= size
            assert state.token_ids[read:known] == scheduler._tail[slot, places].tolist()
            assert scheduler._capacity[slot] == len(state.block_ids) * size

    def _check_stats(self, num_running: int) -> None:
        stats = self._scheduler.stats()
        assert (stats.num_running, stats.num_waiting) == (num_running, len(self._live) - num_running)
        assert stats.num_free_blocks == sum(not count for count in self._scheduler._pool._ref_counts)
        assert stats.num_steps == self._num_plans
        assert stats.num_preemptions == self._num_preemptions, "preemptions are miscounted"
        assert (stats.prefix_queries, stats.prefix_hits) == (self._num_queried, self._num_hits), "hits are miscounted"
        assert stats.step_time_s == self._step_time_s

    def retired(self, step_time_s: float) -> None:
        """The oldest plan is over."""
        self._writers.popleft()
        self._step_time_s += step_time_s

    # ---- plans

    def check_plan(self, plan: StepPlan) -> None:
        """A plan that was just made."""
        scheduler, settings = self._scheduler, self._settings
        self._num_plans += 1
        self._note_departures()
        assert 0 < plan.num_rows <= settings.max_num_seqs
        assert plan.num_tokens.min() > 0
        assert plan.num_batched_tokens <= settings.max_num_batched_tokens
        assert len(set(plan.slots.tolist())) == plan.num_rows
        rows = {request: row for row, request in enumerate(scheduler._in_flight[-1].requests)}
        admitted = {admission.slot for admission in plan.admissions}
        prefills = {request for request in rows if request.slot in admitted} | self._partial
        self._check_share(plan, rows)
        self._check_fairness(plan, rows)
        self._count_hits(plan, rows, admitted)
        self._check_writes(plan, rows)
        assert len(self._partial) <= settings.max_num_partial_prefills
        assert sum(map(self._is_long, self._partial)) <= settings.max_long_partial_prefills
        if admitted:
            may_hold_back = sum(map(self._is_long, prefills)) >= settings.max_long_partial_prefills
            last = max(self._rank(request) for request in rows if request.slot in admitted)
            for request in scheduler._requests.values():
                is_held_back = may_hold_back and self._is_long(request)
                assert request.slot >= 0 or is_held_back or last < self._rank(request), "a request was overtaken"
        if settings.scheduling_policy == "fcfs":
            self._check_skips(plan, rows)

    def _check_writes(self, plan: StepPlan, rows: dict[Request, int]) -> None:
        writes: dict[int, Request] = {}
        size = self._settings.block_size
        for request, row in rows.items():
            assert request.slot == plan.slots[row]
            start, end = int(plan.num_computed[row]), int(plan.num_computed[row] + plan.num_tokens[row])
            assert self._settings.enable_chunked_prefill or plan.is_sampled[row], "a prompt was cut"
            assert end < request.stop.max_length, "a row for a sequence that only waits for its last token"
            for block_id in request.block_ids[start // size : -(-end // size)]:
                assert block_id not in writes, f"block {block_id} is written by two rows of one step"
                writes[block_id] = request
                for writers in self._writers:
                    assert writers.get(block_id, request) is request, f"block {block_id} is still being written"
            (self._partial.discard if plan.is_sampled[row] else self._partial.add)(request)
        self._writers.append(writes)

    def _count_hits(self, plan: StepPlan, rows: dict[Request, int], admitted: set[int]) -> None:
        for request, row in rows.items():
            start = int(plan.num_computed[row])
            before = self._ends.get(request, 0)
            assert start >= before, "tokens are computed twice"
            assert start == before or self._settings.enable_prefix_caching, "tokens are passed over"
            if not request.num_preemptions:
                self._num_hits += start - before
                wants_all = request.sampling.prompt_logprobs is not None or not self._settings.enable_prefix_caching
                self._num_queried += 0 if wants_all or request.slot not in admitted else request.num_prompt_tokens
            self._ends[request] = start + int(plan.num_tokens[row])

    def _check_share(self, plan: StepPlan, rows: dict[Request, int]) -> None:
        """Prompts take no more than their share beside answers: beside sequences that were drawn from before."""
        answers = self._answering & rows.keys()
        if answers:
            # the last token of a prompt may be computed as any single token is
            pieces = [row for request, row in rows.items() if request not in answers]
            pieces = [row for row in pieces if plan.num_tokens[row] > 1 or not plan.is_sampled[row]]
            assert plan.num_tokens[pieces].sum() <= self._settings.prefill_budget(len(answers)), (
                "prompts take more than their share"
            )
        self._answering |= {request for request, row in rows.items() if plan.is_sampled[row]}

    def _check_fairness(self, plan: StepPlan, rows: dict[Request, int]) -> None:
        """While a prompt that is computed in part gets nothing, none has more than half of the prompts' budget."""
        if not any(request.slot >= 0 and request not in rows for request in self._partial):
            return
        prefills = [row for request, row in rows.items() if request in self._partial]
        budget = self._settings.max_num_batched_tokens - (plan.num_rows - len(prefills))
        assert all(plan.num_tokens[row] <= max(budget // 2, 1) for row in prefills), "a long prompt takes it all"

    def _check_skips(self, plan: StepPlan, rows: dict[Request, int]) -> None:
        """No sequence is passed over for long. A step whose budget the prompts before it have halved down to a single
        token is not counted: there was none left to share, and each such step brings those prompts nearer their end."""
        scheduler = self._scheduler
        if ((plan.num_tokens == 1) & ~plan.is_sampled).any():
            return
        could_run = [
            request
            for request in scheduler._requests.values()
            if request.slot >= 0 and scheduler._target[request.slot] < request.stop.max_length
        ]
        if scheduler._waiting and scheduler._free_slots:
            first = scheduler._waiting.peek()
            needed = -(-len(first.token_ids) // self._settings.block_size) + len(scheduler._running)
            has_place = not self._partial or self._settings.max_num_partial_prefills > len(self._partial)
            has_place &= self._settings.max_long_partial_prefills > sum(map(self._is_long, self._partial))
            if has_place and needed <= scheduler._num_available and first.busy_until <= scheduler._retired_step:
                could_run.append(first)
        self._skipped = Counter({request: self._skipped[request] + 1 for request in could_run if request not in rows})
        assert max(self._skipped.values(), default=0) <= MAX_SKIPPED, "a request is passed over again and again"

    def _rank(self, request: Request) -> tuple[int, int]:
        return (request.priority if self._settings.scheduling_policy == "priority" else 0), request.arrival

    def _is_long(self, request: Request) -> bool:
        return len(request.token_ids) > self._settings.long_prefill_token_threshold
