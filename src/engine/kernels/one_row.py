"""Torch's operations on one row at a time: slow, but the results of a row do not depend on the other rows.

torch chooses the order of its sums by the shape of the whole batch, and possibly by the alignment of its memory. With
one row per call, copied to newly allocated memory, the choice is always the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from .recurrent_step import rows_of


def one_row(op: Callable[..., Any], *by_row: int) -> Callable[..., Any]:
    """An op that computes each row by itself.

    by_row: positions of the arguments that have one entry per row (or are None); the first of them is not None. The
    other arguments are passed unchanged for every row, so an op that writes in place writes to the caller's memory.
    """

    def call(*arguments: Any) -> Any:
        num_rows = len(arguments[by_row[0]])
        if num_rows == 0:
            return op(*arguments)
        found = [
            op(*(_row(each, row) if index in by_row else each for index, each in enumerate(arguments)))
            for row in range(num_rows)
        ]
        if isinstance(found[0], tuple):
            return tuple(torch.cat(parts) for parts in zip(*found, strict=True))
        return torch.cat(found)

    return call


def _row(values: torch.Tensor | None, row: int) -> torch.Tensor | None:
    return None if values is None else values[row : row + 1].clone()


@dataclass(frozen=True, slots=True)
class _OneQuery:
    """An AttentionStep of one row with one query."""

    query_start: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    max_context_len: int
    max_query_len: int = 1
    visible: None = None  # all of its context
    by_rank: None = None
    plans: dict[Hashable, Any] = field(default_factory=dict)


def one_query(attention: Callable[..., Any], *by_query: int) -> Callable[..., Any]:
    """Attention of each query as if it were the only one of the step.

    by_query: positions of the arguments that have one entry per query. One of the others is the AttentionStep.
    """

    def call(*arguments: Any) -> Any:
        at, step = next((at, each) for at, each in enumerate(arguments) if hasattr(each, "block_tables"))
        starts, contexts = step.query_start.tolist(), step.context_lens.tolist()
        visible = getattr(step, "visible", None)
        found = []
        for row, context_len in enumerate(contexts):
            start, end = starts[row], starts[row + 1]
            for token in range(start, end):
                seen = context_len - (end - 1 - token) if visible is None else int(visible[token])
                own: list[Any] = list(arguments)
                own[at] = _OneQuery(
                    query_start=torch.tensor([0, 1], dtype=torch.int32),
                    context_lens=torch.tensor([seen], dtype=torch.int32),
                    block_tables=step.block_tables[row : row + 1],
                    max_context_len=seen,
                )
                for index in by_query:
                    own[index] = arguments[index][token : token + 1].clone()
                found.append(attention(*own))
        if not found:
            return attention(*arguments)
        if isinstance(found[0], tuple):
            return tuple(torch.cat(parts) for parts in zip(*found, strict=True))
        return torch.cat(found)

    return call


@dataclass(frozen=True, slots=True)
class _OneToken:
    """A RecurrentStep of one row with one token."""

    seq_slots: torch.Tensor
    context_lens: torch.Tensor
    query_start: torch.Tensor = field(default_factory=lambda: torch.tensor([0, 1], dtype=torch.int32))
    max_query_len: int = 1


def one_token(op: Callable[..., torch.Tensor], *by_token: int) -> Callable[..., torch.Tensor]:
    """An op with a state per sequence that computes each token as if it were the only one of the step.

    by_token: positions of the arguments that have one entry per token. One of the others is the RecurrentStep.
    """

    def call(*arguments: Any) -> torch.Tensor:
        at, step = next((at, each) for at, each in enumerate(arguments) if hasattr(each, "seq_slots"))
        found = []
        for start, end, slot, is_new in rows_of(step):
            for token in range(start, end):
                context = 1 if is_new and token == start else 2
                slots, contexts = (torch.tensor([value], dtype=torch.int32) for value in (slot, context))
                own: list[Any] = list(arguments)
                own[at] = _OneToken(slots, contexts)
                for index in by_token:
                    own[index] = arguments[index][token : token + 1].clone()
                found.append(op(*own))
        return torch.cat(found)

    return call


@dataclass(frozen=True, slots=True)
class _OnePosition:
    """A CompressedStep of one row with one token."""

    seq_slots: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    query_start: torch.Tensor = field(default_factory=lambda: torch.tensor([0, 1], dtype=torch.int32))
    max_query_len: int = 1


def one_position(op: Callable[..., Any], *by_token: int) -> Callable[..., Any]:
    """An op with a state and blocks that computes each token as if it were the only one of the step.

    by_token: positions of the arguments that have one entry per token (or are None); the first of them is not None. One
    of the others is the CompressedStep. What an op returns for the tokens of padding rows is zeros.
    """

    def call(*arguments: Any) -> torch.Tensor | None:
        at, step = next((at, each) for at, each in enumerate(arguments) if hasattr(each, "seq_slots"))
        starts, contexts, slots = step.query_start.tolist(), step.context_lens.tolist(), step.seq_slots.tolist()
        found: torch.Tensor | None = None
        for row, (start, end, slot) in enumerate(zip(starts, starts[1:], slots, strict=False)):
            for token in range(start, end) if slot >= 0 else ():
                own: list[Any] = list(arguments)
                own[at] = _OnePosition(
                    torch.tensor([slot], dtype=torch.int32),
                    torch.tensor([contexts[row] - (end - 1 - token)], dtype=torch.int32),
                    step.block_tables[row : row + 1],
                    step.positions[token : token + 1],
                    step.slot_mapping[token : token + 1],
                )
                for index in by_token:
                    own[index] = _row(arguments[index], token)
                result = op(*own)
                if found is None and result is not None:
                    found = result.new_zeros(starts[-1], *result.shape[1:])
                if found is not None:
                    found[token] = result[0]
        return op(*arguments) if found is None and not starts[-1] else found

    return call
