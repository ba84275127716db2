"""POST /v1/completions."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ...engine.api import EngineRequest, TokenLogprobs, fan_out
from ..endpoint import INLINE_ITEMS, Call
from ..generation import Generation
from ..logprobs import CompletionLogprobs, prompt_logprobs
from ..protocol.completions import MAX_PROMPTS, CompletionRequest, completion
from ..protocol.errors import bad_request, unsupported
from ..protocol.json import MAX_VALUES
from ..protocol.stream import ChunkWriter
from ..sampling import ModelLimits, check_prompt, sampling_params
from ..service import new_id
from ..text.generated_sequence import Delta
from .request_log import log_arrival, log_end
from .usage import usage

DEFAULT_MAX_TOKENS = 16  # OpenAI's, on this route


async def completions(call: Call) -> None:
    service = call.service
    body = await call.body(CompletionRequest, max(MAX_VALUES, MAX_PROMPTS * service.max_model_len))
    service.check_model(body.model)
    service.check_ready()
    if body.stream:
        await call.stream(_frames(call, body))
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
            return completion(job.response_id, job.created, body.model, choices, counts)

        await call.answer_sized(sum(map(job.num_items, deltas)), build)


class _Job:
    """One request: its generation, and how its choices are written."""

    def __init__(self, call: Call, body: CompletionRequest, generation: Generation, response_id: str) -> None:
        self.generation = generation
        self.response_id = response_id
        self.created = int(time.time())
        self._body = body
        self._tokenizer = call.service.tokenizer
        self._names = call.service.token_names(body.return_tokens_as_token_ids)
        self._logprobs: dict[int, CompletionLogprobs] = {}
        self._shows_ids = bool(body.return_token_ids) or self._tokenizer is None

    @classmethod
    async def start(cls, call: Call, body: CompletionRequest) -> _Job:
        """Encode and check the request. Nothing has been sent to the engine yet."""
        service = call.service
        limits = service.model_limits
        n = body.n or 1
        if len(body.prompt) * n > service.max_queued_requests:
            message = f"{len(body.prompt)} prompts x n={n} exceed the queue's limit of {service.max_queued_requests}"
            raise bad_request(message, code="array_above_max_length", param="prompt")
        if body.stream and (body.prompt_logprobs is not None):
            raise unsupported("prompt_logprobs", " in a stream")
        if body.echo and service.tokenizer is None:
            raise unsupported("echo", ": this deployment has no tokenizer (`model.skip_tokenizer_init`)")
        prompts = await _encode(call, body, limits)

        def check() -> None:
            for prompt in prompts:
                check_prompt(prompt, limits, param="prompt")

        await call.sized(sum(map(len, prompts)), check)
        num_prompt_logprobs = body.prompt_logprobs
        if body.echo and body.logprobs is not None:
            num_prompt_logprobs = max(num_prompt_logprobs or 0, body.logprobs)
        sampling = sampling_params(
            body,
            service.sampling_defaults,
            limits,
            prompts=prompts,
            max_tokens=body.max_tokens,
            default_max_tokens=service.sampling_defaults.get("max_tokens", DEFAULT_MAX_TOKENS),
            logprobs=body.logprobs,
            prompt_logprobs=num_prompt_logprobs,
        )
        response_id = new_id("cmpl")
        requests = [
            EngineRequest(
                request_id=response_id if len(prompts) == 1 else f"{response_id}-{index}",
                prompt_token_ids=prompt,
                sampling=sampling,
                priority=body.priority or 0,
                cache_salt=call.cache_salt + (body.cache_salt or ""),
            )
            for index, prompt in enumerate(prompts)
        ]
        log_arrival(call, requests, body.prompt)
        generation = Generation(
            service.client,
            service.tokenizer,
            [sequence for request in requests for sequence in fan_out(request)],
            service.metrics,
            num_prompts=len(prompts),
            keeps_output=service.settings.enable_log_outputs,
            arrived_at=call.arrived_at,
            clock=service.clock,
        )
        return cls(call, body, generation, response_id)

    def choice(self, delta: Delta, *, is_first: bool = True) -> dict[str, Any]:
        """is_first: the first delta of its sequence, which begins with the prompt if `echo` is set."""
        prompt = self.generation.prompts[delta.index // (self._body.n or 1)]
        echoes = bool(self._body.echo) and is_first
        choice: dict[str, Any] = {
            "index": delta.index,
            "text": self._prompt_text(delta.index) + delta.text if echoes else delta.text,
            "logprobs": None,
            "finish_reason": delta.finish_reason,
        }
        if delta.stop_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        if delta.logprobs is not None and self._body.logprobs is not None:
            entries: list[TokenLogprobs | None] = [*delta.logprobs]
            token_ids = delta.token_ids
            if echoes and delta.prompt_logprobs is not None:
                entries, token_ids = [*delta.prompt_logprobs, *entries], prompt + token_ids
            writer = self._logprobs.setdefault(delta.index, CompletionLogprobs(self._names))
            choice["logprobs"] = writer.block(entries, token_ids, self._body.logprobs)
        if self._body.prompt_logprobs is not None and delta.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(delta.prompt_logprobs, self._tokenizer)
        if self._shows_ids:
            choice["token_ids"] = delta.token_ids
            if is_first and self._body.return_token_ids:
                choice["prompt_token_ids"] = prompt
        return choice

    def num_items(self, delta: Delta, *, is_first: bool = True) -> int:
        """How many tokens and log-probabilities `choice` writes."""
        body = self._body
        num = len(delta.token_ids) * (1 + (body.logprobs or 0)) if self.needs_whole_choices else 0
        num += len(delta.prompt_logprobs or ()) * (1 + max(body.logprobs or 0, body.prompt_logprobs or 0))
        if is_first and (body.echo or body.return_token_ids):
            num += len(self.generation.prompts[delta.index // (body.n or 1)])
        return num

    def frame(self, writer: ChunkWriter, delta: Delta, is_first: bool, num_items: int) -> bytes:
        return writer.choice(self.choice(delta, is_first=is_first), is_long=num_items > INLINE_ITEMS)

    @property
    def needs_whole_choices(self) -> bool:
        """Whether chunks of a stream hold more than text."""
        return self._body.logprobs is not None or self._shows_ids

    def _prompt_text(self, index: int) -> str:
        prompt = self._body.prompt[index // (self._body.n or 1)]
        if isinstance(prompt, str):
            return prompt
        return self._tokenizer.decode(prompt, skip_special_tokens=False) if self._tokenizer else ""


async def _encode(call: Call, body: CompletionRequest, limits: ModelLimits) -> list[list[int]]:
    prompts: list[list[int]] = []
    for prompt in body.prompt:
        if not isinstance(prompt, str):
            prompts.append(prompt)
            continue
        tokenizer = call.service.need_tokenizer()
        prompts.append(
            await tokenizer.encode_async(
                prompt, limits.context, param="prompt", add_special_tokens=body.add_special_tokens
            )
        )
        await asyncio.sleep(0)  # let other requests run: a thousand short prompts take as long as a long one
    return prompts


async def _frames(call: Call, body: CompletionRequest) -> AsyncGenerator[bytes, None]:
    service = call.service
    job = await _Job.start(call, body)
    wants_usage = body.wants_usage or service.settings.enable_force_include_usage
    writer = ChunkWriter(completion(job.response_id, job.created, body.model, [], None), has_usage=wants_usage)
    seen: set[int] = set()
    try:
        async with aclosing(job.generation.deltas()) as deltas:
            async for delta in deltas:
                is_first = delta.index not in seen
                seen.add(delta.index)
                if job.needs_whole_choices or delta.finish_reason is not None or (is_first and body.echo):
                    size = job.num_items(delta, is_first=is_first)
                    yield await call.sized(size, functools.partial(job.frame, writer, delta, is_first, size))
                elif delta.text:
                    yield writer.completion_text(delta.index, delta.text)
    finally:
        log_end(call, job.generation)
    if wants_usage:
        yield writer.usage(usage(job.generation, service.settings))
