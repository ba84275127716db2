"""POST /v1/messages and /v1/messages/count_tokens, in Anthropic's protocol."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ..answers.messages import MessageWriter, frames
from ..endpoint import Call
from ..protocol.chat import ChatRequest
from ..protocol.errors import ApiError
from ..protocol.fields import NO_LIMIT
from ..protocol.messages import CountTokensRequest, MessagesRequest, error_body
from ..protocol.stream import event_frame
from .answering import Answering, rendered_for_counting
from .usage import message_usage


async def create(call: Call) -> None:
    service = call.service
    body = await call.body(MessagesRequest)
    model = await call.named_model(body.model)
    service.check_ready()
    note(call, body)
    if body.stream:
        await call.stream(_frames(call, body, model), end=b"", error_frame=_error_frame)
        return
    async with call.running():
        answering, writer = await _start(call, body, model)
        finish_reason, stop_reason = None, None
        async with aclosing(answering.deltas()) as deltas:
            async for delta in deltas:
                writer.add(delta)
                finish_reason, stop_reason = delta.finish_reason, delta.stop_reason
        writer.end(finish_reason, stop_reason, {})
        usage = _usage(call, answering)
        await call.answer(writer.message(*writer.stop_reason(finish_reason, stop_reason), usage))


async def count_tokens(call: Call) -> None:
    body = await call.body(CountTokensRequest)
    await call.checked_model(body.model)
    note(call, body)
    await call.answer({"input_tokens": await rendered_for_counting(call, body.conversation(), [])})


def conversation(call: Call, body: MessagesRequest) -> ChatRequest:
    """The request as a chat.

    Every request has `max_tokens`, and agents send what other models allow: more than the context is no limit here.
    """
    chat = body.conversation()
    if body.max_tokens > call.service.model_limits.context:
        chat.max_tokens = NO_LIMIT
    return chat


def note(call: Call, body: CountTokensRequest) -> None:
    """What of the request has no effect, for the headers of the response."""
    # A request without `thinking` asks for none: where a model cannot switch it, that is no reason to refuse it.
    call.thinking_param = "thinking" if body.thinking else ""
    call.note_skipped()
    if (body.model_extra or {}).get("context_management"):
        call.note_ignored("context_management")


async def _start(call: Call, body: MessagesRequest, model: str) -> tuple[Answering, MessageWriter]:
    answering = await Answering.start(call, conversation(call, body), _new_call_id, prefix="msg_")
    head = {"id": answering.response_id, "type": "message", "role": "assistant", "model": model}
    return answering, MessageWriter(head)


def _new_call_id() -> str:
    return f"toolu_{uuid.uuid4().hex}"


async def _frames(call: Call, body: MessagesRequest, model: str) -> AsyncGenerator[bytes, None]:
    answering, writer = await _start(call, body, model)
    is_first = True
    async with aclosing(answering.deltas()) as deltas:
        async for delta in deltas:
            events: list[dict[str, Any]] = []
            if is_first:  # now it is known how much of the prompt was cached
                events += writer.begin({**_usage(call, answering), "output_tokens": 0, "output_tokens_details": None})
                is_first = False
            events += writer.add(delta)
            if delta.finish_reason is not None:
                events += writer.end(delta.finish_reason, delta.stop_reason, _usage(call, answering))
            if events:
                yield frames(events)


def _usage(call: Call, answering: Answering) -> dict[str, Any]:
    return message_usage(answering.generation, call.service.settings, answering.num_reasoning_tokens)


def _error_frame(error: ApiError) -> bytes:
    return event_frame("error", error_body(error))
