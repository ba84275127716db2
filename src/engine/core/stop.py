"""The end of a sequence: end-of-sequence ids, stop token ids and maximum length.

Stop strings are found in the text (src/text); the scheduler gets an abort for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..api import FinishReason, SamplingParams
from ..step.plan import Bool, Int32


@dataclass(frozen=True, slots=True)
class StopRule:
    """Lengths include the prompt, so that the loop over a step's rows compares one number."""

    token_ids: frozenset[int]  # any of these ends the sequence
    named_token_ids: frozenset[int]  # named by the request, and reported as stop_reason
    min_length: int  # a sequence shorter than this is not ended by a token
    max_length: int  # a sequence of this length is ended by any token

    @classmethod
    def of(
        cls, sampling: SamplingParams, num_prompt_tokens: int, eos_token_ids: tuple[int, ...], max_length: int
    ) -> StopRule:
        """`max_length`: limit by context and KV cache; `max_tokens` may lower it."""
        named = frozenset(sampling.stop_token_ids)
        if sampling.max_tokens is not None:
            # With max_tokens 0 one token is sampled too, which ends the sequence and is not returned.
            max_length = min(max_length, num_prompt_tokens + max(1, sampling.max_tokens))
        return cls(
            token_ids=named if sampling.ignore_eos else named.union(eos_token_ids),
            named_token_ids=named,
            min_length=num_prompt_tokens + sampling.min_tokens,
            max_length=max_length,
        )

    def check(self, token_id: int, length: int) -> tuple[FinishReason | None, int | None]:
        """(finish_reason, stop_reason) of a sequence whose last token, of `length`, is `token_id`.

        A stop token in the last possible position is STOP: the model ended the sequence, not the limit.
        """
        if token_id in self.token_ids and length >= self.min_length:
            return FinishReason.STOP, token_id if token_id in self.named_token_ids else None
        if length >= self.max_length:
            return FinishReason.LENGTH, None
        return None, None


class WatchedIds:
    """All token ids that may end one of the live sequences. Only rows with one of these need their StopRule checked."""

    def __init__(self, eos_token_ids: Iterable[int]) -> None:
        self._counts = Counter(eos_token_ids)
        self._ids = np.array(list(self._counts), np.int64)

    def watch(self, token_ids: Iterable[int]) -> None:
        """Add the ids of one more sequence."""
        self._counts.update(token_ids)
        self._ids = np.array(list(self._counts), np.int64)

    def forget(self, token_ids: Iterable[int]) -> None:
        """Remove the ids of one sequence."""
        self._counts -= Counter(token_ids)
        self._ids = np.array(list(self._counts), np.int64)

    def seen_in(self, token_ids: Int32) -> Bool:
        """Returns for each token id whether it is watched."""
        if len(self._ids) > _FEW_IDS:
            return np.isin(token_ids, self._ids)
        seen: Bool = token_ids == (self._ids[0] if len(self._ids) else -1)
        for token_id in self._ids[1:]:
            seen |= token_ids == token_id
        return seen


_FEW_IDS = 8  # up to this number, one comparison of the column per id is faster than sorting
