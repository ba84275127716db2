"""Drafters whose guesses a test knows. The real ones are in spec_decode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stoker.engine.step.plan import Int32, Int64


class AnyDrafter:
    """Drafts as many tokens as it may, whatever they are. It fails in the method of this name."""

    is_in_runner = False

    def __init__(self, max_tokens: int = 2, fails_in: str = "") -> None:
        self.max_tokens = max_tokens
        self.fails_in = fails_in
        self.num_calls = 0

    def _called(self, name: str) -> None:
        self.num_calls += 1
        if name == self.fails_in:
            raise ZeroDivisionError(name)

    def admit(self, slot: int, token_ids: Sequence[int]) -> None:
        self._called("admit")

    def extend(self, slot: int, token_ids: Sequence[int], length: int) -> None:
        self._called("extend")

    def follow(self, slots: Int64, lengths: Int32, token_ids: Int32) -> None:
        self._called("follow")

    def counts(self, slots: Int64, room: Int32) -> Int32:
        self._called("counts")
        return room

    def drafts(self, slot: int, length: int, count: int) -> list[int]:
        self._called("drafts")
        return [0] * count

    def record_drafts(self, slots: Int64, num_drafts: Int32, num_accepted: Int32, seconds: float) -> None: ...

    def record_step(self, num_rows: int, num_drafts: int, seconds: float) -> None:
        self._called("record_step")


class AnswerDrafter:
    """Drafts as many tokens as it may: those of the answer, but for one in `wrong_every` positions of a sequence."""

    is_in_runner = False

    def __init__(
        self, answers: Mapping[tuple[int, ...], Sequence[int]], max_tokens: int = 4, wrong_every: int = 5
    ) -> None:
        """answers: what is generated, by prompt."""
        self.max_tokens, self.wrong_every = max_tokens, wrong_every
        self._answers = answers
        self._own: dict[int, list[int]] = {}
        self.followed: dict[int, list[int]] = {}  # by slot, all tokens of the sequence
        self.admitted: set[tuple[int, ...]] = set()
        self.steps: list[tuple[int, int]] = []

    def admit(self, slot: int, token_ids: Sequence[int]) -> None:
        self.followed[slot] = list(token_ids)
        self.admitted.add(tuple(token_ids))
        sequences = [[*prompt, *answer] for prompt, answer in self._answers.items()]
        known = self._answers.get(tuple(token_ids))
        resumed = (each for each in sequences if each[: len(token_ids)] == list(token_ids))
        self._own[slot] = [*token_ids, *known] if known is not None else next(resumed)

    def extend(self, slot: int, token_ids: Sequence[int], length: int) -> None:
        self.followed[slot] += token_ids
        assert len(self.followed[slot]) == length

    def follow(self, slots: Int64, lengths: Int32, token_ids: Int32) -> None:
        for slot, length, token_id in zip(slots.tolist(), lengths.tolist(), token_ids.tolist(), strict=True):
            self.followed[slot].append(token_id)
            assert len(self.followed[slot]) == length

    def counts(self, slots: Int64, room: Int32) -> Int32:
        left = [len(self._own[slot]) - len(self.followed[slot]) for slot in slots.tolist()]
        return np.minimum(room, left).astype(np.int32)

    def drafts(self, slot: int, length: int, count: int) -> list[int]:
        tokens = self._own[slot]
        own = tokens[length : length + count]
        is_wrong = [place % self.wrong_every == 0 for place in range(length, length + count)]
        return [abs(token_id - 1) if wrong else token_id for token_id, wrong in zip(own, is_wrong, strict=True)]

    def record_drafts(self, slots: Int64, num_drafts: Int32, num_accepted: Int32, seconds: float) -> None: ...

    def record_step(self, num_rows: int, num_drafts: int, seconds: float) -> None:
        self.steps.append((num_rows, num_drafts))
