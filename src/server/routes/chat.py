"""POST /v1/chat/completions."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ...formats.events import CallArguments, CallBegin, CallEnd, Content, Event, Reasoning
from ..answers.parts import Answer, Part
from ..answers.reading import AnswerDelta
from ..endpoint import INLINE_ITEMS, Call
from ..logprobs import chat_logprobs, prompt_logprobs
from ..protocol.chat import ChatRequest, completion
from ..protocol.stream import ChunkWriter
from .answering import Answering, prepare
from .transferring import transfer_fields
from .usage import usage

__all__ = ["chat_completions", "prepare"]

_REASONING_FIELDS = {
    "both": ("reasoning", "reasoning_content"),
    "reasoning": ("reasoning",),
    "reasoning_content": ("reasoning_content",),
    "inline": (),
    "none": (),
}


async def chat_completions(call: Call) -> None:
    service = call.service
    body = await call.body(ChatRequest)
    model = service.named_model(body.model)
    service.check_ready()
    if body.stream:
        await call.stream(_frames(call, body, model))
        return
    async with call.running():
        answering = await Answering.start(call, body)
        answers = await answering.answers()
        writer = _Writer(call, body, answering)

        def build() -> dict[str, Any]:
            choices = [writer.choice(answer) for answer in answers]
            answer = completion(answering.response_id, answering.created, model, choices, writer.usage())
            return {**answer, **writer.prompt_fields(answers[0]), **transfer_fields(body, answering.generation)}

        num_items = sum(writer.num_items(answer, is_first=answer.index == 0) for answer in answers)
        await call.answer_sized(num_items, build)


class _Writer:
    """Writes the choices of one request."""

    def __init__(self, call: Call, body: ChatRequest, answering: Answering) -> None:
        settings = call.service.settings
        # Of a new message `server.response_role`; of a continued message its own role.
        self.role = settings.response_role if body.add_generation_prompt else body.messages[-1].role
        last = body.messages[-1]
        self._echoed = last.text if body.echo and last.role == self.role else ""
        self._reasoning_fields = _REASONING_FIELDS[settings.reasoning_field]
        self._answering = answering
        self._body = body
        self._is_named = body.choice.mode == "named"
        self._settings = settings
        self._tokenizer = call.service.tokenizer
        self._names = call.service.token_names(body.return_tokens_as_token_ids)
        self._num_top = answering.num_top

    def usage(self) -> dict[str, Any]:
        return usage(self._answering.generation, self._settings, self._answering.num_reasoning_tokens)

    def choice(self, answer: Answer) -> dict[str, Any]:
        """A choice of a complete response, with null for what the request did not ask for."""
        content, calls = self._echoed + answer.content, answer.calls
        message: dict[str, Any] = {
            "role": self.role,
            "content": content or ("" if not calls else None),
            "refusal": None,
        }
        message |= dict.fromkeys(self._reasoning_fields, answer.reasoning or None)
        if calls:
            message["tool_calls"] = [_call(part) for part in calls]
        return {
            "index": answer.index,
            "message": message,
            "logprobs": None if answer.logprobs is None else chat_logprobs(answer.logprobs, self._num_top, self._names),
            "finish_reason": self._finish_reason(answer.finish_reason, len(calls)),
            "stop_reason": answer.stop_reason,
            "token_ids": answer.token_ids if self._body.return_token_ids else None,
        }

    def _finish_reason(self, reason: str | None, num_calls: int) -> str | None:
        """As in OpenAI's API: an answer whose function the request names ends with `stop`."""
        return "tool_calls" if reason == "stop" and num_calls and not self._is_named else reason

    def prompt_fields(self, part: Answer | AnswerDelta) -> dict[str, Any]:
        """What the request asked about its prompt: fields of the response, or of the first chunk of a choice."""
        fields: dict[str, Any] = {}
        if self._body.return_token_ids:
            fields["prompt_token_ids"] = self._answering.generation.prompts[0]
        if part.prompt_logprobs is not None:
            fields["prompt_logprobs"] = prompt_logprobs(part.prompt_logprobs, self._tokenizer)
        return fields

    def num_items(self, part: Answer | AnswerDelta, *, is_first: bool) -> int:
        """How many tokens and log-probabilities this part adds to the answer; is_first: with `prompt_fields`."""
        num = 0
        if part.logprobs is not None or self._body.return_token_ids:
            num = len(part.token_ids) * (1 + self._num_top)
        if is_first:
            num += sum(1 if entry is None else len(entry.token_ids) for entry in part.prompt_logprobs or ())
            num += self._answering.generation.num_prompt_tokens if self._body.return_token_ids else 0
        return num

    def frames(
        self, writer: ChunkWriter, delta: AnswerDelta, is_first: bool, counts: dict[str, Any] | None, num_items: int
    ) -> bytes:
        """Chunks of one delta: the role before the first text, and the finish reason after the last.

        counts: usage so far, if each chunk shall have it.
        """
        body, is_long = self._body, num_items > INLINE_ITEMS
        frames = b""
        if is_first:
            role = {"role": self.role, "content": self._echoed}
            choice: dict[str, Any] = {"index": delta.index, "delta": role, "logprobs": None, "finish_reason": None}
            frames += writer.choice(choice, counts, self.prompt_fields(delta), is_long=is_long)
        # Of several events in one delta, the first has the tokens of all.
        more: dict[str, Any] = {}
        if delta.logprobs:
            more["logprobs"] = chat_logprobs(delta.logprobs, self._num_top, self._names)
        if body.return_token_ids and delta.token_ids:
            more["token_ids"] = delta.token_ids
        for event in delta.events:
            if isinstance(event, Content) and not more and counts is None:
                frames += writer.chat_text(delta.index, event.text)
            elif fields := self._delta(event):
                choice = {"index": delta.index, "delta": fields, "logprobs": None, **more, "finish_reason": None}
                frames += writer.choice(choice, counts, is_long=is_long)
                more = {}
        if more and delta.finish_reason is None:  # tokens without text, or of the end of a call
            choice = {"index": delta.index, "delta": {"content": ""}, "logprobs": None, **more, "finish_reason": None}
            frames += writer.choice(choice, counts, is_long=is_long)
        if delta.finish_reason is not None:
            reason = self._finish_reason(delta.finish_reason, self._answering.num_calls(delta.index))
            choice = {"index": delta.index, "delta": {}, "logprobs": None, **more, "finish_reason": reason}
            if delta.stop_reason is not None:
                choice["stop_reason"] = delta.stop_reason
            frames += writer.choice(choice, counts)
        return frames

    def _delta(self, event: Event) -> dict[str, Any]:
        """The first delta of a call has its id and name; the others have pieces of its arguments only."""
        match event:
            case Content(text=text):
                return {"content": text}
            case Reasoning(text=text):
                return dict.fromkeys(self._reasoning_fields, text)
            case CallBegin():
                return {"tool_calls": [{"index": event.index, **_call_object(event.id, event.name, "")}]}
            case CallArguments():
                return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
            case CallEnd():
                return {}


def _call(part: Part) -> dict[str, Any]:
    return _call_object(part.call_id, part.name, part.text)


def _call_object(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


async def _frames(call: Call, body: ChatRequest, model: str) -> AsyncGenerator[bytes, None]:
    """The role, pieces of the answer, an empty piece with the finish reason; then usage, if it is requested."""
    service = call.service
    answering = await Answering.start(call, body)
    writer = _Writer(call, body, answering)
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
            counts = writer.usage() if in_every_chunk else None
            size = writer.num_items(delta, is_first=is_first)
            frames = await call.sized(size, functools.partial(writer.frames, chunks, delta, is_first, counts, size))
            if frames:
                yield frames
    if has_usage:
        yield chunks.usage(writer.usage())
