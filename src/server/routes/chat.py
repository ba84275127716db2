"""POST /v1/chat/completions."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ..endpoint import Call
from ..protocol.chat import ChatRequest, completion
from ..protocol.stream import ChunkWriter
from .answering import Answering, prepare
from .chat_writer import ChatWriter
from .transferring import transfer_fields
from .usage import metrics, usage

__all__ = ["chat_completions", "prepare"]


async def chat_completions(call: Call) -> None:
    service = call.service
    body = await call.body(ChatRequest)
    model = await call.named_model(body.model)
    service.check_ready()
    if body.stream:
        await call.stream(_frames(call, body, model))
        return
    async with call.running():
        answering = await Answering.start(call, body)
        answers = await answering.answers()
        writer = _writer(call, body, answering)

        def build() -> dict[str, Any]:
            choices = [writer.choice(answer) for answer in answers]
            answer = completion(answering.response_id, answering.created, model, choices, _usage(call, answering))
            extra = {**transfer_fields(body, answering.generation), **metrics(answering.generation, service.settings)}
            return {**answer, **writer.prompt_fields(answers[0]), **extra}

        num_items = sum(writer.num_items(answer, is_first=answer.index == 0) for answer in answers)
        await call.answer_sized(num_items, build)


async def _frames(call: Call, body: ChatRequest, model: str) -> AsyncGenerator[bytes, None]:
    """The role, pieces of the answer, an empty piece with the finish reason; then usage, if it is requested."""
    service = call.service
    answering = await Answering.start(call, body)
    writer = _writer(call, body, answering)
    is_forced = service.settings.enable_force_include_usage
    has_usage, in_every_chunk = body.wants_usage or is_forced, body.wants_continuous_usage or is_forced
    head = {"id": answering.response_id, "object": "chat.completion.chunk", "created": answering.created,
            "model": model}  # fmt: skip
    chunks = ChunkWriter(head, has_usage=has_usage)
    seen: set[int] = set()
    async with aclosing(answering.deltas()) as deltas:
        async for delta in deltas:
            is_first = delta.index not in seen
            seen.add(delta.index)
            counts = _usage(call, answering) if in_every_chunk else None
            size = writer.num_items(delta, is_first=is_first)
            frames = await call.sized(size, functools.partial(writer.frames, chunks, delta, is_first, counts, size))
            if frames:
                yield frames
    if has_usage:
        yield chunks.usage(_usage(call, answering), metrics(answering.generation, service.settings))


def _writer(call: Call, body: ChatRequest, answering: Answering) -> ChatWriter:
    return ChatWriter(
        call.service,
        body,
        num_top=answering.num_top,
        num_calls=answering.num_calls,
        prompt=answering.generation.prompts[0],
    )


def _usage(call: Call, answering: Answering) -> dict[str, Any]:
    return usage(answering.generation, call.service.settings, answering.output_details)
