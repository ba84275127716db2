"""POST .../render of the generating routes: the token ids of a request, which is not generated.

The bodies are the same as for the generating routes. The answers are bodies for POST /inference/v1/generate: one, or
for /v1/completions a list of one per prompt. Routers compute from them which replica has the prefix in its cache.
"""

from __future__ import annotations

from typing import Any

from ..endpoint import Call
from ..protocol.chat import ChatRequest
from ..protocol.completions import MAX_PROMPTS, CompletionRequest
from ..protocol.errors import unsupported
from ..protocol.generate import as_request, context_of
from ..protocol.json import MAX_VALUES
from ..protocol.messages import MessagesRequest
from ..protocol.responses import ResponsesRequest
from . import chat, completions, messages


async def render_chat(call: Call) -> None:
    await _render(call, await call.body(ChatRequest))


async def render_response(call: Call) -> None:
    body = await call.body(ResponsesRequest)
    if body.previous_response_id is not None:
        raise unsupported("previous_response_id", ": send the items of that response as `input`")
    call.thinking_param = "reasoning.effort"
    call.note_skipped()
    await _render(call, body.conversation(), "resp_")


async def render_message(call: Call) -> None:
    body = await call.body(MessagesRequest)
    messages.note(call, body)
    await _render(call, messages.conversation(call, body), "msg_")


async def _render(call: Call, body: ChatRequest, prefix: str = "chatcmpl-") -> None:
    model = await call.checked_model(body.model)
    call.service.check_ready()
    has_history = not call.long_body
    prepared = await chat.prepare(call, body, prefix=prefix)
    token_ids = prepared.request.inputs.prompt_token_ids

    def build() -> dict[str, Any]:
        context = context_of(body, call.service.settings.default_chat_template_kwargs, has_history=has_history)
        return as_request(prepared.response_id, token_ids, model, prepared.request.inputs.sampling, body, context)

    await call.answer_sized(len(token_ids), build)


async def render_completion(call: Call) -> None:
    body = await call.body(CompletionRequest, max(MAX_VALUES, MAX_PROMPTS * call.service.max_model_len))
    model = await call.checked_model(body.model)
    call.service.check_ready()
    prepared = await completions.prepare(call, body)

    def build() -> list[dict[str, Any]]:
        several = len(prepared.requests) > 1
        return [
            as_request(
                f"{prepared.response_id}-{index}" if several else prepared.response_id,
                request.inputs.prompt_token_ids, model, request.inputs.sampling, body,
            )
            for index, request in enumerate(prepared.requests)
        ]  # fmt: skip

    await call.answer_sized(sum(len(request.inputs.prompt_token_ids) for request in prepared.requests), build)
