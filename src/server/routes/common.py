"""What the routes share that take prompts: rendering, usage, and the log records of a request."""

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
from ..protocol.chat import Conversation
from ..protocol.errors import unsupported
from ..text.renderer import Prompt
from ..text.tokenizer import INLINE_CHARS

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


async def rendered(
    call: Call,
    body: Conversation,
    *,
    max_tokens: int,
    add_special_tokens: bool,
    documents: list[dict[str, Any]] | None = None,
    reasoning_effort: str | None = None,
) -> Prompt:
    """The messages of a request as a prompt; off the event loop where the body is long or brings a template.

    Raises ApiError or InvalidRequest: no template, a template that is not trusted, or one that refuses the messages.
    """
    service = call.service
    renderer = await service.renderer_for(body.chat_template)
    with_tools = bool(body.tools)
    kwargs = service.template_kwargs(renderer, body.chat_template_kwargs, call.route, with_tools=with_tools)
    if reasoning_effort is not None:
        if "reasoning_effort" not in renderer.template_variables(with_tools=with_tools):
            raise unsupported("reasoning_effort", ": this model's chat template does not read it")
        kwargs = {"reasoning_effort": reasoning_effort, **kwargs}

    def work() -> Prompt:
        return renderer.prompt(
            body.plain_messages(),
            max_tokens=max_tokens,
            add_special_tokens=add_special_tokens,
            tools=body.plain_tools(),
            documents=documents,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            template_kwargs=kwargs,
        )

    if call.num_body_bytes <= INLINE_CHARS and body.chat_template is None:
        return work()
    return await renderer.tokenizer.run(work)


def log_arrival(call: Call, requests: Sequence[EngineRequest], prompts: Sequence[str | list[int]]) -> None:
    """One record with the id, what the sampling differs in from the defaults, and the prompts as far as is wanted.

    prompts: texts, or ids where a prompt came as ids.
    """
    first = requests[0]
    call.facts["id"] = first.request_id
    settings = call.service.settings
    if not settings.enable_log_requests:
        return
    chosen = {
        field.name: getattr(first.sampling, field.name)
        for field in dataclasses.fields(first.sampling)
        if field.name != "stop" and getattr(first.sampling, field.name) != getattr(_DEFAULTS, field.name)
    }
    num_tokens = sum(len(request.prompt_token_ids) for request in requests)
    facts = {"id": first.request_id, "prompts": len(requests), "prompt_tokens": num_tokens, **chosen}
    if settings.max_log_len != 0:
        shown = [prompt[: settings.max_log_len] for prompt in prompts]
        facts["prompt"] = shown[0] if len(shown) == 1 else shown
    log_facts(logger, logging.INFO, "request arrived", facts)


def log_end(call: Call, generation: Generation) -> None:
    """What the request's line will tell, and one record for each answer where answers are logged."""
    call.facts.update(generation.facts)
    settings = call.service.settings
    if not settings.enable_log_outputs or settings.max_log_len == 0:
        return
    for index, (output, reason) in enumerate(generation.outputs):
        facts = {"id": call.facts["id"], "index": index, "finish": reason, "output": output[: settings.max_log_len]}
        log_facts(logger, logging.INFO, "request answered", facts)
