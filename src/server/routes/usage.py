"""The `usage` object of a response."""

from __future__ import annotations

from typing import Any

from ...config.schema.server import ServerConfig
from ..generation import Generation


def usage(generation: Generation, settings: ServerConfig, num_reasoning_tokens: int | None = None) -> dict[str, Any]:
    """Token counts of one HTTP request. A prompt counts once, whatever `n` is.

    num_reasoning_tokens: of the generated ones; None if that is not known.
    """
    prompt, generated = generation.num_prompt_tokens, generation.num_generated_tokens
    counts: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
    }
    cached = {"cached_tokens": generation.num_cached_tokens} if settings.enable_prompt_tokens_details else None
    if num_reasoning_tokens is not None:
        counts["completion_tokens_details"] = {"reasoning_tokens": num_reasoning_tokens}
    return {**counts, "prompt_tokens_details": cached}
