"""StepInput: one step as tensors, the input of models, layers and attention.

Built by runner/step_input.py from a StepPlan. The batch is flattened: no padding, no batch dimension.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..kernels import SlotsOfRanks
from .linear import Mix

NO_SLOTS = torch.empty(0, dtype=torch.int32)


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Rows of the embedding that are given, in place of those of the token ids."""

    tokens: torch.Tensor  # [N] int64, indices into the T; the token ids there are any of the vocabulary
    rows: torch.Tensor  # [N, hidden_size], as the embedding returns them


@dataclass(frozen=True, slots=True)
class StateInputs:
    """What a part with a recurrent state computes from, and the states that it changes."""

    values: torch.Tensor  # [T, ...]
    cache: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class StepInput:
    """T tokens of R rows; row r has the tokens from query_start[r] up to query_start[r + 1]."""

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64, in the sequence
    slot_mapping: torch.Tensor  # [T] int64, block_id * block_size + offset
    query_start: torch.Tensor  # [R + 1] int32
    context_lens: torch.Tensor  # [R] int32, tokens in the cache after this step
    block_tables: torch.Tensor  # [R, max blocks in use] int32
    max_query_len: int
    max_context_len: int
    seq_slots: torch.Tensor = NO_SLOTS  # [R] int32, places of the sequences' recurrent states; -1 of a padding row
    # [T] int32, tokens in the cache that each query sees, where this rank keeps some tokens of each context
    # (runner/context_part.py), or where drafts see each other (models/draft_network.py); None where it keeps all, and a
    # query sees those up to its own.
    visible: torch.Tensor | None = None
    by_rank: SlotsOfRanks | None = None  # None where this rank writes all tokens
    mix: Mix | None = None  # None where no token adds to the products of the model's linear layers
    # [kinds, T] int64, positions by which pairs of heads are turned, where tokens have several kinds of them
    # (layers/rotary.py); None where `positions` is the only kind.
    rope_positions: torch.Tensor | None = None
    given: GivenRows | None = None  # read by the model's embedding only
    # [n, T] int64, ids of the tokens 1, 2, ..., n before each token, -1 before the beginning of its sequence, for a
    # model with embeddings of n-grams (layers/ngrams.py); None for others.
    earlier_ids: torch.Tensor | None = None
    # [T] int64, 1 for the tokens of the second of two texts and 0 for others, for a model with an embedding of them
    # (runner/token_types.py); None for others.
    token_types: torch.Tensor | None = None
    # What parts with a recurrent state compute from, in the order of their calls, for a step whose last tokens may be
    # rejected (runner/rejected_drafts.py); None of other steps.
    state_inputs: list[StateInputs] | None = field(default=None, repr=False, compare=False)
    # Values that kernels derive from the above in the first layer that needs them. Cleared at the start of a forward
    # pass: the same tensors may hold another step by then, and a captured graph must contain the derivation.
    plans: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]

    @property
    def num_rows(self) -> int:
        return self.context_lens.shape[0]

    def keep_state_inputs(self, values: torch.Tensor, cache: tuple[torch.Tensor, ...]) -> None:
        """Called by a part with a recurrent state. See StateInputs."""
        if self.state_inputs is not None:
            self.state_inputs.append(StateInputs(values, cache))

    def of_tokens(self, tokens: torch.Tensor) -> StepInput:
        """A step of these tokens, each in a separate row, for layers after the first.

        tokens: [N] int64, indices into the T; -1 for a padding row.
        """
        positions = self.positions[tokens]
        rows = torch.searchsorted(self.query_start, tokens.int(), right=True) - 1
        contexts = positions + 1 if self.visible is None else self.visible[tokens]
        return StepInput(
            token_ids=self.token_ids[tokens],
            positions=positions,
            slot_mapping=self.slot_mapping[tokens],
            query_start=torch.arange(len(tokens) + 1, dtype=torch.int32, device=tokens.device),
            context_lens=contexts.masked_fill_(tokens < 0, 0).to(torch.int32),
            block_tables=self.block_tables[rows],
            max_query_len=1,
            max_context_len=self.max_context_len,
            visible=None if self.visible is None else contexts,
            by_rank=self.by_rank,
            mix=None if self.mix is None else self.mix.of_tokens(tokens),
            rope_positions=None if self.rope_positions is None else self.rope_positions[:, tokens],
            earlier_ids=None if self.earlier_ids is None else self.earlier_ids[:, tokens],
            token_types=None if self.token_types is None else self.token_types[tokens],
        )
