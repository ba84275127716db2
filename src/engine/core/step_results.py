"""StepResults: takes in what a step sampled, and makes the outputs of its requests.

In a step of steady decode nearly every row has one token and nothing else: these stay in columns. Only rows with more
to report (a first token, log-probabilities, an end) become records, one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ..api import EngineOutput, FinishReason, StoredBlocks, VerifiedDraft
from ..step.plan import Bool, Int32, Int64, StepPlan
from ..step.result import StepOutputs, StepResult
from .request import NO_SLOT, Request
from .sequences import Sequences
from .settings import SchedulerSettings
from .steps_in_flight import StepInFlight

LEAST_FORCED = 3  # tokens: fewer are sampled one by one, because the sequence may have to leave a step out


class StepResults:
    def __init__(self, settings: SchedulerSettings, sequences: Sequences) -> None:
        self._sequences = sequences
        self._can_append = settings.enable_chunked_prefill  # otherwise prompts are computed when they are admitted
        self._num_groups = settings.num_groups
        self._columns = sequences.columns

    def take(
        self, step: StepInFlight, rows: Int64, result: StepResult, drafts: Mapping[int, VerifiedDraft]
    ) -> StepOutputs:
        """Append the sampled tokens to their sequences, end those that are finished, and return what is new.

        A token of a sequence that has ended since the step was planned is dropped.

        rows: of the plan, one for each token. drafts: that the step has verified, by row.
        """
        records: list[EngineOutput] = []
        if result.prompt_logprobs:
            _keep_prompt_logprobs(step, result)
        for row, error in result.errors.items():
            if step.requests[row].finish_reason is None:
                records.append(self.end(step.requests[row], FinishReason.ERROR, error))
        if result.num_valid is None:
            return self._take_one_each(step, rows, np.arange(len(rows)), result, records)
        return self._take_several(step, result.num_valid, result, records, drafts)

    def _take_several(
        self,
        step: StepInFlight,
        num_valid: Int32,
        result: StepResult,
        records: list[EngineOutput],
        drafts: Mapping[int, VerifiedDraft],
    ) -> StepOutputs:
        """The first token of each row, then the second of those that have one, and so on, as if a step had each.

        Rows with a single plain token, and without drafts, stay in columns.
        """
        columns, plan = self._columns, step.plan
        rejected = plan.num_outputs - num_valid
        cut = np.flatnonzero((rejected > 0) & (columns.serial[plan.slots] == step.serials))
        columns.computed[plan.slots[cut]] -= rejected[cut]
        columns.target[plan.slots[cut]] -= rejected[cut]
        first, ends = np.cumsum(num_valid) - num_valid, first_ends(plan, result)
        outputs = {record.request_id: record for record in records}
        plain, has_followers = StepOutputs(), bool(result.complete or result.forced)
        for index in range(num_valid.max(initial=0)):
            rows = (num_valid > index).nonzero()[0]
            if index:
                later = np.minimum(index, np.maximum(num_valid - 1, 0))
                self._sequences.blocks.publish_sampled(step, ends + later)
                self._sequences.blocks.states.publish_sampled(step, ends + later)
            own = _of_last(result, num_valid == index + 1) if has_followers else result
            taken = self._take_one_each(step, rows, first[rows] + index, own, [])
            if not index:
                is_alone = plan.num_outputs[taken.rows] == 1  # a row with drafts says what became of them
                plain, taken = taken.part(is_alone), taken.part(~is_alone, taken.records)
            for output in taken:
                if (before := outputs.get(output.request_id)) is None:
                    outputs[output.request_id] = output
                else:
                    before.merge(output)
        for row, draft in drafts.items():
            if (made := outputs.get(step.requests[row].request_id)) is not None:
                # What is accepted after the last token of an answer is not in it.
                made.drafts = [draft._replace(num_accepted=min(draft.num_accepted, len(made.token_ids)))]
        return replace(plain, records=list(outputs.values()))

    def _take_one_each(
        self, step: StepInFlight, rows: Int64, at: Int64, result: StepResult, records: list[EngineOutput]
    ) -> StepOutputs:
        """One token of each of these rows. at: its place in the result. records: are joined by new ones."""
        columns, plan = self._columns, step.plan
        token_ids = result.token_ids[at] if result.num_valid is not None else result.token_ids
        slots = plan.slots.take(rows).astype(np.int64)
        has_slot = columns.serial[slots] == step.serials[rows]
        if not has_slot.all():
            for index in np.flatnonzero(~has_slot).tolist():
                request = step.requests[rows[index]]
                if request.finish_reason is None:  # it was preempted since; its token joins the others in its list
                    request.token_ids.append(int(token_ids[index]))
                    records.append(
                        self._record(request, len(request.token_ids), int(rows[index]), int(at[index]), result)
                    )
            rows, at, slots, token_ids = rows[has_slot], at[has_slot], slots[has_slot], token_ids[has_slot]
        lengths = columns.append(slots, token_ids)
        self._sequences.drafting.follow(slots, lengths, token_ids)
        columns.is_held[slots] = False
        needs_record = (lengths >= columns.record_at[slots]) | self._sequences.watched.seen_in(token_ids)
        if result.logprobs:
            needs_record |= np.isin(at, list(result.logprobs))
        if result.forced:
            needs_record |= np.isin(rows, list(result.forced))
        if result.complete:
            needs_record |= np.isin(rows, result.complete)
        if needs_record.any():
            columns.record_at[slots] = columns.max_length[slots]
            columns_of_records = rows[needs_record], at[needs_record], lengths[needs_record]
            for row, index, length in zip(*(each.tolist() for each in columns_of_records), strict=True):
                records.append(self._record(step.requests[row], length, row, index, result))
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
            num_newly_cached_tokens=request.num_newly_cached_tokens,
            error=error,
        )

    def _record(self, request: Request, length: int, row: int, index: int, result: StepResult) -> EngineOutput:
        """The output with the token that makes the request's sequence `length` long. Ends the request if it must.

        index: the place of the token in the result.
        """
        if request.is_pooled:
            output = self.end(request, FinishReason.STOP)
            output.vectors = result.vectors[row]
            return output
        token_id = int(result.token_ids[index])
        output = EngineOutput(
            request_id=request.request_id,
            token_ids=[token_id],
            num_cached_tokens=request.num_cached_tokens,
            num_newly_cached_tokens=request.num_newly_cached_tokens,
        )
        if index in result.logprobs:
            output.logprobs = [result.logprobs[index]]
        if request.prompt_logprobs is not None:
            output.prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, None
        output.finish_reason, output.stop_reason = request.stop.check(token_id, length)
        if row in result.complete and output.finish_reason is not FinishReason.STOP:
            output.finish_reason = FinishReason.COMPLETE
        if request.inputs.sampling.max_tokens == 0:
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
        self._sequences.drafting.extend(request, run)
        return run


def first_ends(plan: StepPlan, result: StepResult) -> Int32:
    """[rows] How many tokens of each row's sequence are computed and known before the tokens of the result."""
    ends = plan.num_computed + plan.num_tokens
    return ends if result.num_valid is None else ends - np.maximum(plan.num_outputs - 1, 0)


def _of_last(result: StepResult, has_last: Bool) -> StepResult:
    """The result of the rows whose last token is taken: what follows the tokens of a row follows that one."""
    last = set(has_last.nonzero()[0].tolist())
    return replace(
        result,
        complete=[row for row in result.complete if row in last],
        forced={row: run for row, run in result.forced.items() if row in last},
    )


def _keep_prompt_logprobs(step: StepInFlight, result: StepResult) -> None:
    """Keep the log-probabilities of a prompt until they are sent, together with the first token."""
    for row, entries in result.prompt_logprobs.items():
        kept = step.requests[row].prompt_logprobs
        if kept is not None:
            first = int(step.plan.num_computed[row]) + 1
            entries = entries[: len(kept) - first]
            kept[first : first + len(entries)] = entries
