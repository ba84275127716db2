"""The requests that engines are given, as token ids: the same for every engine and every run."""

from __future__ import annotations

import random

from .part import Context

NUM_REQUESTS = 256
TEMPERATURE = 0.6


def mixed_lengths(num_requests: int = NUM_REQUESTS, least: int = 100, most: int = 1024) -> list[tuple[int, int]]:
    """Prompt and answer of each request. At the defaults those of the published workload of 256 requests, whose
    answers are 133,966 tokens: its seed is 0, and it draws the prompts' token ids in between."""
    numbers = random.Random(0)
    prompts = []
    for _ in range(num_requests):
        prompts.append(numbers.randint(least, most))
        for _ in range(prompts[-1]):
            numbers.randint(0, 10_000)
    return [(prompt, numbers.randint(least, most)) for prompt in prompts]


def prompt_of(length: int, seed: str, vocab: int) -> list[int]:
    """Random ids, others for every seed, so that no run finds the prompts of another in a cache."""
    return random.Random(seed).choices(range(min(vocab, 10_000)), k=length)


def steady_cases(context: Context) -> list[tuple[int, int]]:
    """Rows and context of steps of steady decode. What targets speak of comes first."""
    return [(1, 12), (3, 10)] if context.is_reduced else [(1, 512), (64, 512), (256, 512), (64, 2048), (256, 2048)]


def prefill_cases(context: Context) -> list[int]:
    return [12] if context.is_reduced else [2048, 8192]


def workload(context: Context) -> list[tuple[int, int]]:
    return mixed_lengths(3, 3, 5) if context.is_reduced else mixed_lengths()
