"""POST /v1/chat/completions."""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple

from ...engine.api import EngineRequest
from ..endpoint import INLINE_ITEMS, Call
from ..generation import Generation
from ..logprobs import chat_logprobs, prompt_logprobs
from ..protocol.chat import ChatRequest, completion
from ..protocol.stream import ChunkWriter
from ..sampling import check_prompt, num_logprobs, sampling_params, truncation
from ..service import new_ids
from ..text.generated_sequence import Delta
from .generating import generation_of
from .rendering import rendered
from .request_log import log_arrival, log_end
from .session_prefix import note_prefix
from .usage import usage


async def chat_completions(call: Call) -> None:
    service = call.service
    body = await call.body(ChatRequest)
    model = service.named_model(body.model)
    service.check_ready()
    if body.stream:
        await call.stream(_frames(call, body, model))
        return
    async with service.live.watch(call.receive):
        job = await _Job.start(call, body)
        try:
            deltas = await job.generation.whole()
        finally:
            log_end(call, job.generation)

        def build() -> dict[str, Any]:
            choices = [job.choice(delta) for delta in deltas]
            counts = usage(job.generation, service.settings)
            answer = completion(job.response_id, job.created, model, choices, counts)
            return {**answer, **job.prompt_fields(deltas[0])}

        num_items = sum(job.num_items(delta, is_first=delta.index == 0) for delta in deltas)
        await call.answer_sized(num_items, build)


class Prepared(NamedTuple):
    """A request as it is sent to the engine. text: the rendered prompt."""

    request: EngineRequest
    text: str
    response_id: str
    num_top: int


async def prepare(call: Call, body: ChatRequest) -> Prepared:
    """Render and check the request."""
    service = call.service
    limits = service.model_limits
    if body.tool_choice == "none" and service.settings.exclude_tools_when_tool_choice_none:
        body.tools = None
    num_top = num_logprobs(body.top_logprobs, limits, "top_logprobs") or 0
    prompt_logprobs = num_logprobs(body.prompt_logprobs, limits, "prompt_logprobs")
    text, prompt = await rendered(
        call,
        body,
        max_tokens=limits.context,
        add_special_tokens=body.add_special_tokens,
        cut=truncation(body, limits),
    )
    check_prompt(prompt, limits, param="messages")
    await note_prefix(call, body, prompt)
    sampling = sampling_params(
        body,
        service.sampling_defaults,
        limits,
        prompts=[prompt],
        max_tokens=body.max_completion_tokens or body.max_tokens,
        max_tokens_param="max_completion_tokens" if body.max_completion_tokens else "max_tokens",
        logprobs=num_top if body.logprobs else None,
        prompt_logprobs=prompt_logprobs,
        tokenizer=service.tokenizer,
    )
    response_id, engine_id = new_ids("chatcmpl", call.request_id or body.request_id, call.unique_id)
    request = EngineRequest(
        request_id=engine_id,
        prompt_token_ids=prompt,
        sampling=sampling,
        priority=body.priority or 0,
        cache_salt=call.cache_salt + (body.cache_salt or ""),
    )
    return Prepared(request, text, response_id, num_top)


