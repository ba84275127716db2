"""llguidance as the judge of grammars: whether one compiles, and why not.

problem_of(llguidance_grammar({"type": "string"}, {}))    -> None
problem_of(llguidance_grammar(False, {}))                 -> a sentence: no text obeys it
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import llguidance
import numpy as np

# Problems that llguidance has words for which no client knows.
_PROBLEMS = {
    "NoExtensionBias": "it refers to itself without an end",
    "coerce_one_of": "more than one member of `oneOf` may match; write `anyOf`",
}


def llguidance_grammar(schema: Any, options: Mapping[str, Any]) -> str:
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    return llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=options)  # type: ignore[arg-type]


def problem_of(grammar: str, tokens: llguidance.LLTokenizer | None = None) -> str | None:
    """Why a grammar cannot be compiled, or not without ignoring a part of it."""
    _, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, tokens)
    if messages:
        message = messages[0].removeprefix("WARNING: ").strip()
        return _in_our_words(" ".join(line.strip() for line in message.splitlines() if line.strip())[:300])
    matcher = llguidance.LLMatcher(tokens or byte_tokens(), grammar, log_level=0)
    for step in range(2):  # some are found to be too complex after the first byte
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little"))
        if matcher.is_error():
            return _in_our_words(matcher.get_error().strip().partition("\n")[0][:300])
        if not allowed.size:
            return None if step else "no text obeys it"
        matcher.consume_token(int(allowed[0]))
    return None


def _in_our_words(problem: str) -> str:
    return next((ours for mark, ours in _PROBLEMS.items() if mark in problem), problem)


@functools.lru_cache(maxsize=4)
def byte_tokens(special_tokens: tuple[str, ...] = (), vocab_size: int = 0) -> llguidance.LLTokenizer:
    """A vocabulary of bytes and these special tokens, which grammars may name.

    vocab_size: of the model, whose ids grammars may name; the others are tokens that no text has.
    """
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Vocabulary(special_tokens, vocab_size)))


class _Vocabulary:
    def __init__(self, special_tokens: Sequence[str], vocab_size: int) -> None:
        named = [*(bytes([value]) for value in range(256)), *map(str.encode, special_tokens)]
        others = (b"<[%d]>" % token_id for token_id in range(len(named), vocab_size - 1))
        self.tokens = [*named, *others, b"<end>"]
        self.special_token_ids = list(range(256, len(self.tokens)))
        self.eos_token_id = len(self.tokens) - 1
        self.bos_token_id = None

    def __call__(self, text: bytes) -> list[int]:
        return list(text)
