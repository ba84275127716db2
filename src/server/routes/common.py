"""What the two generating routes share: usage, and the log record of an arrival."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

from ...config.schema.server import ServerConfig
from ...engine.api import EngineRequest, SamplingParams
from ...logs import log_facts
from ..endpoint import Call
from ..generation import Generation

logger = logging.getLogger(__name__)
_DEFAULTS = SamplingParams()


def usage(generation: Generation, settings: ServerConfig) -> dict[str, Any]:
    """Token counts of a whole HTTP request. A prompt counts once, however many answers it gets."""
    prompt, generated = generation.num_prompt_tokens, generation.num_generated_tokens
    counts: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
    }
    if settings.enable_prompt_tokens_details:
        counts["prompt_tokens_details"] = {"cached_tokens": generation.num_cached_tokens}
    return counts


def log_arrival(call: Call, requests: Sequence[EngineRequest]) -> None:
    """One record with the id and what the sampling differs in from the defaults; never a word of the prompt."""
    first = requests[0]
    call.facts["id"] = first.request_id
    if not call.service.settings.enable_log_requests:
        return
    chosen = {
        field.name: getattr(first.sampling, field.name)
        for field in dataclasses.fields(first.sampling)
        if field.name != "stop" and getattr(first.sampling, field.name) != getattr(_DEFAULTS, field.name)
    }
    num_tokens = sum(len(request.prompt_token_ids) for request in requests)
    facts = {"id": first.request_id, "prompts": len(requests), "prompt_tokens": num_tokens, **chosen}
    log_facts(logger, logging.INFO, "request arrived", facts)
