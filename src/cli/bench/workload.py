"""Prompts for measurements: random, and the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

FIRST_WORD = "time"  # of every prompt: a tokenizer may treat the beginning of a text differently
# Frequent words: after a space, each is one token in most vocabularies, and the shortest in nearly all.
WORDS = [
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state",
    "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company",
    "system", "program", "question", "work", "government", "number", "night", "point", "home", "water", "room",
    "mother", "area", "money", "story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word",
    "business", "issue", "side", "kind", "head", "house", "service", "friend", "a", "I", "to",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """Lengths in tokens. spread: share by which they vary up and down. prefix_len: length of the shared prefix."""

    input_len: int
    output_len: int
    spread: float = 0.0
    prefix_len: int = 0

    @property
    def longest(self) -> int:
        """Tokens of the longest request and its answer."""
        return self.prefix_len + round(self.input_len * (1 + self.spread)) + round(self.output_len * (1 + self.spread))


@dataclass(frozen=True, slots=True)
class Costs:
    """Tokens of words on a server. overhead: of a prompt that is only FIRST_WORD, its chat template included."""

    overhead: int = 1
    words: Mapping[str, int] = field(default_factory=dict)

    def of(self, word: str) -> int:
        """Number of tokens of a word after a space; 1 for a word that was not counted."""
        return self.words.get(word, 1)


@dataclass(frozen=True, slots=True)
class Job:
    prompt: list[int]  # token ids
    output_len: int  # tokens


@dataclass(frozen=True, slots=True)
class TextJob:
    prompt: str
    output_len: int


def token_jobs(count: int, shape: Shape, vocab_size: int, seed: int, batch: int = 0) -> list[Job]:
    """Prompts of exact length. Another `batch` has other prompts of the same lengths, not in the prefix cache."""
    tokens = random.Random(f"tokens {seed} {batch}")
    prefix = [tokens.randrange(vocab_size) for _ in range(shape.prefix_len)]
    return [
        Job(prefix + [tokens.randrange(vocab_size) for _ in range(input_len)], output_len)
        for input_len, output_len in _lengths(count, shape, seed)
    ]


def text_jobs(count: int, shape: Shape, seed: int, batch: int = 0, costs: Costs | None = None) -> list[TextJob]:
    """Prompts of words, for a server. costs: what its tokenizer makes of them; None for one token a word."""
    costs = costs or Costs()
    words = random.Random(f"words {seed} {batch}")
    prefix = _words_of(shape.prefix_len, words, costs)
    return [
        TextJob(" ".join([FIRST_WORD, *prefix, *_words_of(input_len - costs.overhead, words, costs)]), output_len)
        for input_len, output_len in _lengths(count, shape, seed)
    ]


def _words_of(num_tokens: int, words: random.Random, costs: Costs) -> list[str]:
    """Words of `num_tokens` tokens together, or of as near to that number as the words allow."""
    chosen: list[str] = []
    while num_tokens > 0:
        fitting = [word for word in WORDS if costs.of(word) <= num_tokens]
        if not fitting:
            break
        chosen.append(words.choice(fitting))
        num_tokens -= costs.of(chosen[-1])
    return chosen


def arrivals(count: int, rate: float | None, seed: int) -> list[float]:
    """Seconds from the start at which requests are sent: a Poisson process of `rate` per second; None: all at 0."""
    if rate is None:
        return [0.0] * count
    gaps = random.Random(f"arrivals {seed}")
    times, now = [], 0.0
    for _ in range(count):
        times.append(now)
        now += gaps.expovariate(rate)
    return times


def _lengths(count: int, shape: Shape, seed: int) -> Iterator[tuple[int, int]]:
    lengths = random.Random(f"lengths {seed}")

    def length(middle: int) -> int:
        return max(1, round(middle * (1 + lengths.uniform(-shape.spread, shape.spread))))

    for _ in range(count):
        yield length(shape.input_len), length(shape.output_len)
