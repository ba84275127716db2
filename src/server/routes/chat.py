"""POST /v1/chat/completions."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ...engine.api import EngineRequest, fan_out
from ..endpoint import Call
from ..generation import Generation
from ..logprobs import chat_logprobs, prompt_logprobs
from ..protocol.chat import ChatRequest, completion
from ..protocol.errors import unsupported
from ..protocol.stream import ChunkWriter
from ..sampling import check_prompt, sampling_params
from ..service import new_id
from ..text.generated_sequence import Delta
from .rendering import rendered
from .request_log import log_arrival, log_end
from .usage import usage

logger = logging.getLogger(__name__)


async def chat_completions(call: Call) -> None:
    service = call.service
    body = await call.body(ChatRequest)
    service.check_model(body.model)
    service.check_ready()
    if body.stream:
        await call.stream(_frames(call, body))
        return
    async with service.live.watch(call.receive):
        generation, response_id, created = await _start(call, body)
        try:
            deltas = await generation.whole()
        finally:
            log_end(call, generation)

        def build() -> dict[str, Any]:
            choices = [_choice(call, body, delta) for delta in deltas]
            answer = completion(response_id, created, body.model, choices, usage(generation, service.settings))
            if body.return_token_ids:
                answer["prompt_token_ids"] = generation.prompts[0]
            if deltas[0].prompt_logprobs is not None:
                answer["prompt_logprobs"] = prompt_logprobs(deltas[0].prompt_logprobs, service.tokenizer)
            return answer

        await call.answer_sized(_num_items(body, generation, deltas), build)


async def _start(call: Call, body: ChatRequest) -> tuple[Generation, str, int]:
    """Render and check the request. Nothing has been sent to the engine yet."""
    service = call.service
    limits = service.model_limits
    if body.tool_choice == "none" and service.settings.exclude_tools_when_tool_choice_none:
        body.tools = None
    text, prompt = await rendered(
        call,
        body,
        max_tokens=limits.context,
        add_special_tokens=body.add_special_tokens,
        documents=body.documents,
        reasoning_effort=body.reasoning_effort,
    )
    check_prompt(prompt, limits, param="messages")
    if body.stream and body.prompt_logprobs is not None:
        raise unsupported("prompt_logprobs", " in a stream")
    sampling = sampling_params(
        body,
        service.sampling_defaults,
        limits,
        prompts=[prompt],
        max_tokens=body.max_completion_tokens or body.max_tokens,
        max_tokens_param="max_completion_tokens" if body.max_completion_tokens else "max_tokens",
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        logprobs_param="top_logprobs",
        prompt_logprobs=body.prompt_logprobs,
    )
    response_id = new_id("chatcmpl")
    request = EngineRequest(
        request_id=response_id,
        prompt_token_ids=prompt,
        sampling=sampling,
        priority=body.priority or 0,
        cache_salt=call.cache_salt + (body.cache_salt or ""),
    )
    log_arrival(call, [request], [text])
    generation = Generation(
        service.client,
        service.tokenizer,
        fan_out(request),
        service.metrics,
        keeps_output=service.settings.enable_log_outputs,
        arrived_at=call.arrived_at,
        clock=service.clock,
    )
    return generation, response_id, int(time.time())


def _num_items(body: ChatRequest, generation: Generation, deltas: list[Delta]) -> int:
    """How many tokens and log-probabilities the answer holds."""
    num = len(deltas[0].prompt_logprobs or ()) * (1 + (body.prompt_logprobs or 0))
    if body.logprobs or body.return_token_ids:
        num += sum(len(delta.token_ids) for delta in deltas) * (1 + (body.top_logprobs or 0))
    return num + (generation.num_prompt_tokens if body.return_token_ids else 0)


def _choice(call: Call, body: ChatRequest, delta: Delta) -> dict[str, Any]:
    service = call.service
    choice: dict[str, Any] = {
        "index": delta.index,
        "message": {"role": _role(call, body), "content": delta.text, "refusal": None},
        "logprobs": None,
        "finish_reason": delta.finish_reason,
    }
    if delta.logprobs is not None:
        names = service.token_names(body.return_tokens_as_token_ids)
        choice["logprobs"] = chat_logprobs(delta.logprobs, body.top_logprobs or 0, names)
    if delta.stop_reason is not None:
        choice["stop_reason"] = delta.stop_reason
    if body.return_token_ids:
        choice["token_ids"] = delta.token_ids
    return choice


def _role(call: Call, body: ChatRequest) -> str:
    """Of a new message `server.response_role`; of a continued message its own role."""
    return call.service.settings.response_role if body.add_generation_prompt else body.messages[-1].role


async def _frames(call: Call, body: ChatRequest) -> AsyncGenerator[bytes, None]:
    """The role, then pieces of text, then an empty piece with the finish reason; then usage, if it is requested."""
    service = call.service
    generation, response_id, created = await _start(call, body)
    wants_usage = body.wants_usage or service.settings.enable_force_include_usage
    head = {"id": response_id, "object": "chat.completion.chunk", "created": created, "model": body.model}
    writer = ChunkWriter(head, has_usage=wants_usage)
    names = service.token_names(body.return_tokens_as_token_ids)
    has_role: set[int] = set()
    try:
        async with aclosing(generation.deltas()) as deltas:
            async for delta in deltas:
                frames = b""
                if delta.index not in has_role:
                    has_role.add(delta.index)
                    role = {"role": _role(call, body), "content": ""}
                    choice = {"index": delta.index, "delta": role, "logprobs": None, "finish_reason": None}
                    if body.return_token_ids:
                        choice["prompt_token_ids"] = generation.prompts[0]
                    frames += writer.choice(choice)
                if delta.logprobs or (body.return_token_ids and delta.token_ids):
                    choice = {"index": delta.index, "delta": {"content": delta.text}, "logprobs": None}
                    if delta.logprobs:
                        choice["logprobs"] = chat_logprobs(delta.logprobs, body.top_logprobs or 0, names)
                    if body.return_token_ids:
                        choice["token_ids"] = delta.token_ids
                    frames += writer.choice({**choice, "finish_reason": None})
                elif delta.text:
                    frames += writer.chat_text(delta.index, delta.text)
                if delta.finish_reason is not None:
                    choice = {"index": delta.index, "delta": {}, "logprobs": None, "finish_reason": delta.finish_reason}
                    if delta.stop_reason is not None:
                        choice["stop_reason"] = delta.stop_reason
                    frames += writer.choice(choice)
                if frames:
                    yield frames
    finally:
        log_end(call, generation)
    if wants_usage:
        yield writer.usage(usage(generation, service.settings))
