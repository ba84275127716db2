"""What a library of grammars must offer. Does not know requests, slots or reasoning: see guide.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Bitmask = npt.NDArray[np.int32]  # one bit for each token id, the lowest bit of the first element is id 0


class GrammarError(ValueError):
    """The grammar cannot be compiled, or cannot be followed any further."""


class Matcher(Protocol):
    """The state of one sequence in its grammar. Used by one thread at a time."""

    @property
    def is_finished(self) -> bool:
        """The text is complete, and nothing but the end of the sequence can follow."""
        ...

    def consume(self, token_ids: Sequence[int]) -> None:
        """Raises GrammarError if the grammar does not allow them, or became too complex."""
        ...

    def validate(self, token_ids: Sequence[int]) -> int:
        """How many of these draft tokens could be consumed. Changes nothing."""
        ...

    def check(self) -> None:
        """Raises GrammarError if the grammar cannot be followed any further."""
        ...

    def forced_tokens(self) -> list[int]:
        """The next tokens, as far as there is only one possibility."""
        ...

    def copy(self) -> Matcher:
        """An independent matcher in the same state."""
        ...


class Backend(Protocol):
    """A library with the vocabulary of one model."""

    def compile(self, grammar: str) -> Matcher:
        """Return a matcher at the beginning of the grammar. Runs mostly without the GIL. Raises GrammarError."""
        ...

    def fill(self, matchers: Sequence[Matcher], masks: Bitmask) -> None:
        """Sets the bits of the tokens that may follow: masks [N, words], zeros. Runs without the GIL.

        One that fails says so in its `check`.
        """
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The text of a token, also of a special one."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a text. Special tokens in it are read as such."""
        ...


def num_words(vocab_size: int) -> int:
    """Number of elements of a bitmask."""
    return -(-vocab_size // 32)
