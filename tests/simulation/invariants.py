"""Invariants of the scheduler between any two calls, and of every plan. White-box: reads all state."""

from __future__ import annotations

import operator
from collections import Counter, deque

from stoker.engine.core import Scheduler
from stoker.engine.core.adapter_slots import MAX_PASSED_STEPS
from stoker.engine.core.prefix_cache import NO_BLOCK
from stoker.engine.core.request import Request
from stoker.engine.kv_events.payloads import CacheView
from stoker.engine.step import StepPlan

from .runner import FakeRunner
from .truth import Client

MAX_SKIPPED = 64  # plans without a row for a sequence that could have had one


class Invariants:
    def __init__(self, scheduler: Scheduler, runner: FakeRunner, live: dict[str, Client]) -> None:
        self._scheduler = scheduler
        self._sequences = scheduler.sequences
        self._settings = scheduler.settings
        self._runner = runner
        self._live = live
        self._writers: deque[dict[int, Request]] = deque()  # block -> the request that writes it, per plan in flight
        self._skipped: Counter[Request] = Counter()
        self._partial: set[Request] = set()  # computed in part by the plans so far
        self._answering: set[Request] = set()  # sampled by the plans so far, since they took their slots
        self._ends: dict[Request, int] = {}  # tokens computed by the plans so far, of those that have a slot
        self._drafted: dict[Request, int] = {}  # drafts of its last row, of each that had some
        self._begins: dict[Request, int] = {}  # tokens computed before the newest plan that gave them blocks
        self._marks: dict[
            tuple[int, bytes], int
        ] = {}  # group of layers and block hash -> fingerprint of the prefix that ends with the block
        self._prefixes: dict[int, tuple[int, bytes]] = {}  # the reverse
        self._num_plans = self._num_preemptions = self._num_queried = self._num_hits = 0
        self._step_time_s = 0.0
        self._view = CacheView(scheduler.settings.num_groups)  # of a reader of all events

    # ---- between calls

    def check_state(self) -> None:
        sequences, running = self._sequences, self._running()
        self._note_departures()
        self._check_blocks(running)
        slots = [request.slot for request in running]
        slots += [*sequences.columns.free_slots, *sequences._leaving]
        assert sorted(slots) == list(range(self._settings.max_num_seqs))
        assert {request.request_id for request in sequences.live} == self._live.keys()
        assert len(sequences.waiting) + len(running) == len(self._live)
        assert sequences.waiting.num_tokens == sum(
            request.num_prompt_tokens for request in sequences.live if request.slot < 0
        )
        self._check_stats(len(running))
        self._check_events()

    def check_contents(self) -> None:
        """After the runner has executed all plans."""
        self._check_cache()
        self._check_kept_states()
        self._check_slots()

    def _check_events(self) -> None:
        """A reader's view differs from the cache only by the plans in flight."""
        events, cache = self._scheduler.block_events, self._sequences.blocks.cache
        assert events is not None
        self._view.apply(events.take(), self._settings.block_size)
        assert events.reported == [set(blocks) for blocks in cache._blocks], "what is reported is not what is cached"
        if not self._writers and not events._current:
            assert events.reported == [set(blocks) for blocks in self._view.groups], "a reader's view is wrong"

    def _running(self) -> list[Request]:
        return [request for request in self._sequences.live if request.slot >= 0]

    def _note_departures(self) -> None:
        """Includes those of a call that preempted and planned nothing."""
        for request in [request for request in self._ends if request.slot < 0]:
            del self._ends[request]
            self._begins.pop(request, None)
            self._drafted.pop(request, None)
            self._num_preemptions += request.finish_reason is None
            self._answering.discard(request)
            self._partial.discard(request)

    def _check_blocks(self, running: list[Request]) -> None:
        """No block is lost or both free and held; reference counts are right; each hash has one block."""
        sequences, pool, cache = self._sequences, self._sequences.blocks.pool, self._sequences.blocks.cache
        counts = [0] * pool.num_blocks
        for request in running:
            held = [block_id for table in request.block_ids for block_id in table if block_id != NO_BLOCK]
            assert len(set(held)) == len(held), "a block is twice in one sequence's tables"
            assert len({len(table) for table in request.block_ids}) == 1, "tables of different lengths"
            assert request.num_published <= min(request.num_blocks, len(request.block_hashes))
            for block_id in held:
                counts[block_id] += 1
        for step, tables in sequences.steps._held.items():
            assert step > sequences.steps.last_finished, "blocks of a finished step were not given back"
            for block_ids in tables:
                for block_id in block_ids:
                    counts[block_id] += 1
        assert counts == pool._ref_counts, "reference counts differ from the numbers of owners"
        free = {*pool._blank, *pool._cached}
        assert len(free) == len(pool._blank) + len(pool._cached), "a block is free twice"
        assert free == {block_id for block_id, count in enumerate(counts) if not count}
        assert pool._cached.keys() <= cache._hashes.keys()
        assert cache._hashes.keys().isdisjoint(pool._blank)
        by_block = {at: (group, each) for group, blocks in enumerate(cache._blocks) for each, at in blocks.items()}
        assert by_block == cache._hashes
        assert len(by_block) == sum(map(len, cache._blocks))
        assert sequences.blocks.num_reserved == sum(request.num_reserved for request in running)
        assert sequences.blocks.num_reserved <= pool.num_free

    def _check_cache(self) -> None:
        """Each hash has one prefix and each prefix one hash, and the block holds that prefix."""
        cells, marks, prefixes = self._runner.cells, self._marks, self._prefixes
        lasts = cells[:, -1].tolist()
        for block_id, block_hash in self._sequences.blocks.cache._hashes.items():
            mark = lasts[block_id]
            assert marks.setdefault(block_hash, mark) == mark, f"block {block_id} does not hold the prefix of its hash"
            assert prefixes.setdefault(mark, block_hash) == block_hash, f"block {block_id}: a second hash for a prefix"

    def _check_kept_states(self) -> None:
        """Each kept state was computed from the prefix of its hash, whose last block is cached in some group."""
        cache, settings = self._sequences.blocks.cache, self._settings
        kept = list(cache.states._by_hash.items())
        places = [place for _, place in kept] + cache.states._free
        first = settings.max_num_seqs
        assert sorted(places) == [*range(first, first + settings.num_kept_states)] or self._sequences.steps
        assert cache.states._passing <= {block_hash for block_hash, _ in kept}
        for block_hash, place in kept:
            mark = self._runner.states[place]
            found = [self._marks.get((group, block_hash)) for group in range(settings.num_groups)]
            expected = [mark ^ of_group for of_group in self._runner.group_marks]
            assert any(map(operator.eq, found, expected)), f"place {place} does not hold the state of its hash"
            assert cache.has(block_hash), f"the state at place {place} is kept without a block"

    def _check_slots(self) -> None:
        """The runner's tables agree with the scheduler's."""
        sequences, size = self._sequences, self._settings.block_size
        for request in self._running():
            slot, state = request.slot, self._runner.slots[request.slot]
            for table, its in zip(state.block_ids, request.block_ids, strict=True):
                pairs = list(zip(table, its, strict=True))
                assert all(mine in (block_id, NO_BLOCK) for block_id, mine in pairs), (
                    f"slot {slot}: another block table"
                )
            self._check_windows(request)
            untold = request.num_untold
            most = int(sequences.columns.target[slot]) - untold
            if request.is_pooled:
                most = request.num_prompt_tokens  # no token follows
            # Drafts that were rejected are taken back when their step is finished.
            assert most - self._drafts_in_flight(request) <= len(state.token_ids) <= most, f"slot {slot}: other tokens"
            known, read = int(sequences.columns.known[slot]), len(request.token_ids)
            assert state.token_ids[:read] == request.token_ids[: read - untold]
            places = [position % size for position in range(read, known)]
            assert len(places) <= size
            assert state.token_ids[read:known] == sequences.columns.tail[slot, places].tolist()
            assert sequences.columns.capacity[slot] == request.num_blocks * size

    def _drafts_in_flight(self, request: Request) -> int:
        drafts = [
            dict(step.plan.drafts).get(request.slot, []) for step in self._sequences.steps if request in step.requests
        ]
        return sum(map(len, drafts))

    def _check_windows(self, request: Request) -> None:
        """What the next token sees is kept; what was before the window when blocks were last taken is not."""
        computed, size = int(self._sequences.columns.computed[request.slot]), self._settings.block_size
        begin = self._begins.get(request, 0)
        for window, table in zip(self._settings.windows, request.block_ids, strict=True):
            needed = 0 if window is None else max(0, computed - window + 1) // size
            assert NO_BLOCK not in table[needed:], "a block within the window was given back"
            passed = 0 if window is None else max(0, begin - window + 1) // size
            assert window is None or set(table[:passed]) <= {NO_BLOCK}, "a block before the window is kept"

    def _check_stats(self, num_running: int) -> None:
        stats = self._scheduler.stats()
        assert (stats.num_running, stats.num_waiting) == (num_running, len(self._live) - num_running)
        assert stats.num_free_blocks == sum(not count for count in self._sequences.blocks.pool._ref_counts)
        assert stats.num_steps == self._num_plans
        assert stats.num_preemptions == self._num_preemptions, "preemptions are miscounted"
        assert (stats.prefix_queries, stats.prefix_hits) == (self._num_queried, self._num_hits), "hits are miscounted"
        assert stats.step_time_s == self._step_time_s

    def retired(self, step_time_s: float) -> None:
        """The oldest plan is finished or failed."""
        self._writers.popleft()
        self._step_time_s += step_time_s

    # ---- plans

    def check_plan(self, plan: StepPlan) -> None:
        """A plan that was just made."""
        sequences, settings = self._sequences, self._settings
        self._num_plans += 1
        self._note_departures()
        assert 0 < plan.num_rows <= settings.max_num_seqs
        assert plan.num_tokens.min() > 0
        assert plan.num_batched_tokens <= settings.max_num_batched_tokens
        assert len(set(plan.slots.tolist())) == plan.num_rows
        rows = {request: row for row, request in enumerate(sequences.steps[-1].requests)}
        admitted = {admission.slot for admission in plan.admissions}
        prefills = {request for request in rows if request.slot in admitted} | self._partial
        self._check_share(plan, rows)
        self._check_fairness(plan, rows)
        self._count_hits(plan, rows, admitted)
        self._check_writes(plan, rows)
        assert len(self._partial) <= settings.max_num_partial_prefills
        assert sum(map(self._is_long, self._partial)) <= settings.max_long_partial_prefills
        if admitted and settings.store is None:  # those that wait for stored blocks are overtaken
            may_hold_back = sum(map(self._is_long, prefills)) >= settings.max_long_partial_prefills
            last = max(self._rank(request) for request in rows if request.slot in admitted)
            for request in sequences.live:
                is_held_back = may_hold_back and self._is_long(request)
                is_held_back |= request.num_passed_steps > 0  # its adapter has no slot
                assert request.slot >= 0 or is_held_back or last < self._rank(request), "a request was overtaken"
        if settings.num_stages > 1:
            self._check_stages(plan)
        if settings.scheduling_policy == "fcfs":
            self._check_skips(plan, rows)

    def _check_stages(self, plan: StepPlan) -> None:
        """The first stage samples for the steps in flight after this plan has arrived."""
        changed = {*plan.released_slots, *(admission.slot for admission in plan.admissions)}
        changed |= {slot for slot, _ in plan.forced}
        for step in list(self._sequences.steps)[:-1]:
            sampled = set(step.plan.slots[step.plan.output_rows].tolist())
            assert not sampled & set(plan.slots.tolist()), "a token is computed that is not yet sampled"
            assert not sampled & changed, "a slot changes before it is sampled for"

    def _check_writes(self, plan: StepPlan, rows: dict[Request, int]) -> None:
        writes: dict[int, Request] = {}
        size = self._settings.block_size
        for request, row in rows.items():
            assert request.slot == plan.slots[row]
            start, end = int(plan.num_computed[row]), int(plan.num_computed[row] + plan.num_tokens[row])
            is_whole = request.needs_whole or not self._settings.enable_chunked_prefill
            assert not is_whole or plan.num_outputs[row], "a prompt was cut"
            assert not (request.needs_whole and start), "only a part of a prompt was computed"
            assert end < request.stop.max_length, "a row for a sequence that only waits for its last token"
            written = [block_id for table in request.block_ids for block_id in table[start // size : -(-end // size)]]
            for block_id in written:
                assert block_id not in writes, f"block {block_id} is written by two rows of one step"
                writes[block_id] = request
                for writers in self._writers:
                    assert writers.get(block_id, request) is request, f"block {block_id} is still being written"
            # forced tokens of an answer are no prompt
            is_partial = not plan.num_outputs[row] and request not in self._answering
            (self._partial.add if is_partial else self._partial.discard)(request)
        self._writers.append(writes)

    def _count_hits(self, plan: StepPlan, rows: dict[Request, int], admitted: set[int]) -> None:
        drafts = dict(plan.drafts)
        for request, row in rows.items():
            start = int(plan.num_computed[row])
            before = self._ends.get(request, 0)
            assert start >= before, "tokens are computed twice"
            if num_drafts := self._drafted.pop(request, 0):
                assert start <= before + num_drafts, "tokens of drafts are counted that there were not"
                before = start
            assert start == before or self._settings.enable_prefix_caching, "tokens are skipped"
            if not request.num_preemptions:
                self._num_hits += start - before
                wants_all = request.inputs.sampling.prompt_logprobs is not None or request.needs_whole
                wants_all |= not self._settings.enable_prefix_caching
                self._num_queried += 0 if wants_all or request.slot not in admitted else request.num_prompt_tokens
            if num_drafts := len(drafts.get(request.slot, [])):
                self._drafted[request] = num_drafts
            self._ends[request] = start + int(plan.num_tokens[row]) - num_drafts
            # A row with drafts may have its next block already, when its last one is full.
            is_growing = plan.num_tokens[row] > 1 or start % self._settings.block_size == 0
            is_growing &= self._settings.drafting is None
            if is_growing:  # blocks are given back when others are taken
                self._begins[request] = start

    def _check_share(self, plan: StepPlan, rows: dict[Request, int]) -> None:
        """Prompts take no more than their share in steps with answers: sequences that were sampled before."""
        answers = self._answering & rows.keys()
        if answers:
            # the last token of a prompt may be computed as any single token is
            pieces = [row for request, row in rows.items() if request not in answers and not request.needs_whole]
            drafts = dict(plan.drafts)
            pieces = [row for row in pieces if plan.slots[row] not in drafts]
            pieces = [row for row in pieces if plan.num_tokens[row] > 1 or not plan.num_outputs[row]]
            num_decoded = len(answers) + sum(map(len, drafts.values()))
            assert plan.num_tokens[pieces].sum() <= self._settings.prefill_budget(num_decoded), (
                "prompts take more than their share"
            )
        self._answering |= {request for request, row in rows.items() if plan.num_outputs[row]}

    def _check_fairness(self, plan: StepPlan, rows: dict[Request, int]) -> None:
        """While a prompt that is computed in part gets no tokens, none gets more than half of the prefill budget."""
        if not any(request.slot >= 0 and request not in rows for request in self._partial):
            return
        drafted = {slot for slot, _ in plan.drafts}
        prefills = [row for request, row in rows.items() if request in self._partial and request.slot not in drafted]
        whole = [row for request, row in rows.items() if request.needs_whole]  # they take what is left
        of_answers = int(plan.num_tokens.sum() - plan.num_tokens[prefills + whole].sum())  # one each, or forced ones
        budget = self._settings.max_num_batched_tokens - of_answers
        assert all(plan.num_tokens[row] <= max(budget // 2, 1) for row in prefills), "a prompt takes it all"

    def _check_skips(self, plan: StepPlan, rows: dict[Request, int]) -> None:
        """No sequence is skipped for long. Steps whose budget was halved down to one token by the prompts before it do
        not count: nothing was left to share, and each such step brings those prompts nearer to their end."""
        sequences = self._sequences
        if ((plan.num_tokens == 1) & (plan.num_outputs == 0)).any():
            return
        could_run = [
            request
            for request in sequences.live
            if request.slot >= 0 and sequences.columns.target[request.slot] < request.stop.max_length
        ]
        if sequences.waiting and sequences.columns.free_slots:
            first = sequences.waiting.peek()
            longest = MAX_PASSED_STEPS + 2 * self._settings.max_model_len  # until the rows of an adapter have ended
            assert first.num_passed_steps <= longest, "no slot is emptied for the adapter of the first request"
            needed = -(-len(first.token_ids) // self._settings.block_size) + len(sequences.running)
            needed *= self._settings.num_groups
            has_place = not self._partial or self._settings.max_num_partial_prefills > len(self._partial)
            has_place &= self._settings.max_long_partial_prefills > sum(map(self._is_long, self._partial))
            if (
                has_place
                and needed <= sequences.blocks.num_available
                and first.busy_until <= sequences.steps.last_finished
                and not first.num_passed_steps
            ):
                could_run.append(first)
        self._skipped = Counter({request: self._skipped[request] + 1 for request in could_run if request not in rows})
        assert max(self._skipped.values(), default=0) <= MAX_SKIPPED, "a request is skipped again and again"

    def _rank(self, request: Request) -> tuple[int, int]:
        return (request.priority if self._settings.scheduling_policy == "priority" else 0), request.arrival

    def _is_long(self, request: Request) -> bool:
        return len(request.token_ids) > self._settings.long_prefill_token_threshold
