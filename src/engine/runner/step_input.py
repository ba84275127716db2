"""Tensors of a step, from StepPlan and SlotTable: a flattened batch, and which of its tokens need logits.

Python code runs once per step, never once per row or token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..layers.step_input import StepInput
from ..step.plan import Int32, StepPlan
from .slot_table import SlotTable

Int64 = npt.NDArray[np.int64]
_NONE: Int64 = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class PooledTexts:
    """The texts of a step that one head pools."""

    task: str
    rows: Int64  # [R] of the plan, ascending
    tokens: Int64  # [N] those that the head needs, as indices into the flattened batch, row after row
    starts: Int64  # [R + 1] where the tokens of each row begin among these, and their number
    first: Sequence[int]  # [R] tokens of each text before the first one that is pooled


@dataclass(frozen=True, slots=True)
class LogitTokens:
    """The tokens of the step that need logits or are pooled, as indices into the flattened batch."""

    outputs: Int64  # [O] tokens whose logits are outputs, row after row
    output_rows: Int64  # [O] the row of each
    prompt: Int64  # [P] tokens followed by a prompt token whose logprobs are requested, in batch order
    prompt_rows: Int64  # [P] the row of each
    pooled: Sequence[PooledTexts] = ()  # what heads need that do not sample: of rows with outputs

    @property
    def sampled(self) -> Int64:
        """Indices of the outputs that are sampled."""
        if not self.pooled:
            return np.arange(len(self.outputs))
        return np.flatnonzero(~np.isin(self.output_rows, np.concatenate([each.rows for each in self.pooled])))

    def union(self, num_tokens: int) -> Int64 | None:
        """All kinds of tokens, in batch order, once each; None if that is the whole batch."""
        tokens = self.outputs
        if len(self.prompt) or self.pooled:
            sampled, pooled = tokens[self.sampled], [each.tokens for each in self.pooled]
            tokens = np.unique(np.concatenate([sampled, self.prompt, *pooled]))
        return None if len(tokens) == num_tokens else tokens


def build_step_input(plan: StepPlan, slots: SlotTable, device: torch.device) -> tuple[StepInput, ...]:
    """The step as each group of layers sees it. The plan must have been applied to `slots`."""
    max_query_len = int(plan.num_tokens.max())
    context_lens, row_slots = plan.num_computed + plan.num_tokens, plan.slots.astype(np.int64)
    query_start, positions, token_slots = _tokens(plan, row_slots)
    slot_mapping = _written_slots(positions, token_slots, slots)
    max_context_len = int(context_lens.max())
    max_blocks = -(-max_context_len // slots.block_size)

    def tensor(values: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(values) if device.type == "cpu" else torch.from_numpy(values).to(device)

    token_ids = tensor(slots.tokens_at(token_slots, positions).astype(np.int64))
    seq_slots = tensor(plan.slots)
    of_tokens, of_rows, starts = tensor(positions), tensor(context_lens), tensor(query_start)
    return tuple(
        StepInput(
            token_ids=token_ids,
            positions=of_tokens,
            slot_mapping=tensor(mapping),
            query_start=starts,
            context_lens=of_rows,
            block_tables=tensor(table[row_slots, :max_blocks]),
            max_query_len=max_query_len,
            max_context_len=max_context_len,
            seq_slots=seq_slots,
        )
        for mapping, table in zip(slot_mapping, slots.block_ids, strict=True)
    )


def written_slots(plan: StepPlan, slots: SlotTable) -> Int64:
    """[groups of layers, T], the slot of each token. The plan must have been applied to `slots`."""
    _, positions, token_slots = _tokens(plan, plan.slots.astype(np.int64))
    return _written_slots(positions, token_slots, slots)


def _tokens(plan: StepPlan, row_slots: Int64) -> tuple[Int32, Int64, Int64]:
    """The first token of each row and the end of the last, then of each token its position and the slot of its row."""
    if len(row_slots) == plan.num_batched_tokens:  # steady decode: rows are tokens
        return np.arange(len(row_slots) + 1, dtype=np.int32), plan.num_computed.astype(np.int64), row_slots
    query_start = np.zeros(len(row_slots) + 1, np.int32)
    np.cumsum(plan.num_tokens, out=query_start[1:])
    positions = np.arange(query_start[-1]) + np.repeat(plan.num_computed - query_start[:-1], plan.num_tokens)
    return query_start, positions, np.repeat(row_slots, plan.num_tokens)


def _written_slots(positions: Int64, token_slots: Int64, slots: SlotTable) -> Int64:
    block, offset = np.divmod(positions, slots.block_size)
    found: Int64 = slots.blocks_at(token_slots, block) * np.int64(slots.block_size) + offset
    return found


def logit_tokens(plan: StepPlan, slots: SlotTable) -> LogitTokens:
    output_rows = plan.output_rows
    wants_prompt = slots.sampling.num_prompt_logprobs[plan.slots] >= 0
    asks_none = not wants_prompt.any()
    pooled = _pooled(plan, slots) if slots.pooled else ()
    if asks_none and plan.num_tokens.max() == 1:
        return LogitTokens(output_rows, output_rows, _NONE, _NONE, pooled)
    ends = np.cumsum(plan.num_tokens, dtype=np.int64)
    # The outputs of a row end with its last token.
    outputs = np.arange(len(output_rows)) + (ends - np.cumsum(plan.num_outputs))[output_rows]
    if asks_none:
        return LogitTokens(outputs, output_rows, _NONE, _NONE, pooled)
    asking = np.flatnonzero(wants_prompt)
    # The logits at position p predict the token at p + 1, which must be a prompt token.
    last = slots.num_prompt_tokens[plan.slots[asking]] - 1
    counts = np.clip(last - plan.num_computed[asking], 0, plan.num_tokens[asking])
    starts = ends[asking] - plan.num_tokens[asking]
    first_of_row = np.cumsum(counts) - counts
    prompt = np.arange(counts.sum()) + np.repeat(starts - first_of_row, counts)
    return LogitTokens(outputs, output_rows, prompt, np.repeat(asking, counts), pooled)


def _pooled(plan: StepPlan, slots: SlotTable) -> list[PooledTexts]:
    """The texts of the step by the task of their head. The prompt of a row with an output ends there."""
    by_task: dict[str, tuple[list[int], list[int]]] = {}
    for row in np.flatnonzero(plan.num_outputs).tolist():
        params = slots.pooled.get(int(plan.slots[row]))
        if params is None:
            continue
        for task in params.tasks:
            rows, first = by_task.setdefault(task, ([], []))
            rows.append(row)
            first.append(params.first)
    ends, found = np.cumsum(plan.num_tokens, dtype=np.int64), []
    for task, (of_task, skipped) in by_task.items():
        of_rows, starts = np.array(of_task, np.int64), np.zeros(len(of_task) + 1, np.int64)
        counts = plan.num_tokens[of_rows] if task in slots.whole_tasks else np.ones(len(of_rows), np.int64)
        np.cumsum(counts, out=starts[1:])
        before = ends - plan.num_tokens + 1 if task in slots.first_tasks else ends
        tokens = np.arange(starts[-1]) + np.repeat(before[of_rows] - starts[1:], counts)
        found.append(PooledTexts(task, of_rows, tokens, starts, skipped))
    return found
