"""Random answers under a grammar: what a model with random logits writes."""

from __future__ import annotations

import random
from functools import cache
from importlib.resources import files

import llguidance
import llguidance.numpy
import numpy as np
import tokenizers

MAX_TOKENS = 1500
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


@cache
def tiny_tokens(markers: frozenset[str] = frozenset()) -> TinyTokens:
    return TinyTokens(markers)


def sample(tokens: TinyTokens, grammar: str, closing: tuple[str, ...], random: random.Random) -> str | None:
    """An answer that the grammar allows; None if it did not end within MAX_TOKENS tokens."""
    matcher = llguidance.LLMatcher(tokens.guide, grammar, log_level=0)
    assert not matcher.is_error(), f"{matcher.get_error()}\n{grammar}"
    encoded = [tokens.tokenizer.encode(text, add_special_tokens=False).ids for text in (*_CLOSING, *closing)]
    mask = llguidance.numpy.allocate_token_bitmask(1, tokens.guide.vocab_size)
    answer: list[int] = []
    while len(answer) < MAX_TOKENS:
        if matcher.is_stopped():
            break
        ways = [ids for ids in encoded if matcher.validate_tokens(ids) == len(ids)] if random.random() < 0.4 else []
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
        return None
    return tokens.text(answer)