class _Job:
    """One request: its generation, and how its choices are written."""

    def __init__(self, call: Call, body: ChatRequest, generation: Generation, response_id: str, num_top: int) -> None:
        self.generation = generation
        self.response_id = response_id
        self.created = int(time.time())
        settings = call.service.settings
        # Of a new message `server.response_role`; of a continued message its own role.
        self.role = settings.response_role if body.add_generation_prompt else body.messages[-1].role
        last = body.messages[-1]
        self.echoed = last.text if body.echo and last.role == self.role else ""
        self._body = body
        self._tokenizer = call.service.tokenizer
        self._names = call.service.token_names(body.return_tokens_as_token_ids)
        self._num_top = num_top

    @classmethod
    async def start(cls, call: Call, body: ChatRequest) -> _Job:
        """Nothing has been sent to the engine yet."""
        prepared = await prepare(call, body)
        log_arrival(call, body, [prepared.request], [prepared.text])
        generation = generation_of(call, body, [prepared.request])
        return cls(call, body, generation, prepared.response_id, prepared.num_top)

    def choice(self, delta: Delta) -> dict[str, Any]:
        """A choice of a complete response, with null for what the request did not ask for."""
        message = {"role": self.role, "content": self.echoed + delta.text, "refusal": None, "reasoning": None}
        return {
            "index": delta.index,
            "message": message,
            "logprobs": None if delta.logprobs is None else chat_logprobs(delta.logprobs, self._num_top, self._names),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            "token_ids": delta.token_ids if self._body.return_token_ids else None,
        }

    def prompt_fields(self, delta: Delta) -> dict[str, Any]:
        """What the request asked about its prompt: fields of the response, or of the first chunk of a choice."""
        fields: dict[str, Any] = {}
        if self._body.return_token_ids:
            fields["prompt_token_ids"] = self.generation.prompts[0]
        if delta.prompt_logprobs is not None:
            fields["prompt_logprobs"] = prompt_logprobs(delta.prompt_logprobs, self._tokenizer)
        return fields

    def num_items(self, delta: Delta, *, is_first: bool) -> int:
        """How many tokens and log-probabilities this delta adds to the answer; is_first: with `prompt_fields`."""
        num = 0
        if delta.logprobs is not None or self._body.return_token_ids:
            num = len(delta.token_ids) * (1 + self._num_top)
        if is_first:
            num += sum(1 if entry is None else len(entry.token_ids) for entry in delta.prompt_logprobs or ())
            num += self.generation.num_prompt_tokens if self._body.return_token_ids else 0
        return num

    def frames(
        self, writer: ChunkWriter, delta: Delta, is_first: bool, counts: dict[str, Any] | None, num_items: int
    ) -> bytes:
        """Chunks of one delta: the role before the first text, and the finish reason after the last.

        counts: usage so far, if each chunk shall have it.
        """
        body, is_long = self._body, num_items > INLINE_ITEMS
        frames = b""
        if is_first:
            role = {"role": self.role, "content": self.echoed}
            choice: dict[str, Any] = {"index": delta.index, "delta": role, "logprobs": None, "finish_reason": None}
            frames += writer.choice(choice, counts, self.prompt_fields(delta), is_long=is_long)
        if delta.logprobs or (body.return_token_ids and delta.token_ids) or (delta.text and counts is not None):
            choice = {"index": delta.index, "delta": {"content": delta.text}, "logprobs": None}
            if delta.logprobs:
                choice["logprobs"] = chat_logprobs(delta.logprobs, self._num_top, self._names)
            if body.return_token_ids:
                choice["token_ids"] = delta.token_ids
            frames += writer.choice({**choice, "finish_reason": None}, counts, is_long=is_long)
        elif delta.text:
            frames += writer.chat_text(delta.index, delta.text)
        if delta.finish_reason is not None:
            choice = {"index": delta.index, "delta": {}, "logprobs": None, "finish_reason": delta.finish_reason}
            if delta.stop_reason is not None:
                choice["stop_reason"] = delta.stop_reason
            frames += writer.choice(choice, counts)
        return frames


async def _frames(call: Call, body: ChatRequest, model: str) -> AsyncGenerator[bytes, None]:
    """The role, then pieces of text, then an empty piece with the finish reason; then usage, if it is requested."""
    service = call.service
    job = await _Job.start(call, body)
    is_forced = service.settings.enable_force_include_usage
    has_usage, in_every_chunk = body.wants_usage or is_forced, body.wants_continuous_usage or is_forced
    head = {"id": job.response_id, "object": "chat.completion.chunk", "created": job.created, "model": model}
    writer = ChunkWriter(head, has_usage=has_usage)
    seen: set[int] = set()
    try:
        async with aclosing(job.generation.deltas()) as deltas:
            async for delta in deltas:
                is_first = delta.index not in seen
                seen.add(delta.index)
                counts = usage(job.generation, service.settings) if in_every_chunk else None
                size = job.num_items(delta, is_first=is_first)
                frames = await call.sized(size, functools.partial(job.frames, writer, delta, is_first, counts, size))
                if frames:
                    yield frames
    finally:
        log_end(call, job.generation)
    if has_usage:
        yield writer.usage(usage(job.generation, service.settings))
