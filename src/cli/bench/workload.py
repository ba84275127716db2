"""Prompts for measurements: random, and the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

# Frequent words, each of them one token in most vocabularies after a space.
_WORDS = [
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "problem",
    "hand",
    "part",
    "place",
    "case",
    "week",
    "company",
    "system",
    "program",
    "question",
    "work",
    "government",
    "number",
    "night",
    "point",
    "home",
    "water",
    "room",
    "mother",
    "area",
    "money",
    "story",
    "fact",
    "month",
    "lot",
    "right",
    "study",
    "book",
    "eye",
    "job",
    "word",
    "business",
    "issue",
    "side",
    "kind",
    "head",
    "house",
    "service",
    "friend",
]


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
class Job:
    prompt: list[int]
    output_len: int


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


def text_jobs(count: int, shape: Shape, seed: int, batch: int = 0) -> list[TextJob]:
    """Prompts with a number of words, for a server with an unknown tokenizer: about the same number of tokens."""
    words = random.Random(f"words {seed} {batch}")
    prefix = words.choices(_WORDS, k=shape.prefix_len)
    return [
        TextJob(" ".join(prefix + words.choices(_WORDS, k=input_len)), output_len)
        for input_len, output_len in _lengths(count, shape, seed)
    ]


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
