"""Drafter: guesses what follows the known tokens of running sequences. Implemented in spec_decode.

A guess never changes an answer: the model verifies it. It changes how many tokens a step computes. A drafter that also
is an AnswerReader knows more than the tokens of the sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..step.plan import Int32, Int64


class Drafter(Protocol):
    """All methods are called from one thread, between steps. Sequences are known by their slots.

    slots: [R] int64, each once. lengths: [R] int32, the known tokens of each sequence, prompt included.
    """

    max_tokens: int  # of one sequence in a step
    is_in_runner: bool  # the runner makes the tokens: `drafts` is not asked

    def admit(self, slot: int, token_ids: Sequence[int]) -> None:
        """A sequence takes the slot. token_ids: all that are known."""
        ...

    def extend(self, slot: int, token_ids: Sequence[int], length: int) -> None:
        """More known tokens of a sequence, which the model did not choose. length: of the sequence, with these."""
        ...

    def follow(self, slots: Int64, lengths: Int32, token_ids: Int32) -> None:
        """One more token of each sequence, of these lengths now, that the model has chosen."""
        ...

    def counts(self, slots: Int64, room: Int32) -> Int32:
        """[R] How many tokens to draft for each sequence of a step, at most `room`: as many as shorten the time for a
        token over all sequences."""
        ...

    def drafts(self, slot: int, length: int, count: int) -> list[int]:
        """`count` tokens that may follow; `counts` has said how many there are."""
        ...

    def record_drafts(self, slots: Int64, num_drafts: Int32, num_accepted: Int32, seconds: float) -> None:
        """How many of the drafts of each sequence were accepted, and how long it took to make all of them."""
        ...

    def record_step(self, num_rows: int, num_drafts: int, seconds: float) -> None:
        """A step of these rows and drafts has taken this time, with drafts that were made before; 0 where the time says
        nothing, because the step had tokens of a prompt too, or was captured."""
        ...


class AnswerReader(Protocol):
    """A drafter that reads other texts than that of a sequence: what its request predicts, and earlier answers."""

    def announce(self, slot: int, num_prompt_tokens: int, predicted: Sequence[int], *, is_shared: bool) -> None:
        """A sequence takes the slot; `Drafter.admit` follows.

        predicted: what its answer is expected to be. is_shared: whether other sequences may be drafted from its answer,
        and it from theirs.
        """
        ...

    def is_predicted(self, slot: int) -> bool:
        """Whether what `Drafter.drafts` returns now is from the predicted text."""
        ...

    def release(self, slot: int, length: int) -> None:
        """The sequence in the slot has ended, with this number of tokens."""
        ...

    def forget(self) -> None:
        """No later sequence is drafted from the answers so far."""
        ...
