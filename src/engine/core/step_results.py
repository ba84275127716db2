"""StepResults: takes in what a step sampled, and makes the outputs of its requests.

In a step of steady decode nearly every row has one token and nothing else: these stay in columns. Only rows with more
to report (a first token, log-probabilities, an end) become records, one by one.
"""

from __future__ import annotations

import numpy as np

from ..api import EngineOutput, FinishReason, StoredBlocks
from .request import NO_SLOT, Request
from .sequences import Sequences
from .settings import SchedulerSettings
from .step_outputs import StepOutputs
from .step_plan import StepResult
from .steps_in_flight import StepInFlight

LEAST_FORCED = 3  # tokens: fewer are sampled one by one, because the sequence may have to leave a step out


class StepResults:
    def __init__(self, settings: SchedulerSettings, sequences: Sequences) -> None:
        self._sequences = sequences
        self._can_append = settings.enable_chunked_prefill  # otherwise prompts are computed when they are admitted
        self._num_groups = settings.num_groups
        self._columns = sequences.columns

    def take(self, step: StepInFlight, result: StepResult) -> StepOutputs:
        """Append the sampled tokens to their sequences, end those that are finished, and return what is new.

        A token of a sequence that has ended since the step was planned is dropped.
        """
        columns, plan, records = self._columns, step.plan, []
        if result.prompt_logprobs:
            _keep_prompt_logprobs(step, result)
        for row, error in result.errors.items():
            if step.requests[row].finish_reason is None:
                records.append(self.end(step.requests[row], FinishReason.ERROR, error))
        slots = plan.slots.astype(np.int64)
        has_slot = columns.serial[slots] == step.serials
        is_taken = plan.is_sampled & has_slot
        if is_taken.all():
            rows, token_ids = np.arange(plan.num_rows), result.token_ids
        else:
            for row in np.flatnonzero(plan.is_sampled & ~has_slot).tolist():
                request = step.requests[row]
                if request.finish_reason is None:  # it was preempted since; its token joins the others in its list
                    request.token_ids.append(int(result.token_ids[row]))
                    records.append(self._record(request, len(request.token_ids), row, result))
            rows = np.flatnonzero(is_taken)
            slots, token_ids = slots[rows], result.token_ids[rows]
        lengths = columns.append(slots, token_ids)
        columns.is_held[slots] = False
        needs_record = (lengths >= columns.record_at[slots]) | self._sequences.watched.seen_in(token_ids)
        if result.logprobs:
            needs_record |= np.isin(rows, list(result.logprobs))
        if result.forced:
            needs_record |= np.isin(rows, list(result.forced))
        if result.complete:
            needs_record |= np.isin(rows, result.complete)
        if needs_record.any():
            columns.record_at[slots] = columns.max_length[slots]
            for row, length in zip(rows[needs_record].tolist(), lengths[needs_record].tolist(), strict=True):
                records.append(self._record(step.requests[row], length, row, result))
            if needs_record.all():
                return StepOutputs(records)
            is_plain = ~needs_record
            rows, slots, token_ids = rows[is_plain], slots[is_plain], token_ids[is_plain]
        return StepOutputs(records, token_ids, columns.route[slots], step.requests, rows)

    def end(self, request: Request, reason: FinishReason, error: str | None = None) -> EngineOutput:
        """End a request without another token. Returns its last output."""
        self._sequences.end(request, reason)
        return EngineOutput(
            request_id=request.request_id,
            token_ids=[],
            finish_reason=reason,
            num_cached_tokens=request.num_cached_tokens,
            error=error,
        )

    def _record(self, request: Request, length: int, row: int, result: StepResult) -> EngineOutput:
        """The token that makes the request's sequence `length` long, with all that belongs to it; ends what it ends."""
        token_id = int(result.token_ids[row])
        output = EngineOutput(
            request_id=request.request_id, token_ids=[token_id], num_cached_tokens=request.num_cached_tokens
        )
        if row in result.logprobs:
            output.logprobs = [result.logprobs[row]]
        if request.prompt_logprobs is not None:
            output.prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, None
        output.finish_reason, output.stop_reason = request.stop.check(token_id, length)
        if row in result.complete and output.finish_reason is not FinishReason.STOP:
            output.finish_reason = FinishReason.COMPLETE
        if request.sampling.max_tokens == 0:
            output.finish_reason, output.stop_reason, output.token_ids = FinishReason.LENGTH, None, []
            output.logprobs = output.logprobs and []
        if output.finish_reason is not None:
            if request.is_for_others:
                num_full = request.num_prompt_tokens // self._sequences.blocks.block_size
                output.stored = StoredBlocks(tuple(request.block_hashes[:num_full]))
            self._sequences.end(request, output.finish_reason)
        elif row in result.forced and request.slot != NO_SLOT and self._can_append:
            output.token_ids += self._append_forced(request, length, result.forced[row])
        return output

    def _append_forced(self, request: Request, length: int, token_ids: list[int]) -> list[int]:
        """Append the tokens that must follow, of a sequence of this length. Returns them; none that ends it.

        Steps in flight sample the first of them. Then the sequence is held, and the rest is announced again.
        """
        columns, stop = self._columns, request.stop
        ends = (index for index, token_id in enumerate(token_ids) if token_id in stop.token_ids)
        run = token_ids[: min(stop.max_length - length - 1, next(ends, len(token_ids)))]
        num_coming = int(columns.target[request.slot]) - length
        if len(run) - num_coming < LEAST_FORCED:
            return []
        if num_coming:
            columns.is_held[request.slot] = True
            return []
        columns.read_tail(request)
        # One free block more per running sequence, as for an admission.
        if not self._sequences.blocks.reserve_more(request, len(run), len(self._sequences.running) * self._num_groups):
            return []
        columns.append_forced(request, run)
        return run


def _keep_prompt_logprobs(step: StepInFlight, result: StepResult) -> None:
    """Until the first token is sent, together with them."""
    for row, entries in result.prompt_logprobs.items():
        kept = step.requests[row].prompt_logprobs
        if kept is not None:
            first = int(step.plan.num_computed[row]) + 1
            entries = entries[: len(kept) - first]
            kept[first : first + len(entries)] = entries
