"""The `usage` object of a response."""

from __future__ import annotations

from typing import Any

from ...config.schema.server import ServerConfig
from ..generation import Generation


def usage(generation: Generation, settings: ServerConfig) -> dict[str, Any]:
    """Token counts of one HTTP request. A prompt counts once, whatever `n` is."""
    prompt, generated = generation.num_prompt_tokens, generation.num_generated_tokens
    counts: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
    }
    cached = {"cached_tokens": generation.num_cached_tokens} if settings.enable_prompt_tokens_details else None
    return {**counts, "prompt_tokens_details": cached}
