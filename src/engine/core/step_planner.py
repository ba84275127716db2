"""StepPlanner: decides which sequences compute which tokens in the next step.

One rule: every sequence has known tokens and computed tokens, and each step lets the computed ones catch up with the
known ones, within a budget of tokens. A row that catches up samples one more token. A decode row has one token left to
compute, a prefill has more; there is no other difference.

Order within a step: decode rows, then running prefills, then waiting requests, in the policy's order. Only
long prompts are ever overtaken: while as many of them as allowed are computed in part, the next one waits and shorter
ones pass it (max_long_partial_prefills). How prefills share the budget: see prefill_budget.py.

Drafts: a decode row may have further tokens, which the model verifies (drafting.py). They take blocks that are free,
and nothing is preempted for them.

Memory: a sequence is admitted when the pool can hold all its known tokens. A decode row takes a block when its last one
is full; if there is none, the sequence that ranks last is preempted: it loses its blocks, waits, and is computed again,
mostly from the prefix cache.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..api import AdapterError
from ..step.plan import Int64, StepPlan
from .prefill_budget import PrefillBudget
from .request import NO_SLOT, Request
from .sequences import Sequences
from .settings import SchedulerSettings
from .step_draft import PrefillRow, StepDraft
from .stored_prefixes import StoredPrefixes

MAX_BLOCKED_STEPS = 8  # then decode rows pause for one step, so that a prompt that must be computed whole can run


class StepPlanner:
    def __init__(self, settings: SchedulerSettings, sequences: Sequences) -> None:
        self._settings = settings
        self._sequences = sequences
        self._columns = sequences.columns
        self._blocks = sequences.blocks
        self._states = sequences.blocks.states
        self.stored = StoredPrefixes(settings.store, sequences.blocks) if settings.store is not None else None
        self.unreadable: list[tuple[Request, str]] = []  # waiting requests whose adapters cannot be read, and why
        self._num_groups = settings.num_groups
        self._has_windows = any(window is not None for window in settings.windows)
        self._blocked: Request | None = None  # the waiting prompt that did not fit beside the decode rows
        self._num_blocked_steps = 0

    def plan(self) -> StepPlan | None:
        """The next step, added to the steps in flight; None if nothing can be computed now."""
        sequences = self._sequences
        sequences.drop_departed()
        if sequences.steps and self._settings.num_stages == 1 and sequences.drafting.waits(sequences.running_slots):
            return None
        draft = StepDraft(self._num_groups)
        decodes_pause = self._blocked is not None and self._is_blocked_too_long(self._blocked)
        prefills = [] if decodes_pause else self._plan_decodes(draft)
        if prefills or sequences.waiting:
            self._plan_prefills(draft, prefills)
        if decodes_pause:
            self._unblock()
            if not draft.prefills:
                self._plan_decodes(draft)
        while prefills and not draft.decodes and not draft.prefills and not sequences.steps:
            # Blocks before their windows did not come back, because others use them: the last one gives up its own.
            sequences.preempt(max(prefills, key=sequences.rank))
            prefills = [request for request in prefills if request.slot != NO_SLOT]
            self._plan_running_prefills(draft, PrefillBudget(self._settings, 0), prefills)
        if not draft.decodes and not draft.prefills:
            return None
        self._states.complete(draft)
        if self.stored is not None:
            draft.loads = self.stored.take_loads()
        draft.adapter_loads = sequences.adapters.take_loads()
        step = draft.commit(sequences.steps.num_planned, self._columns)
        sequences.steps.add(step)
        return step.plan

    # ---- decode rows

    def _plan_decodes(self, draft: StepDraft) -> list[Request]:
        """Plan all decode rows; returns the running prefills."""
        columns, running, slots = self._columns, self._sequences.running, self._sequences.running_slots
        if not len(slots):
            return []
        target = columns.target[slots]
        missing = target - columns.computed[slots]
        # A sequence of its maximum length only waits for its last token to be read back.
        is_decode = (missing == 1) & (target < columns.max_length[slots]) & ~columns.is_held[slots]
        if self._settings.num_stages > 1:
            is_decode = self._of_next_stage(slots, is_decode)
        if is_decode.all():
            requests, prefills = running, []
        else:
            requests = [running[row] for row in np.flatnonzero(is_decode).tolist()]
            prefills = [running[row] for row in np.flatnonzero(missing > 1).tolist()]
            slots = slots[is_decode]
        full = (columns.computed[slots] == columns.capacity[slots]).nonzero()[0].tolist()
        if self._has_windows:
            for row in full:
                self._blocks.release_passed(requests[row], self._sequences.steps)
        if len(full) * self._num_groups > self._blocks.num_available:
            requests = self._preempt_for_blocks(draft, requests)
            if not requests and self._sequences.has_departed and not self._sequences.steps:
                # The whole share of a stage was preempted, and others can run.
                self._sequences.drop_departed()
                return self._plan_decodes(draft)
            slots = np.array([request.slot for request in requests], np.int64)
            prefills = [request for request in prefills if request.slot != NO_SLOT]
        elif full:
            full_requests = [requests[row] for row in full]
            full_slots = [request.slot for request in full_requests]
            draft.block_ids += self._blocks.append_one_each(full_requests, full_slots)
            draft.block_slots += full_slots
        draft.decodes, draft.decode_slots = requests, slots
        if self._blocked is None:  # else what a step has left is for the prompt
            self._sequences.drafting.add(draft, len(self._sequences.running))
        return prefills

    def _of_next_stage(self, slots: Int64, is_decode: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Mask of the decode rows in the next step of a pipeline. Rows whose next token a step in flight samples are
        left out. If there are more answers than a stage's share, only the share that has waited longest is in it."""
        columns = self._columns
        known = columns.known[slots]
        is_ready: npt.NDArray[np.bool_] = is_decode & (columns.target[slots] == known)
        answers = np.flatnonzero(is_ready & (known > columns.admitted[slots]))  # not the last token of a prompt
        share = -(-len(slots) // self._settings.num_stages)
        if len(answers) > share:
            waited = np.argsort(columns.last_step[slots[answers]], kind="stable")
            is_ready[answers[waited[share:]]] = False
        return is_ready

    def _preempt_for_blocks(self, draft: StepDraft, requests: list[Request]) -> list[Request]:
        """Give decode rows their next block, best rank first, preempting from the worst; returns the rows to compute.

        If steps in flight are about to release blocks, nothing is preempted: a row without a block skips this step. Not
        those that another sequence gives back before its windows: it will take them itself.
        """
        sequences, columns, blocks = self._sequences, self._columns, self._blocks
        awaits_last_token = columns.target >= columns.max_length
        candidates = [request for request in sequences.running if not awaits_last_token[request.slot]]
        candidates.sort(key=sequences.rank)  # the worst last
        blocks_are_coming = sequences.steps.holds_tables or len(candidates) < len(sequences.running)
        kept = []
        for request in sorted(requests, key=sequences.rank):
            if request.slot == NO_SLOT:
                continue  # preempted for a better one
            if columns.computed[request.slot] == columns.capacity[request.slot]:
                while (
                    blocks.num_available + request.num_reserved < self._num_groups
                    and not blocks_are_coming
                    and request.passing_until <= sequences.steps.last_finished
                ):
                    victim = candidates.pop()
                    sequences.preempt(victim)
                    draft.lacks_blocks = True
                    blocks_are_coming = sequences.steps.holds_tables
                    if victim is request:
                        break
                if request.slot == NO_SLOT or blocks.num_available + request.num_reserved < self._num_groups:
                    continue
                draft.add_blocks(request.slot, blocks.append_new(request, 1))
            kept.append(request)
        return kept

    # ---- prefills

    def _plan_prefills(self, draft: StepDraft, running: list[Request]) -> None:
        num_forced = sum(request.has_forced for request in running)
        budget = PrefillBudget(self._settings, draft.num_decode_tokens, num_forced)
        self._plan_running_prefills(draft, budget, running)
        if budget.left and not draft.lacks_blocks:
            self._plan_admissions(draft, budget)
        if budget.left:
            self._return_leftover(draft, budget)

    def _plan_running_prefills(self, draft: StepDraft, budget: PrefillBudget, requests: list[Request]) -> None:
        waiting, free_slots = self._sequences.waiting, self._columns.free_slots
        requests.sort(key=lambda request: (not request.has_forced, self._sequences.rank(request)))
        for index, request in enumerate(requests):
            if not budget.left:
                budget.count_partial(request)
                continue
            if self._has_windows:
                self._blocks.release_passed(request, self._sequences.steps)
                self._blocks.reserve_again(request)
            self._append_cached(draft, request)
            has_others = index + 1 < len(requests) or bool(waiting and free_slots)
            start, known = int(self._columns.computed[request.slot]), len(request.token_ids)
            stop = self._states.chunk_stop(request, start, known)
            end = budget.chunk_end(start, stop, has_others=has_others)
            if self._has_windows:
                end = self._blocks.reachable_end(request, end)
            if end > start:
                self._add_row(draft, budget, PrefillRow(request, start, end, stop, is_new=False))
            else:
                draft.lacks_blocks = True
            if end < known:
                budget.count_partial(request)

    def _append_cached(self, draft: StepDraft, request: Request) -> None:
        """Go on from blocks that others computed since this prefill was last planned, such as a common prefix."""
        computed = self._columns.computed[request.slot]
        if computed % self._settings.block_size or request.has_forced:
            return
        cached = self._blocks.find_cached(request)
        num_free = self._blocks.num_available - self._blocks.num_free_among(cached) + request.num_reserved
        if cached.num_blocks and (num_free >= self._num_groups or not self._has_windows):
            self._blocks.append_cached(request, cached)
            by_position = zip(*cached.block_ids, strict=True)
            draft.add_blocks(request.slot, [block_id for each in by_position for block_id in each])

    def _plan_admissions(self, draft: StepDraft, budget: PrefillBudget) -> None:
        """Give slots to waiting requests, the first one first, until one does not fit."""
        sequences, blocks, block_size = self._sequences, self._blocks, self._settings.block_size
        waiting, free_slots = sequences.waiting, self._columns.free_slots
        admitted: list[Request] = []
        num_passed = 0  # long prompts that shorter ones pass, and requests that are not ready
        passes_long = False
        while budget.left and len(waiting) > num_passed and free_slots:
            request = waiting.peek(num_passed)
            if request.must_wait or (self.stored is not None and self.stored.is_reading(request)):
                num_passed += 1
                continue
            if not self._has_adapter(request):
                num_passed += 1
                continue
            if request.busy_until > sequences.steps.last_finished:
                break  # preempted, and a step in flight still writes its blocks or samples its next token
            is_long = budget.is_long(request)
            if is_long and passes_long:
                num_passed += 1
                continue
            # One free block more per running sequence, or the next full block of one of them would preempt this one.
            margin = (len(sequences.running) + len(admitted)) * self._num_groups
            if self.stored is not None and self.stored.place(request, margin):
                num_passed += 1
                continue
            cached = blocks.find_cached(request)
            start, known = cached.num_blocks * block_size, len(request.token_ids)
            if self._states.is_coming(request, start):
                break
            has_others = len(waiting) > num_passed + 1 and len(free_slots) > 1
            stop = self._states.chunk_stop(request, start, known)
            end = budget.chunk_end(start, stop, has_others=has_others, is_whole=request.needs_whole)
            if start < end < known and not (budget.allows_long_partial if is_long else budget.allows_partial):
                if known - start <= budget.left:
                    end = stop = known  # it takes the share of those after it, but need not wait
                elif budget.allows_partial:
                    num_passed, passes_long = num_passed + 1, True
                    continue
                else:
                    break
            num_new = -(-known // block_size) - cached.num_blocks
            num_reserved = blocks.num_to_reserve(num_new, start, cached.num_blocks)
            needed = num_reserved + margin
            if needed > blocks.num_available - blocks.num_free_among(cached):
                break
            if end == start:
                if draft.decodes:
                    self._block(request)
                break
            if end < known:
                budget.count_partial(request)
            self._unblock()
            sequences.admit(num_passed, cached, num_reserved)
            admitted.append(request)
            self._add_row(draft, budget, PrefillRow(request, start, end, stop, is_new=True))
        if admitted:
            sequences.extend_running(admitted)

    def _has_adapter(self, request: Request) -> bool:
        """Whether its adapter, if it has one, can be computed in this step."""
        try:
            return self._sequences.adapters.has_room(request)
        except AdapterError as error:
            self.unreadable.append((request, str(error)))
            return False

    def _return_leftover(self, draft: StepDraft, budget: PrefillBudget) -> None:
        """Give prefills that were cut short for others what the others did not use."""
        for row in draft.prefills:
            end = min(row.end + budget.left, row.stop)
            if end < row.stop:
                end -= end % self._settings.block_size
            if self._has_windows:
                end = self._blocks.reachable_end(row.request, end)
            if end > row.end:
                budget.take(row.request, end - row.end)
                row.end = end
                self._take_blocks(draft, row)

    def _add_row(self, draft: StepDraft, budget: PrefillBudget, row: PrefillRow) -> None:
        draft.prefills.append(row)
        budget.take(row.request, row.end - row.start)
        self._take_blocks(draft, row)
        self._states.expect(row)

    def _take_blocks(self, draft: StepDraft, row: PrefillRow) -> None:
        if self._has_windows:
            self._blocks.release_passed(row.request, self._sequences.steps)
        block_ids = self._blocks.extend_to(row.request, row.end)
        if self.stored is not None:
            self.stored.offer(row.request, draft.saves)
        if self._has_windows:
            self._blocks.reserve_again(row.request)
        if not row.is_new:
            draft.add_blocks(row.request.slot, block_ids)

    # ---- prompts that must be computed whole

    def _block(self, request: Request) -> None:
        """The first waiting prompt did not fit beside the decode rows of this step."""
        self._blocked = request
        self._num_blocked_steps += 1

    def _unblock(self) -> None:
        self._blocked = None
        self._num_blocked_steps = 0

    def _is_blocked_too_long(self, request: Request) -> bool:
        if request.finish_reason is not None:
            self._unblock()
        return self._num_blocked_steps > MAX_BLOCKED_STEPS
