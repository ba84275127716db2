"""llguidance: compiles a grammar in milliseconds, and computes each mask when it is needed."""

from __future__ import annotations

from collections.abc import Sequence

import llguidance
import tokenizers

from .backend import Bitmask, GrammarError, Matcher

# A state of its lexer takes 1 to 2 kB: one sequence gets at most about 100 MB, where the library's default is 500 MB.
# Masks and compilation are limited by "fuel": at the library's defaults some 20 ms of each.
LIMITS = llguidance.LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


class GuidanceMatcher:
    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self.inner = matcher
        self.check()

    @property
    def is_finished(self) -> bool:
        return self.inner.is_stopped() and not self.inner.is_error()

    def consume(self, token_ids: Sequence[int]) -> None:
        if not self.inner.consume_tokens(list(token_ids)):
            self.check()

    def validate(self, token_ids: Sequence[int]) -> int:
        return self.inner.validate_tokens(list(token_ids))

    def forced_tokens(self) -> list[int]:
        return self.inner.compute_ff_tokens()

    def copy(self) -> GuidanceMatcher:
        return GuidanceMatcher(self.inner.deep_copy())

    def check(self) -> None:
        """The library never raises."""
        if self.inner.is_error():
            raise GrammarError(shortened(self.inner.get_error()))


class Guidance:
    def __init__(self, vocabulary: tokenizers.Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """vocab_size: of the model, which may have more ids than the vocabulary. Takes 0.8 s for 152k tokens.

        Raises GrammarError for a vocabulary whose tokens are not byte strings.
        """
        try:
            self._tokens = llguidance.LLTokenizer(
                vocabulary.to_str(), n_vocab=vocab_size, eos_token=list(eos_token_ids) or None
            )
        except ValueError as error:
            raise GrammarError(f"llguidance cannot use this vocabulary: {error}") from None
        self._executor = llguidance.LLExecutor(1)  # the model computes on all cores at the same time

    def compile(self, grammar: str) -> GuidanceMatcher:
        return GuidanceMatcher(llguidance.LLMatcher(self._tokens, grammar, log_level=0, limits=LIMITS))

    def fill(self, matchers: Sequence[Matcher], masks: Bitmask) -> None:
        inner = [matcher.inner for matcher in matchers if isinstance(matcher, GuidanceMatcher)]
        assert len(inner) == len(masks)
        if len(inner) == 1:  # beside a step: not after it in the executor's thread
            inner[0].unsafe_compute_mask_ptr(masks.ctypes.data, masks.nbytes)
        elif inner:
            rows = [(matcher, row) for row, matcher in enumerate(inner)]
            self._executor.unsafe_compute_mask_ptr(rows, masks.ctypes.data, masks.strides[0], len(masks))

    def token_bytes(self, token_id: int) -> bytes:
        return self._tokens.decode_bytes([token_id])

    def encode(self, text: str) -> list[int]:
        return self._tokens.tokenize_str(text, parse_special=True)


def shortened(message: str) -> str:
    """The first line of an error: the others show the internal state of the parser."""
    return next(iter(message.strip().splitlines()), "the grammar cannot be followed")[:300]
