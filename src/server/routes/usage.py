"""The `usage` object of a response, and its `metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config.schema.server import ServerConfig
from ...text.draft_metrics import DraftMetrics
from ..generation import Generation


def usage(
    generation: Generation, settings: ServerConfig, output_details: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Token counts of one HTTP request. A prompt counts once, whatever `n` is.

    output_details: counts of kinds of generated tokens, by their names in OpenAI's API.
    """
    cached = {"cached_tokens": generation.num_cached_tokens} if settings.enable_prompt_tokens_details else None
    return counted(generation.num_prompt_tokens, generation.num_generated_tokens, output_details, cached)


def metrics(generation: Generation, settings: ServerConfig) -> dict[str, Any]:
    """The field `metrics`: what drafts have brought, for a response of one sequence. Empty if clients get no such."""
    level = settings.per_request_spec_decode_metrics
    if level == "none" or len(generation.drafts) != 1:
        return {}
    found = DraftMetrics.of(generation.drafts[0])
    return {"metrics": {"speculative_decoding": found.summary if level == "summary" else found.detailed}}


def counted(
    prompt: int,
    generated: int,
    output_details: Mapping[str, int] | None = None,
    cached: dict[str, int] | None = None,
) -> dict[str, Any]:
    counts: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
    }
    if output_details:
        counts["completion_tokens_details"] = {**output_details}
    return {**counts, "prompt_tokens_details": cached}


def response_usage(generation: Generation, settings: ServerConfig, num_reasoning_tokens: int | None) -> dict[str, Any]:
    """Usage in the form of the Responses API, whose clients expect every count."""
    prompt, generated = generation.num_prompt_tokens, generation.num_generated_tokens
    cached, newly_cached = _cached(generation, settings)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": newly_cached},
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": num_reasoning_tokens or 0},
        "total_tokens": prompt + generated,
    }


def message_usage(generation: Generation, settings: ServerConfig, num_reasoning_tokens: int | None) -> dict[str, Any]:
    """Usage in the form of Anthropic's API, whose `input_tokens` are tokens that the cache neither had nor got."""
    cached, newly_cached = _cached(generation, settings)
    thinking = {} if num_reasoning_tokens is None else {"thinking_tokens": num_reasoning_tokens}
    return {
        "input_tokens": generation.num_prompt_tokens - cached - newly_cached,
        "cache_creation_input_tokens": newly_cached,
        "cache_read_input_tokens": cached,
        "output_tokens": generation.num_generated_tokens,
        "output_tokens_details": thinking or None,
        "service_tier": "standard",
    }


def _cached(generation: Generation, settings: ServerConfig) -> tuple[int, int]:
    """Prompt tokens that the prefix cache had and that it got; 0 unless clients may know them."""
    if not settings.enable_prompt_tokens_details:
        return 0, 0
    return generation.num_cached_tokens, generation.num_newly_cached_tokens
