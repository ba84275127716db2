"""Requests for the engines, as token ids: the same for every engine and every run."""

from __future__ import annotations

import random

from .part import Context

NUM_REQUESTS = 256
TEMPERATURE = 0.6


def mixed_lengths(
    num_requests: int = NUM_REQUESTS, min_tokens: int = 100, max_tokens: int = 1024
) -> list[tuple[int, int]]:
    """Numbers of prompt and output tokens of each request. The defaults give the published workload of 256 requests
    with 133,966 output tokens: its seed is 0, and it samples the token ids of each prompt after its length."""
    rng = random.Random(0)
    prompts = []
    for _ in range(num_requests):
        prompts.append(rng.randint(min_tokens, max_tokens))
        for _ in range(prompts[-1]):
            rng.randint(0, 10_000)
    return [(prompt, rng.randint(min_tokens, max_tokens)) for prompt in prompts]


def prompt_of(length: int, seed: str, vocab: int) -> list[int]:
    """Random ids, different for every seed, so that no run finds the prompts of another in a cache."""
    return random.Random(seed).choices(range(min(vocab, 10_000)), k=length)


def steady_cases(context: Context) -> list[tuple[int, int]]:
    """Rows and context length of steady decode steps. Cases that have targets come first."""
    return [(1, 12), (3, 10)] if context.is_reduced else [(1, 512), (64, 512), (256, 512), (64, 2048), (256, 2048)]


def prefill_cases(context: Context) -> list[int]:
    return [12] if context.is_reduced else [2048, 8192]


def workload(context: Context) -> list[tuple[int, int]]:
    return mixed_lengths(3, 3, 5) if context.is_reduced else mixed_lengths()
