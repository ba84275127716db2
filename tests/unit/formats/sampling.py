"""Random answers under a grammar: what a model with random logits writes."""

from __future__ import annotations

import random
from functools import cache
from importlib.resources import files

import llguidance
import llguidance.numpy
import numpy as np
import tokenizers

MAX_TOKENS = 5000
_ENDING = 500  # from this token on, the answer ends where it may, and what closes is mostly written
# Now and then one of these is written where the grammar allows it, so that answers come to an end.
_CLOSING = ('"', "'", "}", "]", ")", ">", "\n")


class TinyTokens:
    """The tokenizer of builtin:tiny, in which some markers are special tokens."""

    def __init__(self, markers: frozenset[str]) -> None:
        path = files("stoker.builtin.tiny").joinpath("tokenizer.json")
        self.tokenizer = tokenizers.Tokenizer.from_str(path.read_text())
        self.tokenizer.add_special_tokens(sorted(markers))
        self.added = {token.content: id for id, token in self.tokenizer.get_added_tokens_decoder().items()}
        self.eos = self.added["<|im_end|>"]
        self.guide = llguidance.LLTokenizer(self.tokenizer.to_str(), eos_token=self.eos)

    def text(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=False)

    def allows(self, grammar: str, text: str) -> bool:
        """Whether the text is a whole answer."""
        matcher = llguidance.LLMatcher(self.guide, grammar, log_level=0)
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return matcher.consume_tokens(ids) and matcher.is_accepting()


@cache
def tiny_tokens(markers: frozenset[str] = frozenset()) -> TinyTokens:
    return TinyTokens(markers)


def sample(tokens: TinyTokens, grammar: str, closing: tuple[str, ...], random: random.Random) -> str:
    """An answer that the grammar allows. It ends: an answer of MAX_TOKENS tokens fails the test."""
    matcher = llguidance.LLMatcher(tokens.guide, grammar, log_level=0)
    assert not matcher.is_error(), f"{matcher.get_error()}\n{grammar}"
    encoded = [tokens.tokenizer.encode(text, add_special_tokens=False).ids for text in (*_CLOSING, *closing)]
    mask = llguidance.numpy.allocate_token_bitmask(1, tokens.guide.vocab_size)
    answer: list[int] = []
    while len(answer) < MAX_TOKENS:
        is_ending = len(answer) >= _ENDING
        if matcher.is_stopped() or (is_ending and matcher.is_accepting()):
            break
        closes = random.random() < (0.9 if is_ending else 0.4)
        ways = [ids for ids in encoded if matcher.validate_tokens(ids) == len(ids)] if closes else []
        if ways:
            chosen = random.choice(ways)
        else:
            llguidance.numpy.fill_next_token_bitmask(matcher, mask, 0)
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            assert len(allowed), matcher.get_error()
            ends = tokens.eos in allowed and (len(allowed) == 1 or random.random() < 0.3)
            chosen = [tokens.eos if ends else int(random.choice(allowed))]
        if chosen == [tokens.eos]:
            break
        assert matcher.consume_tokens(chosen), matcher.get_error()
        answer += chosen
    else:
        raise AssertionError(f"no end within {MAX_TOKENS} tokens: {tokens.text(answer)[-400:]!r}\n{grammar}")
    return tokens.text(answer)
